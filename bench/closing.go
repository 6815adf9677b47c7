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
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/ca"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	mostClosing = 5 * time.Millisecond // at most, and not in the middle
	closedFlows = 500

	// closedLooked is how many of these are looked into. Half of them are HTTP/2
	// with two requests on their way.
	closedLooked = 200

	settling = 20 * time.Millisecond
)

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
func (h *held) ask(c *http.Client, path string, ends chan error) error {
	go func() {
		r, err := c.Get("https://" + boundName + path)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			if r.StatusCode == http.StatusForbidden {
				err = errors.New(r.Status) // its answer had not begun
			}
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
// requests are on their way that are looked into. Once all of them go with the phase,
// and once the next phase allows other requests to their host.
func closing(ctx context.Context, o options, _ *fixture, r *report) error {
	for _, c := range []struct {
		what string
		more []plan.EgressRule
	}{
		{what: "all are cut"},
		{"their requests are cut, the host stays", []plan.EgressRule{{Phase: plan.Runtime, Pattern: boundName, Methods: []string{http.MethodGet}, Paths: []string{"/other/**"}}}},
	} {
		s, err := closings(ctx, o.rounds, c.more)
		if err != nil {
			return err
		}
		r.add(line{what: fmt.Sprintf("closing the install phase with %d open connections, %d looked into: %s", closedFlows, closedLooked, c.what),
			ours: times(s) + ", at most " + show(slices.Max(s.walls())), peer: "–", bar: "≤ " + show(mostClosing), ok: verdict(slices.Max(s.walls()) <= mostClosing)})
	}
	return nil
}

// closings measures one closing a round. more is what policy says of the host that is
// looked into besides.
func closings(ctx context.Context, rounds int, more []plan.EgressRule) (s series, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
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
		return nil, err
	}
	defer os.RemoveAll(dir)
	h, err := newHeld(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer h.server.Close()
	log, err := audit.Open(filepath.Join(dir, "policy.jsonl"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	g, err := newGuest(ctx, plan.EgressRule{Phase: plan.Install, Pattern: bulkName}, l.Addr().String(),
		control.Config{Log: log.Write, Leaf: h.leaf, Roots: h.roots, Routes: []plan.Route{{Name: boundName, Addr: h.server.Listener.Addr().String()}}},
		append(more, plan.EgressRule{Phase: plan.Install, Pattern: boundName, Methods: []string{http.MethodGet}, Paths: []string{"/ok/**"}})...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	bound, err := resolveIn(ctx, g.ns, boundName)
	if err != nil {
		return nil, err
	}
	for range rounds {
		g.boundary.SetPhase(plan.Install)
		o, err := h.open(ctx, g, bound)
		if err != nil {
			return nil, err
		}
		// Clients and hosts are this process too. What they did to come here is over.
		runtime.GC()
		time.Sleep(settling)
		t := time.Now()
		g.boundary.SetPhase(plan.Runtime)
		s = append(s, sample{wall: time.Since(t)})
		if err := o.gone(ctx, g); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// opened is what is open in a phase.
type opened struct {
	conns    []net.Conn
	clients  []*http.Client
	requests int
	ends     chan error // of the requests
}

// open opens closedFlows connections through the boundary of g, those that are looked
// into to bound, which is h.
func (h *held) open(ctx context.Context, g *guest, bound netip.Addr) (*opened, error) {
	o := &opened{conns: make([]net.Conn, closedFlows-closedLooked), ends: make(chan error, 2*closedLooked)}
	if err := onThread(g.ns, func() (err error) {
		for i := range o.conns {
			if o.conns[i], err = net.DialTimeout("tcp4", g.at(80), 5*time.Second); err != nil {
				return err
			}
			if err := ping(o.conns[i]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for i := range closedLooked {
		http2, requests := i%2 == 0, 1
		if http2 {
			requests = 2
		}
		c := h.client(func() (net.Conn, error) {
			return dialIn(ctx, g.ns, "tcp4", netip.AddrPortFrom(bound, 443).String())
		}, http2)
		o.clients = append(o.clients, c)
		for range requests {
			if err := h.ask(c, fmt.Sprintf("/ok/%d", o.requests), o.ends); err != nil {
				return nil, err
			}
			o.requests++
		}
	}
	return o, nil
}

// gone fails unless all that was open has been cut, and waits until the boundary carries
// nothing: it looks into only so many at a time.
func (o *opened) gone(ctx context.Context, g *guest) error {
	for _, c := range o.conns {
		if ping(c) == nil {
			return errors.New("a connection of the closed phase is still open")
		}
		c.Close()
	}
	for range o.requests {
		if <-o.ends == nil {
			return errors.New("a request of the closed phase ended in order")
		}
	}
	for _, c := range o.clients {
		c.CloseIdleConnections()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for g.boundary.Flows() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d connections of the closed phase are carried yet", g.boundary.Flows())
		case <-time.After(time.Millisecond):
		}
	}
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
