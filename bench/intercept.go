package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/ca"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	boundName   = "bound.example"
	clients     = 8
	leastRate   = 5000                   // small requests a second
	mostAdded   = 500 * time.Microsecond // to a request, in the middle
	mostClosing = 5 * time.Millisecond
	closedFlows = 500

	// closedLooked is how many of these are looked into. Half of them are HTTP/2
	// with two requests on their way.
	closedLooked = 200
)

// ways are three ways to one HTTPS server: directly, through a plain reverse
// proxy of the standard library, and through a boundary that looks into every
// request. All of it is this process, so what differs is what stands between.
type ways struct {
	direct, peer, boundary *http.Client
	close                  []func()
}

func (w *ways) end() {
	for i := len(w.close) - 1; i >= 0; i-- {
		w.close[i]()
	}
}

func newWays(ctx context.Context, dir string, size int64) (w *ways, err error) {
	w = new(ways)
	defer func() {
		if err != nil {
			w.end()
		}
	}()
	origin := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ok/large" {
			_ = pour(rw, size) // what is missing, the client misses
			return
		}
		_, _ = io.WriteString(rw, "small")
	}))
	origin.TLS = new(tls.Config)
	authority, err := ca.Open(ctx, dir)
	if err != nil {
		return w, err
	}
	leaf, err := authority.Leaf(boundName)
	if err != nil {
		return w, err
	}
	origin.TLS.Certificates = []tls.Certificate{*leaf}
	origin.StartTLS()
	w.close = append(w.close, origin.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authority.PEM()))

	at := netip.MustParseAddrPort(origin.Listener.Addr().String())
	target := &url.URL{Scheme: "https", Host: at.String()}
	peer := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: boundName},
			MaxIdleConnsPerHost: 2 * clients, DisableCompression: true},
	})
	peer.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	peer.StartTLS()
	w.close = append(w.close, peer.Close)

	log, err := audit.Open(filepath.Join(dir, "policy.jsonl"))
	if err != nil {
		return w, err
	}
	w.close = append(w.close, func() { log.Close() })
	g, err := newGuest(ctx, plan.EgressRule{Phase: plan.Runtime, Pattern: boundName, Methods: []string{http.MethodGet}, Paths: []string{"/ok/**"}}, at.String(),
		control.Config{Log: log.Write, Leaf: authority.Leaf, Roots: roots})
	if err != nil {
		return w, err
	}
	w.close = append(w.close, func() { _ = g.close() })
	client := func(dial func(ctx context.Context) (net.Conn, error)) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: boundName}, MaxIdleConnsPerHost: 2 * clients, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
		w.close = append(w.close, tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: time.Minute}
	}
	plain := func(addr string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }
	}
	w.direct, w.peer = client(plain(at.String())), client(plain(peer.Listener.Addr().String()))
	w.boundary = client(func(ctx context.Context) (net.Conn, error) {
		return dialIn(ctx, g.ns, "tcp4", g.at(443))
	})
	return w, nil
}

