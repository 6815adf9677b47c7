package control_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// looked are three ways to one origin: directly, through a plain reverse proxy
// of the standard library, and through a boundary that looks into requests.
type looked struct {
	direct, peer, boundary, http2 *http.Client
}

func newLooked(b *testing.B, h http.HandlerFunc) *looked {
	i := inspect(b, "", h)
	log, err := audit.Open(filepath.Join(b.TempDir(), "policy.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { log.Close() })
	p, err := egress.New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: "example.com", Allow: true, Methods: []string{"GET"}, Paths: []string{"/ok/**"}, Source: "kit k"}})
	if err != nil {
		b.Fatal(err)
	}
	start(b, i.g, control.Config{Log: log.Write, Policy: p, Leaf: i.authority.Leaf, Roots: i.roots, Routes: []plan.Route{route("example.com", i.at)}})
	leaf, err := i.authority.Leaf("example.com")
	if err != nil {
		b.Fatal(err)
	}
	// The peer verifies and keeps connections as the boundary does.
	target := &url.URL{Scheme: "https", Host: i.at.String()}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: i.roots, ServerName: "example.com"}, MaxIdleConnsPerHost: 64, DisableCompression: true},
	}
	peer := httptest.NewUnstartedServer(proxy)
	peer.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	peer.StartTLS()
	b.Cleanup(peer.Close)
	i.trusted.AddCert(i.certificate) // of the way that leads directly to it
	at, err := i.g.resolve("example.com", "ip4")
	if err != nil {
		b.Fatal(err)
	}
	client := func(dial func(ctx context.Context) (net.Conn, error)) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: i.trusted, ServerName: "example.com"}, MaxIdleConnsPerHost: 64, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
		b.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	plain := func(addr string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }
	}
	through := func(context.Context) (net.Conn, error) { return i.g.dial("tcp", netip.AddrPortFrom(at, 443).String()) }
	http2 := client(through)
	http2.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	return &looked{http2: http2, direct: client(plain(i.at.String())), peer: client(plain(peer.Listener.Addr().String())),
		boundary: client(through)}
}

func fetch(c *http.Client, path string) error {
	r, err := c.Get("https://example.com" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", r.Status)
	}
	return nil
}

// BenchmarkLookedIntoRequests is small requests over eight connections that stay
// open. Client, boundary and origin share the machine.
func BenchmarkLookedIntoRequests(b *testing.B) {
	l := newLooked(b, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "small") })
	for _, side := range []struct {
		name string
		c    *http.Client
	}{{"direct", l.direct}, {"peer", l.peer}, {"boundary", l.boundary}, {"boundary-http2", l.http2}} {
		b.Run(side.name, func(b *testing.B) {
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			used := cpuTime()
			for range 8 {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := fetch(side.c, "/ok/x"); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
			b.ReportMetric(float64((cpuTime()-used).Microseconds())/float64(b.N), "cpu-µs/req")
		})
	}
}

// BenchmarkLookedIntoLatency is one request at a time.
func BenchmarkLookedIntoLatency(b *testing.B) {
	l := newLooked(b, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "small") })
	for _, side := range []struct {
		name string
		c    *http.Client
	}{{"direct", l.direct}, {"peer", l.peer}, {"boundary", l.boundary}} {
		b.Run(side.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				t := time.Now()
				if err := fetch(side.c, "/ok/x"); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(t))
			}
			sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
		})
	}
}

