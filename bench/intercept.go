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
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/ca"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	boundName = "bound.example"
	clients   = 8
	leastRate = 5000                   // small requests a second
	mostAdded = 500 * time.Microsecond // to a request, in the middle
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
	return nil
}
