package control_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestAHundredThousandConnections come from one sandbox, which keeps what it
// gets, while another goes on with its work.
func TestAHundredThousandConnections(t *testing.T) {
	n, limit := int64(100_000), 512
	if testing.Short() {
		n = 5000
	}
	at := serve(t, "tcp4", echo)
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	log, err := audit.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	g, other := newGuest(t), newGuest(t)
	x := start(t, g, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)},
		Limits: control.Limits{Flows: limit}, Log: log.Write})
	start(t, other, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}})
	a, err := g.resolve("echo.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	calm, err := other.dialName("ip4", "echo.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer calm.Close()

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var left, most atomic.Int64
	left.Store(n)
	var mu sync.Mutex
	var kept []net.Conn // guarded by mu
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			err := g.do(func() error {
				for left.Add(-1) >= 0 {
					c, err := net.Dial("tcp", netip.AddrPortFrom(a, 80).String())
					if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ECONNREFUSED) {
						continue
					}
					if err != nil {
						return err
					}
					most.Store(max(most.Load(), int64(x.Flows())))
					// Kept if it is one of those that are carried.
					c.SetDeadline(time.Now().Add(10 * time.Second))
					c.Write([]byte("x\n"))
					if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
						c.Close()
						continue
					}
					mu.Lock()
					kept = append(kept, c)
					mu.Unlock()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	slowest := time.Duration(0)
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		begun := time.Now()
		speak(t, calm)
		slowest = max(slowest, time.Since(begun))
		time.Sleep(time.Millisecond)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	t.Logf("%d were carried, %d at most; %d MiB more memory; the other sandbox waited %v at most", len(kept), most.Load(), grown>>20, slowest)
	if len(kept) > limit || most.Load() > int64(limit) {
		t.Errorf("more than %d are carried", limit)
	}
	if grown > 64<<20 {
		t.Errorf("%d MiB are held", grown>>20)
	}
	if slowest > 5*time.Second {
		t.Errorf("the other sandbox waited %v", slowest)
	}
	for _, c := range kept {
		c.Close()
	}
	x.Close()
	log.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	total, refused := int64(0), false
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, l := range lines {
		var d audit.Decision
		if err := json.Unmarshal([]byte(l), &d); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		total += int64(d.Count)
		refused = refused || strings.Contains(d.Why, "connections open, the most it may have")
	}
	// A client that was reset in the backlog was never accepted.
	if total > n || total < n*9/10 || !refused || len(lines) > 1000 {
		t.Errorf("%d lines stand for %d of %d connections", len(lines), total, n)
	}
}

// TestTooManyConnectionsToLookIntoAreReset since each can hold some megabytes.
func TestTooManyConnectionsToLookIntoAreReset(t *testing.T) {
	const limit = 8
	g := newGuest(t)
	log := newDecisions()
	at := serve(t, "tcp4", func(c net.Conn) { io.Copy(io.Discard, c) })
	b := start(t, g, control.Config{Log: log.log, Policy: boundTo(t, "look.example"), Leaf: noLeaf,
		Routes: []plan.Route{route("look.example", at)}, Limits: control.Limits{Inspected: limit}})
	var conns []net.Conn
	for range limit {
		c, err := g.dialName("ip4", "look.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	wait(t, "connections to be carried", func() bool { return b.Flows() == limit })
	if err := refused(g.dialName("ip4", "look.example", 80)); err != nil {
		t.Error(err)
	}
	log.wait(t, "the refusal", func(d audit.Decision) bool {
		return d.Verdict == audit.Deny && strings.Contains(d.Why, "the most that may be")
	})
	for _, c := range conns {
		c.Close()
	}
	wait(t, "connections to end", func() bool { return b.Flows() == 0 })
	c, err := g.dialName("ip4", "look.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "POST /x HTTP/1.1\r\nHost: look.example\r\n\r\n")
	b2 := make([]byte, 12)
	if _, err := io.ReadFull(c, b2); err != nil || string(b2) != "HTTP/1.1 403" {
		t.Errorf("after others have ended: %q, %v", b2, err)
	}
}

// boundTo allows GET requests at name and nothing else.
func boundTo(t *testing.T, name string) *egress.Policy {
	t.Helper()
	p, err := egress.New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: name, Allow: true, Methods: []string{http.MethodGet}, Source: "kit k"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func noLeaf(string) (*tls.Certificate, error) { return nil, errors.New("no certificate here") }
