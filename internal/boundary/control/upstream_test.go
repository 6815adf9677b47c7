package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestNamesBehindAProxyAreResolvedThereAndDecidedHere(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	var mu sync.Mutex
	asked := map[string]int{}
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		mu.Lock()
		asked["lookup "+name]++
		mu.Unlock()
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	through := func(host string, port uint16) proxy.Way {
		if host == "inside.example" {
			return proxy.Way{} // reached without
		}
		return proxy.Way{Name: "http://proxy.example:3128", Dial: func(ctx context.Context) (net.Conn, error) {
			mu.Lock()
			asked["proxy "+host]++
			mu.Unlock()
			if host == "gone.example" {
				return nil, errors.New("the proxy http://proxy.example:3128 refuses gone.example:7: 503 None")
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at.String())
		}}
	}
	b := start(t, g, control.Config{Log: log.log, Lookup: lookup, Upstream: through,
		Policy: policy(t, "runtime allow *.example:7", "runtime deny never.example", "runtime allow 192.0.2.5:7"),
		Routes: []plan.Route{route("routed.example", at)}})
	ask := func(name string) (string, error) {
		c, err := g.dialName("ip4", name, 7)
		if err != nil {
			return "", err
		}
		defer c.Close()
		io.WriteString(c, "hello")
		c.(*net.TCPConn).CloseWrite()
		return read(c)
	}
	for _, name := range []string{"far.example", "routed.example"} {
		if got, err := ask(name); got != "hello" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	d := log.wait(t, "the connection", func(d audit.Decision) bool { return d.Kind == audit.Connect && d.Host == "far.example" })
	if d.Verdict != audit.Allow || !strings.Contains(d.Why, "through the proxy http://proxy.example:3128") || d.Rule != "*.example:7" {
		t.Errorf("logged %+v", d)
	}
	// An address that a rule spells goes the same way, after it was judged.
	c, err := g.dial("tcp", "192.0.2.5:7")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	log.wait(t, "the address", func(d audit.Decision) bool {
		return d.Host == "192.0.2.5" && d.Verdict == audit.Allow && strings.Contains(d.Why, "proxy")
	})
	// What is reached directly is judged by its addresses as ever.
	if err := refused(g.dialName("ip4", "inside.example", 7)); err != nil {
		t.Error(err)
	}
	d = log.wait(t, "the direct one", func(d audit.Decision) bool { return d.Host == "inside.example" && d.Kind == audit.Connect })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "127.0.0.1") {
		t.Errorf("logged %+v", d)
	}
	if got, _ := ask("gone.example"); got != "" {
		t.Errorf("what the proxy refuses was carried: %q", got)
	}
	d = log.wait(t, "the refusal of the proxy", func(d audit.Decision) bool { return d.Host == "gone.example" && d.Kind == audit.Connect })
	if d.Verdict != audit.Failed || !strings.Contains(d.Why, "503") {
		t.Errorf("logged %+v", d)
	}
	// The proxy is asked for nothing that policy does not allow.
	for _, name := range []string{"never.example", "other.test"} {
		if got, _ := ask(name); got != "" {
			t.Errorf("%s was reached: %q", name, got)
		}
	}
	if err := refused(g.dial("tcp", "192.0.2.6:7")); err != nil {
		t.Error(err)
	}
	mu.Lock()
	for _, what := range []string{"proxy never.example", "proxy other.test", "proxy routed.example", "proxy inside.example", "proxy 192.0.2.6", "lookup far.example", "lookup gone.example"} {
		if asked[what] > 0 {
			t.Errorf("%s: asked %d times", what, asked[what])
		}
	}
	mu.Unlock()

	// A connection through a proxy ends with its rule like any other.
	live, err := g.dialName("ip4", "far.example", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	one := make([]byte, 1)
	io.WriteString(live, "x")
	if _, err := io.ReadFull(live, one); err != nil {
		t.Fatal(err)
	}
	b.SetPolicy(policy(t))
	if got, err := read(live); err == nil {
		t.Errorf("after its rule was taken away: %q", got)
	}
}
