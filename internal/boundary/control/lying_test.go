package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestAResolverThatLies answers with a hundred thousand addresses: of this host,
// of networks that no name may lead to, and of machines that do not answer.
func TestAResolverThatLies(t *testing.T) {
	const many, clients = 100_000, 20
	var answer []netip.Addr
	for i := range many {
		switch i % 4 {
		case 0:
			answer = append(answer, netip.AddrFrom4([4]byte{127, byte(i >> 16), byte(i >> 8), byte(i)}))
		case 1:
			answer = append(answer, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		case 2:
			answer = append(answer, netip.AddrFrom16([16]byte{0xfd, 15: byte(i)}))
		case 3:
			answer = append(answer, netip.AddrFrom4([4]byte{8, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
	}
	var dialled, bad atomic.Int64
	log := newDecisions()
	g, other := newGuest(t), newGuest(t)
	at := serve(t, "tcp4", echo)
	start(t, g, control.Config{Log: log.log, Policy: policy(t, "runtime allow *.example"),
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if strings.HasPrefix(name, "inward.") {
				return answer[:3], nil
			}
			return answer, nil
		},
		Dial: func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
			dialled.Add(1)
			if !netip.MustParsePrefix("8.0.0.0/8").Contains(to.Addr()) {
				bad.Add(1)
			}
			return nil, errors.New("nobody is there")
		}})
	start(t, other, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}})
	calm, err := other.dialName("ip4", "echo.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer calm.Close()

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := g.dialName("ip4", "outward.example", 80)
			if err != nil {
				return // reset at once
			}
			defer c.Close()
			if b, _ := io.ReadAll(c); len(b) > 0 {
				t.Errorf("something answered: %q", b)
			}
		})
	}
	wg.Wait()
	speak(t, calm) // another sandbox goes on
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("%d MiB are held", grown>>20)
	}
	if n := dialled.Load(); n == 0 || n > clients*16 {
		t.Errorf("%d addresses were dialled for %d connections, at most 16 each may be", n, clients)
	}
	if n := bad.Load(); n > 0 {
		t.Errorf("%d addresses were dialled that no name may lead to", n)
	}
	log.wait(t, "the failure", func(d audit.Decision) bool { return d.Host == "outward.example" && d.Verdict == audit.Failed })

	// Where nothing is left to dial, that is a refusal, and says why.
	if err := refused(g.dialName("ip4", "inward.example", 80)); err != nil {
		t.Error(err)
	}
	d := log.wait(t, "the refusal", func(d audit.Decision) bool { return d.Host == "inward.example" && d.Kind == audit.Connect })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "inward.example resolves to 127.0.0.0") {
		t.Errorf("logged %+v", d)
	}
}
