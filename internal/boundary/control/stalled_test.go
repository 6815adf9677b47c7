package control_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// gated is a connection whose reads wait while it is shut.
type gated struct {
	net.Conn
	shut  atomic.Bool
	over  chan struct{}
	close sync.Once
}

func (g *gated) Read(p []byte) (int, error) {
	if g.shut.Load() {
		<-g.over
		return 0, net.ErrClosed
	}
	return g.Conn.Read(p)
}

func (g *gated) Close() error {
	g.close.Do(func() { close(g.over) })
	return g.Conn.Close()
}

// TestAClientThatReadsNothingHoldsUpNoCut closes a phase in which clients have
// asked for bodies that never end, and most do not read them. Only their requests
// are cut: the host is allowed in both phases, its credential is not.
func TestAClientThatReadsNothingHoldsUpNoCut(t *testing.T) {
	const each = 7
	var poured [2]atomic.Int64 // of what is read, and of what is not
	i, b, log := keyedBoth(t, new(setter), func(w http.ResponseWriter, r *http.Request) {
		n := &poured[0]
		if strings.HasPrefix(r.URL.Path, "/unread") {
			n = &poured[1]
		}
		for chunk := make([]byte, 16<<10); ; n.Add(int64(len(chunk))) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	// held makes clients of three kinds: of HTTP/1.1, of HTTP/2 with a window
	// that is soon full, and of HTTP/2 on a connection that is not read at all.
	held := func(path string) (bodies []io.ReadCloser) {
		t.Helper()
		for kind := range 3 {
			c := i.client(kind > 0)
			tr := c.Transport.(*http.Transport)
			tr.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
			gates := make(chan *gated, each)
			if kind == 2 {
				tr.HTTP2.MaxReceiveBufferPerStream = 512 << 20
				dial := tr.DialContext
				tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					g := &gated{Conn: conn, over: make(chan struct{})}
					gates <- g
					return g, err
				}
			}
			c.Timeout = 0
			for n := range each {
				r, err := c.Get(fmt.Sprintf("https://key.example%s/%d/%d", path, kind, n))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { r.Body.Close() })
				bodies = append(bodies, r.Body)
			}
			if kind == 2 && path == "/unread" {
				(<-gates).shut.Store(true)
			}
		}
		return bodies
	}
	shut := func(readers []io.ReadCloser) time.Duration {
		t.Helper()
		var over sync.WaitGroup
		for _, body := range readers {
			over.Go(func() {
				if _, err := io.Copy(io.Discard, body); err == nil {
					t.Error("a body that was cut ended in order")
				}
			})
		}
		began := time.Now()
		b.SetPhase(plan.Runtime)
		took := time.Since(began)
		over.Wait()
		return took
	}
	control := shut(held("/read"))

	b.SetPhase(plan.Install)
	held("/unread")
	for last := int64(-1); last != poured[1].Load(); time.Sleep(200 * time.Millisecond) {
		last = poured[1].Load()
	}
	r, err := i.client(false).Get("https://key.example/read/alone")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	stalled := shut([]io.ReadCloser{r.Body})
	t.Logf("closing took %v, and %v with clients that read", stalled, control)
	// What is not heeded is given up after a few milliseconds; a second is what
	// a hook gets.
	if stalled > 10*control+250*time.Millisecond {
		t.Errorf("closing took %v with clients that read nothing, and %v with those that do", stalled, control)
	}
	for kind := range 3 {
		for n := range each {
			path := fmt.Sprintf("/unread/%d/%d", kind, n)
			log.wait(t, "the cut of "+path, func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Path == path })
		}
	}
	log.wait(t, "the cut of the one that was read", func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Path == "/read/alone" })
}