// BenchmarkLookedIntoDownload is one large answer.
func BenchmarkLookedIntoDownload(b *testing.B) {
	const size = 256 << 20
	l := newLooked(b, func(w http.ResponseWriter, _ *http.Request) { pour(w, size) })
	for _, side := range []struct {
		name string
		c    *http.Client
	}{{"direct", l.direct}, {"peer", l.peer}, {"boundary", l.boundary}} {
		b.Run(side.name, func(b *testing.B) {
			b.SetBytes(size)
			used, n := cpuTime(), 0
			for b.Loop() {
				if err := fetch(side.c, "/ok/x"); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric((cpuTime()-used).Seconds()*1000/float64(n), "cpu-ms")
		})
	}
}

// BenchmarkClosingThePhase cuts what the install phase had open.
func BenchmarkClosingThePhase(b *testing.B) {
	const flows = 500
	g := newGuest(b)
	at := serve(b, "tcp4", func(c net.Conn) { io.Copy(c, c) })
	log, err := audit.Open(filepath.Join(b.TempDir(), "policy.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	x := start(b, g, control.Config{Phase: plan.Install, Log: log.Write, Policy: policy(b, "install allow open.example"), Routes: []plan.Route{route("open.example", at)}})
	a, err := g.resolve("open.example", "ip4")
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		x.SetPhase(plan.Install)
		conns := make([]net.Conn, flows)
		err := g.do(func() (err error) {
			for i := range conns {
				if conns[i], err = net.Dial("tcp", netip.AddrPortFrom(a, 80).String()); err != nil {
					return err
				}
				conns[i].Write([]byte{1})
				if _, err := io.ReadFull(conns[i], make([]byte, 1)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		t, used := time.Now(), cpuTime()
		x.SetPhase(plan.Runtime)
		took = append(took, time.Since(t))
		cpu += cpuTime() - used
		b.StopTimer()
		if n := x.Flows(); n > 0 {
			b.Fatalf("%d flows are left", n)
		}
		for _, c := range conns {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				b.Fatal("a byte came through")
			}
			c.Close()
		}
		b.StartTimer()
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(cpu.Seconds()*1000/float64(len(took)), "cpu-ms")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds())/1000, "ms-p90")
}

// BenchmarkClosingWhatIsLookedInto cuts requests that are on their way: with their
// hosts, or alone.
func BenchmarkClosingWhatIsLookedInto(b *testing.B) {
	for name, lines := range map[string][]string{
		"hosts":    {"install allow example.com GET /ok/**"},
		"requests": {"install allow example.com GET /ok/**", "runtime allow example.com GET /other"},
	} {
		b.Run(name, func(b *testing.B) { benchmarkClosing(b, lines) })
	}
}

func benchmarkClosing(b *testing.B, lines []string) {
	const each, streams = 120, 2 // connections of either kind, and requests on one of HTTP/2
	begun := make(chan struct{}, each*(streams+1))
	i := inspect(b, "", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		<-r.Context().Done()
	})
	log, err := audit.Open(filepath.Join(b.TempDir(), "policy.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	var rules []plan.EgressRule
	for _, l := range lines {
		f := strings.Fields(l)
		rules = append(rules, plan.EgressRule{Phase: plan.Phase(f[0]), Pattern: f[2], Allow: true, Methods: []string{f[3]}, Paths: []string{f[4]}, Source: "kit k"})
	}
	p, err := egress.New(rules)
	if err != nil {
		b.Fatal(err)
	}
	x := start(b, i.g, control.Config{Phase: plan.Install, Log: log.Write, Policy: p, Leaf: i.authority.Leaf, Roots: i.roots, Routes: []plan.Route{route("example.com", i.at)}})
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		x.SetPhase(plan.Install)
		requests, ends := 0, make(chan error, each*(streams+1))
		var clients []*http.Client
		for n := range 2 * each {
			c := i.client(n >= each)
			clients = append(clients, c)
			for range map[bool]int{false: 1, true: streams}[n >= each] {
				requests++
				go func() { ends <- fetch(c, "/ok/x") }()
				select {
				case <-begun:
				case err := <-ends:
					b.Fatal(err)
				}
			}
		}
		b.StartTimer()
		t := time.Now()
		x.SetPhase(plan.Runtime)
		took = append(took, time.Since(t))
		b.StopTimer()
		for range requests {
			if <-ends == nil {
				b.Fatal("a request outlived its phase")
			}
		}
		for _, c := range clients {
			c.CloseIdleConnections()
		}
		for x.Flows() > 0 {
			time.Sleep(time.Millisecond)
		}
		b.StartTimer()
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-max")
}
