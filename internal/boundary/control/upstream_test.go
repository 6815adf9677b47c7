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
	"time"

	"golang.org/x/sys/unix"

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
		if name == "inside.example" {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
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
	for _, what := range []string{"proxy never.example", "proxy other.test", "proxy routed.example", "proxy inside.example", "proxy 192.0.2.6"} {
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

// TestAProxyIsNotLedIntoItsOwnNetwork has names whose owner lets them resolve to
// what only the proxy of the host's network can reach.
func TestAProxyIsNotLedIntoItsOwnNetwork(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	addrs := func(texts ...string) (as []netip.Addr) {
		for _, s := range texts {
			as = append(as, netip.MustParseAddr(s))
		}
		return as
	}
	zone := map[string][]netip.Addr{
		"good.example":     addrs("93.184.216.34", "2606:2800:220::1"),
		"meta.example":     addrs("169.254.169.254"),
		"private.example":  addrs("10.1.2.3"),
		"mixed.example":    addrs("93.184.216.34", "10.1.2.3"),
		"mapped.example":   addrs("::ffff:10.1.2.3"),
		"loopback.example": addrs("::1"),
		"granted.example":  addrs("10.9.9.9"),
		"denied.example":   addrs("198.41.0.4"),
	}
	for range 40 {
		zone["many.example"] = append(zone["many.example"], netip.MustParseAddr("93.184.216.34"))
	}
	zone["many.example"] = append(zone["many.example"], netip.MustParseAddr("10.1.2.3"))
	lookups := make(chan string, 100)
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		lookups <- name
		if as := zone[name]; as != nil {
			return as, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	asked := make(chan string, 100)
	through := func(host string, port uint16) proxy.Way {
		return proxy.Way{Name: "http://proxy.example:3128", Dial: func(ctx context.Context) (net.Conn, error) {
			asked <- host
			return new(net.Dialer).DialContext(ctx, "tcp", at.String())
		}}
	}
	rules := []string{"runtime allow *.example:7", "runtime allow 10.9.9.9:7 operator"}
	b := start(t, g, control.Config{Log: log.log, Lookup: lookup, Upstream: through, Policy: policy(t, rules...)})
	ask := func(name string) string {
		c, err := g.dialName("ip4", name, 7)
		if err != nil {
			return ""
		}
		defer c.Close()
		io.WriteString(c, "hello")
		c.(*net.TCPConn).CloseWrite()
		got, _ := read(c)
		return got
	}
	decided := func(name, verdict, why string) {
		t.Helper()
		log.wait(t, name, func(d audit.Decision) bool {
			return d.Kind == audit.Connect && d.Host == name && d.Verdict == verdict && strings.Contains(d.Why, why)
		})
	}
	for _, name := range []string{"good.example", "granted.example", "denied.example", "unknown.example", "unknown.example"} {
		if got := ask(name); got != "hello" {
			t.Errorf("%s: %q", name, got)
		}
	}
	decided("good.example", audit.Allow, "through the proxy")
	decided("unknown.example", audit.Allow, "its addresses are not judged")
	for name, why := range map[string]string{"meta.example": "169.254.169.254", "private.example": "10.1.2.3", "mixed.example": "10.1.2.3",
		"mapped.example": "10.1.2.3", "loopback.example": "::1", "many.example": "10.1.2.3"} {
		if got := ask(name); got != "" {
			t.Errorf("%s was carried: %q", name, got)
		}
		decided(name, audit.Deny, name+" resolves to "+why)
	}

	// A denial of addresses that comes later cuts what it is about, and what
	// nobody can tell about.
	hold := func(name string) net.Conn {
		c, err := g.dialName("ip4", name, 7)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	good, denied, unknown := hold("good.example"), hold("denied.example"), hold("unknown.example")
	b.SetPolicy(policy(t, append(rules, "runtime deny 198.41.0.0/24 operator")...))
	for name, c := range map[string]net.Conn{"denied.example": denied, "unknown.example": unknown} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s after the denial: %v", name, err)
		}
		if got := ask(name); got != "" {
			t.Errorf("%s was carried: %q", name, got)
		}
	}
	decided("unknown.example", audit.Deny, "does not resolve here, so it cannot be told whether what the proxy http://proxy.example:3128 connects to is denied by 198.41.0.0/24")
	io.WriteString(good, "y")
	if _, err := io.ReadFull(good, make([]byte, 1)); err != nil {
		t.Errorf("good.example after the denial: %v", err)
	}
	close(asked)
	for host := range asked {
		switch host {
		case "good.example", "granted.example", "denied.example", "unknown.example":
		default:
			t.Errorf("the proxy was asked for %s", host)
		}
	}
	close(lookups)
	n := 0
	for name := range lookups {
		if name == "unknown.example" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("a name that does not resolve was looked up %d times in a moment", n)
	}
}