func get(c *http.Client, path string, size int64) error {
	r, err := c.Get("https://" + boundName + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	return err
}

// small makes n requests over as many connections as there are clients.
func small(c *http.Client, n int) error {
	var g errgroup.Group
	for range clients {
		g.Go(func() error {
			for range n / clients {
				if err := get(c, "/ok/x", 5); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// one is the middle of n requests, one after the other.
func one(c *http.Client, n int) (sample, error) {
	var s series
	for range n {
		t := time.Now()
		if err := get(c, "/ok/x", 5); err != nil {
			return sample{}, err
		}
		s = append(s, sample{wall: time.Since(t)})
	}
	return s.middle(), nil
}

// intercepted measures what looking into requests costs.
func intercepted(ctx context.Context, o options, _ *fixture, r *report) (err error) {
	size, requests := int64(128<<20), 4000
	if o.quick {
		size, requests = 4<<20, 80
	}
	dir, err := os.MkdirTemp("", "kitbox-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w, err := newWays(ctx, dir, size)
	if err != nil {
		return err
	}
	defer w.end()
	sw, err := newStopwatch()
	if err != nil {
		return err
	}
	var many, large, single [2]series // of the peer, or direct, and ours
	for round := -1; round < o.rounds; round++ {
		for i, c := range []*http.Client{w.peer, w.boundary} {
			a, err := sw.time(func() error { return small(c, requests) })
			if err != nil {
				return fmt.Errorf("small requests: %w", err)
			}
			b, err := sw.time(func() error { return get(c, "/ok/large", size) })
			if err != nil {
				return fmt.Errorf("a download: %w", err)
			}
			l, err := one([]*http.Client{w.direct, w.boundary}[i], connectsPerRound*5)
			if err != nil {
				return fmt.Errorf("a request: %w", err)
			}
			if round >= 0 { // the first makes the connections
				many[i], large[i], single[i] = append(many[i], a), append(large[i], b), append(single[i], l)
			}
		}
	}
	rate := func(s series) float64 { return float64(requests) / median(s.walls()).Seconds() }
	ln := compared(fmt.Sprintf("requests that are looked into, %d connections", clients), "plain reverse proxy", many[1], many[0], 0, 0)
	ln.ours, ln.theirs = fmt.Sprintf("%.0f/s", rate(many[1])), fmt.Sprintf("%.0f/s", rate(many[0]))
	ln.bar, ln.ok = fmt.Sprintf("≥ %d/s", leastRate), verdict(rate(many[1]) >= leastRate)
	r.add(ln)
	speed := func(s series) string {
		return fmt.Sprintf("%.1f Gbit/s", float64(size)*8/1e9/median(s.walls()).Seconds())
	}
	ln = compared(fmt.Sprintf("download that is looked into, %d MiB", size>>20), "plain reverse proxy", large[1], large[0], 2.85, 0)
	ln.ours, ln.theirs = speed(large[1]), speed(large[0])
	r.add(ln)
	ln = compared("one request that is looked into", "directly", single[1], single[0], 0, 0)
	added := median(single[1].walls()) - median(single[0].walls())
	ln.bar, ln.ok = fmt.Sprintf("≤ %s more", show(mostAdded)), verdict(added <= mostAdded)
	r.add(ln)
	return closing(ctx, o, r)
}

// A held server answers HTTPS requests with a body that does not end.
type held struct {
	server  *httptest.Server
	leaf    func(host string) (*tls.Certificate, error)
	roots   *x509.CertPool
	arrived chan struct{}
}

func newHeld(ctx context.Context, dir string) (*held, error) {
	authority, err := ca.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	leaf, err := authority.Leaf(boundName)
	if err != nil {
		return nil, err
	}
	h := &held{leaf: authority.Leaf, roots: x509.NewCertPool(), arrived: make(chan struct{}, closedFlows)}
	h.roots.AppendCertsFromPEM([]byte(authority.PEM()))
	h.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		h.arrived <- struct{}{}
		<-r.Context().Done() // it is cut
	}))
	h.server.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	h.server.StartTLS()
	return h, nil
}

// client makes connections by dial, one at a time, for HTTP/2 or HTTP/1.1.
func (h *held) client(dial func() (net.Conn, error), http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.roots, ServerName: boundName}, Protocols: new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	return &http.Client{Transport: tr}
}

// ask makes a request and returns when it is being answered. It sends to ends with what
// the answer ended, nil in order.
func (h *held) ask(c *http.Client, ends chan error) error {
	go func() {
		r, err := c.Get("https://" + boundName + "/ok/held")
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		ends <- err
	}()
	select {
	case <-h.arrived:
		return nil
	case err := <-ends:
		return fmt.Errorf("a request that is to be cut ended: %w", err)
	}
}

// closing ends a phase in which many connections are open: some pass through, on others
// requests are on their way that are looked into.
func closing(ctx context.Context, o options, r *report) (err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // ends when it is cut
			}()
		}
	}()
	dir, err := os.MkdirTemp("", "kitbox-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h, err := newHeld(ctx, dir)
	if err != nil {
		return err
	}
	defer h.server.Close()
	g, err := newGuest(ctx, plan.EgressRule{Phase: plan.Install, Pattern: bulkName}, l.Addr().String(),
		control.Config{Leaf: h.leaf, Roots: h.roots, Routes: []plan.Route{{Name: boundName, Addr: h.server.Listener.Addr().String()}}},
		plan.EgressRule{Phase: plan.Install, Pattern: boundName, Methods: []string{http.MethodGet}, Paths: []string{"/ok/**"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	bound, err := resolveIn(ctx, g.ns, boundName)
	if err != nil {
		return err
	}
	var s series
	for range o.rounds {
		g.boundary.SetPhase(plan.Install)
		conns := make([]net.Conn, closedFlows-closedLooked)
		err := onThread(g.ns, func() error {
			for i := range conns {
				if conns[i], err = net.DialTimeout("tcp4", g.at(80), 5*time.Second); err != nil {
					return err
				}
				if err := ping(conns[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		requests, ends := 0, make(chan error, 2*closedLooked)
		for i := range closedLooked {
			http2 := i%2 == 0
			c := h.client(func() (net.Conn, error) {
				return dialIn(ctx, g.ns, "tcp4", netip.AddrPortFrom(bound, 443).String())
			}, http2)
			for range map[bool]int{false: 1, true: 2}[http2] {
				if err := h.ask(c, ends); err != nil {
					return err
				}
				requests++
			}
		}
		t := time.Now()
		g.boundary.SetPhase(plan.Runtime)
		s = append(s, sample{wall: time.Since(t)})
		for _, c := range conns {
			if ping(c) == nil {
				return errors.New("a connection of the closed phase is still open")
			}
			c.Close()
		}
		for range requests {
			if <-ends == nil {
				return errors.New("a request of the closed phase ended in order")
			}
		}
	}
	r.add(line{what: fmt.Sprintf("closing the install phase with %d open connections, %d looked into", closedFlows, closedLooked),
		ours: times(s) + ", at most " + show(slices.Max(s.walls())), peer: "–", theirs: "all are cut", bar: "≤ " + show(mostClosing), ok: verdict(median(s.walls()) <= mostClosing)})
	return nil
}

// ping sends a byte and waits for its echo.
func ping(c net.Conn) error {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}
