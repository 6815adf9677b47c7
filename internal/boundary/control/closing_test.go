package control_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestClosingAPhaseCutsManyConnections has idle ones, ones that are busy both
// ways, ones on which nothing was said, and one that the next phase allows too.
func TestClosingAPhaseCutsManyConnections(t *testing.T) {
	const each, busy = 60, 30 // a multiple of three
	g := newGuest(t)
	var reset atomic.Int64
	at := serve(t, "tcp4", func(c net.Conn) {
		if _, err := io.Copy(c, c); errors.Is(err, unix.ECONNRESET) {
			reset.Add(1)
		}
	})
	log := newDecisions()
	b := start(t, g, control.Config{Phase: plan.Install, Log: log.log, Policy: policy(t, "install allow open.example", "install allow both.example", "runtime allow both.example"),
		Routes: []plan.Route{route("open.example", at), route("both.example", at)}})
	stays, err := g.dialName("ip4", "both.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	speak(t, stays)
	a, err := g.resolve("open.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	err = g.do(func() error {
		for i := range 3 * each {
			c, err := net.Dial("tcp", netip.AddrPortFrom(a, 80).String())
			if err != nil {
				return err
			}
			conns = append(conns, c)
			if i%3 == 0 {
				continue // says nothing
			}
			speak(t, c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(conns); i += busy {
		go pour(conns[i], 1<<40)
	}
	wait(t, "every connection to be carried", func() bool { return b.Flows() == 3*each+1 })

	b.SetPhase(plan.Runtime)
	if n := b.Flows(); n != 1 {
		t.Errorf("%d flows are carried, want the one that the phase allows", n)
	}
	cut := func(d audit.Decision) bool { return d.Kind == audit.Cut }
	if d := log.wait(t, "the cut", cut); d.Host != "open.example" || d.Count != 3*each {
		t.Errorf("the log says %+v", d)
	}
	speak(t, stays)
	for i, c := range conns {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := io.Copy(io.Discard, c)
		if err == nil && i%busy == 1 {
			// The kernel tells of a reset once, and the writer heard it.
			_, err = c.Write([]byte{1})
		}
		if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
			t.Fatalf("a connection of the closed phase: %v, want a reset", err)
		}
		c.Close()
	}
	wait(t, "servers to learn of it", func() bool { return reset.Load() >= 2*each })
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}
