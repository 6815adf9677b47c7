package control_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestRulesThatChangeAllTheTime has clients of all kinds at work while several change
// the phase, the policy and the routes as fast as they can, and somebody closes the
// boundary beside them. Nobody waits for ever, a client that was cut learns of it, and
// nothing is left.
func TestRulesThatChangeAllTheTime(t *testing.T) {
	var began [4]atomic.Int64 // streams, upgrades, uploads, and what is not looked into
	i := inspect(t, "", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/ok/stream"):
			began[0].Add(1)
			for chunk := make([]byte, 4<<10); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
				http.NewResponseController(w).Flush()
			}
		case r.Header.Get("Upgrade") != "":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			began[1].Add(1)
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(c, rw)
		default:
			began[2].Add(1)
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Trailer", "X-End")
			io.WriteString(w, "read")
			w.Header().Set("X-End", "yes")
		}
	})
	at := serve(t, "tcp4", func(c net.Conn) {
		began[3].Add(1)
		io.Copy(struct{ io.Writer }{c}, c) // or package net keeps pipes
	})
	rules := func(phase plan.Phase, path string) (rs []plan.EgressRule) {
		return append(rs, plan.EgressRule{Phase: phase, Pattern: "example.com", Allow: true, Methods: []string{"GET", "POST"}, Paths: []string{path}, Source: "kit k"})
	}
	both, err := egress.New(append(append(rules(plan.Install, "/ok/**"), rules(plan.Runtime, "/other/**")...),
		plan.EgressRule{Phase: plan.Install, Pattern: "open.example", Allow: true, Source: "kit k"}))
	if err != nil {
		t.Fatal(err)
	}
	none := policyOf("runtime allow nothing.example")
	routes := []plan.Route{route("example.com", i.at), route("open.example", at)}
	files := openFiles(t)
	b, err := control.Start(t.Context(), control.Config{GuestNetNS: i.g.ns, Phase: plan.Install, Policy: both, Leaf: i.authority.Leaf, Roots: i.roots,
		Routes: routes})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// Once, since a lookup of package net goes on behind who gave it up.
	address := func(name string) string {
		a, err := i.g.resolve(name, "ip4")
		if err != nil {
			t.Fatal(err)
		}
		return a.String()
	}
	looked, open := address("example.com"), address("open.example")
	var over, changing sync.WaitGroup
	var done atomic.Bool
	var dials atomic.Int64
	var uses [6]atomic.Int64 // that ended, one way or another
	use := func(kind int, f func() error) {
		over.Go(func() {
			for !done.Load() {
				began := time.Now()
				if err := f(); time.Since(began) > 15*time.Second {
					t.Errorf("client %d was not told for %v: %v", kind, time.Since(began), err)
				}
				uses[kind].Add(1)
			}
		})
	}
	for range 2 {
		use(0, func() error {
			c, err := i.g.dial("tcp4", open+":80")
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			go pour(c, 64<<20)
			_, err = io.CopyN(io.Discard, c, 1<<30)
			return err
		})
		for kind, http2 := range []bool{false, true} {
			c := i.client(http2)
			tr := c.Transport.(*http.Transport)
			tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1) // which a transport waits for no more than it has to
				defer dials.Add(-1)
				return i.g.dial("tcp4", looked+":443")
			}
			use(1+kind, func() error {
				r, err := c.Get("https://example.com/ok/stream")
				if err != nil {
					return err
				}
				defer r.Body.Close()
				_, err = io.CopyN(io.Discard, r.Body, 1<<30)
				return err
			})
			use(3+kind, func() error {
				req, err := http.NewRequest(http.MethodPost, "https://example.com/ok/upload", io.LimitReader(endless{}, 8<<20))
				if err != nil {
					return err
				}
				if http2 {
					req.Header.Set("Expect", "100-continue")
				}
				r, err := c.Do(req)
				if err != nil {
					return err
				}
				defer r.Body.Close()
				_, err = io.Copy(io.Discard, r.Body)
				return err
			})
		}
		use(5, func() error {
			raw, err := i.g.dial("tcp4", looked+":443")
			if err != nil {
				return err
			}
			defer raw.Close()
			c := tls.Client(raw, &tls.Config{ServerName: "example.com", RootCAs: i.trusted})
			c.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprintf(c, "GET /ok/socket HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			r := bufio.NewReader(c)
			for {
				if _, err := r.ReadByte(); err != nil {
					return err
				}
			}
		})
	}
	for n := range 4 {
		changing.Go(func() {
			for k := 0; !done.Load(); k++ {
				switch n {
				case 0:
					b.SetPhase(plan.Runtime)
					b.SetPhase(plan.Install)
				case 1: // others come between
					for range 10 {
						b.SetPhase(plan.Runtime)
						b.SetPhase(plan.Install)
					}
				case 2:
					b.SetPolicy(none)
					b.SetPolicy(both)
				case 3:
					if err := b.SetRoutes(routes); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Duration(k) * 10 * time.Millisecond) // at last long enough to be used on a slow machine
			}
		})
	}
	time.Sleep(2 * time.Second)
	for what := range began {
		wait(t, "each kind to be served", func() bool { return began[what].Load() > 0 })
	}
	closed := make(chan struct{})
	go func() { b.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("Close does not return")
	}
	done.Store(true)
	changing.Wait()
	over.Wait()
	wait(t, "the last dials to end", func() bool { return dials.Load() == 0 })
	for kind := range uses {
		if n := uses[kind].Load(); n == 0 {
			t.Errorf("client %d has done nothing", kind)
		}
	}
	if n := b.Flows(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
	// Those of what listens in the test come a little later.
	wait(t, "descriptors to be closed", func() bool { return openFiles(t) <= files+4 })
}

// endless is a body.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
