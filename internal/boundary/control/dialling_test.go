package control_test

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestADialIsOverWhenItsPhaseIs closes the phase of connections that are still being
// made, by a lookup and by a proxy that is spoken to meanwhile: when that returns,
// nothing is said any more. One that does not heed its end holds up nobody.
func TestADialIsOverWhenItsPhaseIs(t *testing.T) {
	const each = 20
	g := newGuest(t)
	var dialling, said atomic.Int64
	talk := func(ctx context.Context) error {
		dialling.Add(1)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
			said.Add(1)
		}
		said.Add(1) // its last words
		return ctx.Err()
	}
	deaf := make(chan struct{})
	b := start(t, g, control.Config{Phase: plan.Install,
		Policy: policy(t, "install allow lookup.example", "install allow proxy.example", "install allow deaf.example", "runtime allow other.example"),
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			if name == "lookup.example" {
				return nil, talk(ctx)
			}
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		},
		Upstream: func(host string, _ uint16) proxy.Way {
			switch host {
			case "proxy.example":
				return proxy.Way{Name: "http://proxy", Dial: func(ctx context.Context) (net.Conn, error) { return nil, talk(ctx) }}
			case "deaf.example":
				return proxy.Way{Name: "http://deaf", Dial: func(context.Context) (net.Conn, error) {
					dialling.Add(1)
					<-deaf
					return nil, net.ErrClosed
				}}
			}
			return proxy.Way{}
		}})
	defer close(deaf)
	connect := func(name string, n int) {
		t.Helper()
		was := dialling.Load()
		for range n {
			c, err := g.dialName("ip4", name, 443)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		wait(t, "dials", func() bool { return dialling.Load() == was+int64(n) })
	}
	for round := range 5 {
		connect("lookup.example", each)
		connect("proxy.example", each)
		b.SetPhase(plan.Runtime)
		n := said.Load()
		time.Sleep(20 * time.Millisecond)
		if m := said.Load(); m != n {
			t.Errorf("round %d: %d words more after the phase was closed", round, m-n)
		}
		b.SetPhase(plan.Install)
	}
	connect("deaf.example", 1)
	began := time.Now()
	b.SetPhase(plan.Runtime)
	if took := time.Since(began); took > time.Second {
		t.Errorf("a dial that does not end held it up for %v", took)
	}
}
