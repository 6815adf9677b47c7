package egress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// parse makes rules of lines like "runtime deny *.example.com kit a".
func parse(lines ...string) []plan.EgressRule {
	var rules []plan.EgressRule
	for _, l := range lines {
		f := strings.SplitN(l, " ", 4)
		if len(f) < 4 {
			f = append(f, "kit test")
		}
		rules = append(rules, plan.EgressRule{Phase: plan.Phase(f[0]), Allow: f[1] == "allow", Pattern: f[2], Source: f[3]})
	}
	return rules
}

func must(t testing.TB, lines ...string) *Policy {
	t.Helper()
	p, err := New(parse(lines...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tcp(host string, port uint16) Request {
	return Request{Phase: plan.Runtime, Host: host, Port: port, Protocol: TCP}
}

func TestDecide(t *testing.T) {
	tests := []struct {
		rules string // separated by semicolons, of the runtime phase
		host  string
		port  uint16
		allow bool
		rule  string
	}{
		{"", "example.com", 443, false, ""},
		{"allow example.com", "example.com", 443, true, "example.com"},
		{"allow example.com", "EXAMPLE.com.", 443, true, "example.com"},
		{"allow Example.COM.", "example.com", 1, true, "Example.COM."},
		{"allow example.com", "example.com..", 443, false, ""},
		{"allow example.com", "www.example.com", 443, false, ""},
		{"allow example.com", "notexample.com", 443, false, ""},
		{"allow example.com", "example.com", 0, false, ""},
		{"allow example.com:443", "example.com", 443, true, "example.com:443"},
		{"allow example.com:443", "example.com", 80, false, ""},
		{"allow *.example.com", "a.example.com", 80, true, "*.example.com"},
		{"allow *.example.com", "example.com", 80, false, ""},
		{"allow *.example.com", "a.b.example.com", 80, false, ""},
		{"allow *.example.com", "aexample.com", 80, false, ""},
		{"allow *.example.com:80", "a.example.com", 81, false, ""},
		{"allow **.example.com", "a.b.example.com", 80, true, "**.example.com"},
		{"allow **.example.com", "a.example.com", 80, true, "**.example.com"},
		{"allow **.example.com", "example.com", 80, false, ""},
		{"allow *", "anything.example", 80, true, "*"},
		{"allow **", "localhost", 80, true, "**"},
		{"allow *:443", "anything.example", 443, true, "*:443"},
		{"allow *:443", "anything.example", 80, false, ""},
		{"allow bücher.example", "xn--bcher-kva.example", 80, true, "bücher.example"},
		{"allow xn--bcher-kva.example", "BÜCHER.example", 80, true, "xn--bcher-kva.example"},
		{"allow *.bücher.example", "a.xn--bcher-kva.example", 80, true, "*.bücher.example"},
		{"allow _a.example", "_a.example", 80, true, "_a.example"},
		// A full stop of another script is a dot, in a rule and in a name.
		{"allow example.com", "example。com", 80, true, "example.com"},

		// Denials win, whatever the order and the width.
		{"allow *;deny example.com", "example.com", 80, false, "example.com"},
		{"deny example.com;allow *", "example.com", 80, false, "example.com"},
		{"deny *;allow example.com", "example.com", 80, false, "*"},
		{"allow example.com;deny *.com", "example.com", 80, false, "*.com"},
		{"allow example.com;deny example.com:80", "example.com", 80, false, "example.com:80"},
		{"allow example.com;deny example.com:80", "example.com", 443, true, "example.com"},
		{"allow a.example.com;deny **.example.com", "a.example.com", 80, false, "**.example.com"},
		{"allow a.example.com;deny *.Example.Com.", "A.example.com", 80, false, "*.Example.Com."},
		{"allow 192.0.2.1;deny *", "192.0.2.1", 80, false, "*"},
		{"allow 192.0.2.1;deny 192.0.2.0/24", "192.0.2.1", 80, false, "192.0.2.0/24"},

		// Addresses need a rule that spells them, and have many spellings.
		{"allow *", "93.184.216.34", 80, false, ""},
		{"allow **", "2606:4700::1", 80, false, ""},
		{"allow 93.184.216.34", "93.184.216.34", 80, true, "93.184.216.34"},
		{"allow 93.184.216.34:80", "93.184.216.34", 81, false, ""},
		{"allow 93.184.216.34", "::ffff:93.184.216.34", 80, true, "93.184.216.34"},
		{"allow ::ffff:93.184.216.34", "93.184.216.34", 80, true, "::ffff:93.184.216.34"},
		{"allow 93.184.216.34", "0x5db8d822", 80, true, "93.184.216.34"},
		{"allow 93.184.216.34", "1572395042", 80, true, "93.184.216.34"},
		{"allow 93.184.216.34", "0135.0270.0330.042", 80, true, "93.184.216.34"},
		{"allow 93.184.216.34", "93.184.55330", 80, true, "93.184.216.34"},
		{"allow *;deny 127.0.0.1", "127.1", 80, false, "127.0.0.1"},
		{"allow 93.184.216.34", "93.184.216.34.", 80, true, "93.184.216.34"},
		{"allow [2606:4700::1]:443", "2606:4700:0:0::0001", 443, true, "[2606:4700::1]:443"},
		{"allow [2606:4700::1]:443", "[2606:4700::1]", 443, true, "[2606:4700::1]:443"},
		{"allow 2606:4700::1", "2606:4700::1", 443, true, "2606:4700::1"},
		{"allow 2606:4700::/32", "2606:4700::1", 443, true, "2606:4700::/32"},
		{"allow [2606:4700::/32]:443", "2606:4700::1", 80, false, ""},
		{"allow 93.184.0.0/16:443", "93.184.216.34", 443, true, "93.184.0.0/16:443"},
		{"allow 93.184.216.34/16", "93.184.1.1", 443, true, "93.184.216.34/16"},
		{"allow ::ffff:93.184.0.0/112", "93.184.216.34", 443, true, "::ffff:93.184.0.0/112"},
		{"allow 0.0.0.0/0", "93.184.216.34", 443, true, "0.0.0.0/0"},
		{"allow ::/0", "93.184.216.34", 443, false, ""},
		{"allow fe80::1%eth0", "", 0, false, "invalid"},

		// What is not public is opened by spelling it, and some of it by the
		// operator alone.
		{"allow 0.0.0.0/0", "10.0.0.1", 80, false, ""},
		{"allow 10.0.0.1", "10.0.0.1", 80, false, ""},
		{"allow 10.0.0.0/8", "10.0.0.1", 80, false, ""},
		{"allow 172.16.0.0/12", "172.20.1.1", 80, false, ""},
		{"allow 192.168.1.1:80", "192.168.1.1", 80, false, ""},
		{"allow 10.0.0.1 operator", "10.0.0.1", 80, true, "10.0.0.1"},
		{"allow 10.0.0.0/8 operator", "10.0.0.1", 80, true, "10.0.0.0/8"},
		{"allow 8.0.0.0/5", "10.0.0.1", 80, false, ""},
		{"allow 192.0.2.10:1234", "192.0.2.10", 1234, true, "192.0.2.10:1234"},
		{"allow 127.0.0.1", "127.0.0.1", 80, false, ""},
		{"allow 127.0.0.1 operator", "127.0.0.1", 80, true, "127.0.0.1"},
		{"allow 127.0.0.0/8 operator", "127.0.0.1", 80, true, "127.0.0.0/8"},
		{"allow 0.0.0.0/0 operator", "127.0.0.1", 80, false, ""},
		{"allow 169.254.169.254", "169.254.169.254", 80, false, ""},
		{"allow 169.254.169.254 operator", "169.254.169.254", 80, true, "169.254.169.254"},
		{"allow 168.63.129.16", "168.63.129.16", 80, false, ""},
		{"allow fd00:ec2::254", "fd00:ec2::254", 80, false, ""},
		{"allow fd12::/16", "fd12::1", 80, false, ""},
		{"allow fd12::/16 operator", "fd12::1", 80, true, "fd12::/16"},
		{"allow 100.64.0.0/10", "100.100.1.1", 80, false, ""},
		{"allow 100.64.0.0/10 operator", "100.100.1.1", 80, true, "100.64.0.0/10"},
		{"allow 100.64.0.0/10 operator", "100.100.100.200", 80, false, ""},
		{"allow 224.0.0.1 operator", "224.0.0.1", 80, false, ""},
		{"allow 0.0.0.0 operator", "0.0.0.0", 80, false, ""},
		{"allow 64:ff9b::/96", "64:ff9b::5db8:d822", 80, true, "64:ff9b::/96"},
		{"allow 64:ff9b::/96 operator", "64:ff9b::a00:1", 80, false, ""},
		{"allow 64:ff9b::a00:1 operator", "64:ff9b::a00:1", 80, true, "64:ff9b::a00:1"},
		{"allow 2002::/16", "2002:7f00:1::", 80, false, ""},

		// What is no host is refused, with a reason.
		{"allow *", "", 80, false, ""},
		{"allow *", "a..b", 80, false, ""},
		{"allow *", "a b", 80, false, ""},
		{"allow *", "a/b", 80, false, ""},
		{"allow *", "a\x00b", 80, false, ""},
		{"allow *", "example.com:80", 80, false, ""},
		{"allow *", "[example.com]", 80, false, ""},
		{"allow *", "1.2.3.4.5", 80, false, ""},
		{"allow *", "example.1", 80, false, ""},
		{"allow *", "256.256.256.256", 80, false, ""},
		{"allow *", strings.Repeat("a", 64) + ".example", 80, false, ""},
		{"allow *", strings.Repeat("a.", 127) + "aa", 80, false, ""},
		{"allow *", strings.Repeat("a.", 126) + "a", 80, true, "*"},
	}
	for _, tt := range tests {
		var lines []string
		for _, l := range strings.Split(tt.rules, ";") {
			if l != "" {
				lines = append(lines, "runtime "+l)
			}
		}
		p, err := New(parse(lines...))
		if tt.rule == "invalid" {
			if err == nil {
				t.Errorf("%q is accepted", tt.rules)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.rules, err)
			continue
		}
		v := p.Decide(tcp(tt.host, tt.port))
		if v.Allow != tt.allow || v.Rule != tt.rule || v.Why == "" {
			t.Errorf("%q: Decide(%q, %d) = %+v, want allow %v by %q", tt.rules, tt.host, tt.port, v, tt.allow, tt.rule)
		}
		if v.Rule != "" && v.Source == "" {
			t.Errorf("%q: Decide(%q, %d) names no source", tt.rules, tt.host, tt.port)
		}
		if v := p.Decide(Request{Phase: plan.Runtime, Host: tt.host, Port: tt.port, Protocol: UDP}); v.Allow || v.Why == "" {
			t.Errorf("%q: udp to %q: %+v", tt.rules, tt.host, v)
		}
		if v := p.Decide(Request{Phase: plan.Install, Host: tt.host, Port: tt.port, Protocol: TCP}); v.Allow || v.Why == "" {
			t.Errorf("%q: another phase: %+v", tt.rules, v)
		}
	}
}

func TestZeroDenies(t *testing.T) {
	var none *Policy
	for _, p := range []*Policy{none, {}, must(t)} {
		for _, proto := range []Protocol{TCP, TLS, UDP, DNS, ""} {
			if v := p.Decide(Request{Phase: plan.Runtime, Host: "example.com", Port: 443, Protocol: proto}); v.Allow || v.Why == "" {
				t.Errorf("%s: %+v", proto, v)
			}
		}
		if v := p.DecideAddr(tcp("example.com", 443), netip.MustParseAddr("10.0.0.1"), false); v.Allow {
			t.Errorf("an empty policy allows a private address: %+v", v)
		}
		if p.Rules() != nil {
			t.Errorf("Rules = %v", p.Rules())
		}
	}
	if (Verdict{}).Allow {
		t.Error("the zero verdict allows")
	}
	if v := must(t, "runtime allow *").Decide(Request{Phase: plan.Runtime, Host: "example.com", Port: 443}); v.Allow {
		t.Errorf("no protocol: %+v", v)
	}
}

func TestDecideAddr(t *testing.T) {
	p := must(t, "runtime allow *", "runtime allow 10.0.0.0/8 operator", "runtime allow 172.16.0.0/12", "runtime allow 192.168.1.2 operator", "runtime allow 192.168.0.0/16 operator",
		"runtime allow 127.0.0.1", "runtime allow 93.184.216.0/24", "runtime deny 93.184.216.99", "runtime deny [2606:4700::/32]:25")
	for _, tt := range []struct {
		addr  string
		own   bool
		port  uint16
		allow bool
	}{
		{"93.184.216.34", false, 80, true},
		{"93.184.216.99", false, 80, false},
		{"::ffff:93.184.216.99", false, 80, false},
		{"2606:4700::1", false, 80, true},
		{"2606:4700::1", false, 25, false},
		{"10.1.2.3", false, 80, true},
		{"10.1.2.3", true, 80, false},
		{"192.168.1.2", true, 80, true},
		{"192.168.1.3", false, 80, true},
		{"192.168.1.3", true, 80, false},
		{"93.184.216.34", true, 80, false},
		{"127.0.0.1", false, 80, false},
		{"127.0.0.1", true, 80, false},
		{"172.16.0.1", false, 80, false},
		{"fe80::1", false, 80, false},
		{"fe80::1%eth0", false, 80, false},
		{"198.18.0.1", false, 80, false},
		{"100.64.0.1", false, 80, false},
		{"255.255.255.255", false, 80, false},
		{"ff02::1", false, 80, false},
		{"::", false, 80, false},
		{"::10.0.0.1", false, 80, false},
		{"2002:0a00:0001::1", false, 80, false},
		{"64:ff9b::a00:1", false, 80, false},
		{"64:ff9b::5db8:d822", false, 80, true},
		{"2001:0:4136:e378:8000:63bf:3fff:fdd2", false, 80, false},
	} {
		v := p.DecideAddr(tcp("example.com", tt.port), netip.MustParseAddr(tt.addr), tt.own)
		if v.Allow != tt.allow || v.Why == "" {
			t.Errorf("DecideAddr(%s, own %v) = %+v, want %v", tt.addr, tt.own, v, tt.allow)
		}
	}
}

func TestCouldAllow(t *testing.T) {
	p := must(t, "install allow pkg.example", "runtime allow a.example:443", "runtime allow b.example", "runtime deny b.example:80",
		"runtime allow c.example:80", "runtime deny c.example:80", "runtime allow *.d.example", "runtime deny x.d.example")
	for host, want := range map[string]bool{
		"pkg.example": false, "a.example": true, "A.EXAMPLE.": true, "b.example": true, "c.example": false,
		"y.d.example": true, "x.d.example": false, "d.example": false, "e.example": false, "": false,
	} {
		v := p.CouldAllow(plan.Runtime, host)
		if v.Allow != want || v.Why == "" {
			t.Errorf("CouldAllow(%q) = %+v, want %v", host, v, want)
		}
		if d := p.Decide(Request{Phase: plan.Runtime, Host: host, Protocol: DNS}); d != v {
			t.Errorf("Decide for dns says %+v, CouldAllow %+v", d, v)
		}
	}
	if !p.CouldAllow(plan.Install, "pkg.example").Allow {
		t.Error("the install phase lost its name")
	}
}

func TestEveryBadRuleIsNamed(t *testing.T) {
	bad := []string{"", ":443", "a..b", "a.*.b", "*a.example", "foo*", "***", "*.", "**.", "*.*", "example.com:", "example.com:0", "example.com:65536",
		"example.com:http", "example.com:+80", "example.com:080", "*.10.0.0.1", "10.0.0.0/33", "10.0.0.0/", "/8", "example.com/24", "[::1", "::1]", "[example.com]:80",
		"::ffff:0:0/90", "fe80::1%1", "http://example.com", "example.com/path", "a b", "exa\x00mple", "1.2.3.4.5"}
	var rules []plan.EgressRule
	for _, s := range bad {
		if err := CheckRule(plan.EgressRule{Pattern: s}); err == nil {
			t.Errorf("pattern %q is accepted", s)
		}
		rules = append(rules, plan.EgressRule{Phase: plan.Runtime, Pattern: s, Allow: true, Source: "kit bad"})
	}
	rules = append(rules, plan.EgressRule{Phase: "later", Pattern: "example.com", Source: "kit bad"})
	p, err := New(rules)
	if p != nil || !errors.Is(err, kiterr.ErrRefused) {
		t.Fatalf("New = %v, %v", p, err)
	}
	if n := strings.Count(err.Error(), "egress rule "); n != len(rules) {
		t.Errorf("%d of %d bad rules are named: %v", n, len(rules), err)
	}
}

func TestWhyHelps(t *testing.T) {
	p := must(t, "runtime allow a.example:443", "runtime allow a.example:22", "runtime allow *:9")
	for req, want := range map[Request]string{
		tcp("a.example", 80):    "only port 9, 22, 443",
		tcp("c.example", 80):    "only port 9",
		tcp("93.184.216.34", 9): "* covers names, not addresses",
		{Phase: plan.Install, Host: "x", Port: 80, Protocol: TCP}: "no install rule allows x:80",
		{Phase: plan.Runtime, Host: "x.test", Protocol: DNS}:      "allowed by *:9",
	} {
		if v := p.Decide(req); !strings.Contains(v.Why, want) {
			t.Errorf("Why of %+v is %q, want %q in it", req, v.Why, want)
		}
	}
}

// Hosts and patterns that meet often.
var (
	someHosts = []string{"example.com", "a.example.com", "b.a.example.com", "example.org", "localhost", "10.0.0.1", "10.0.0.2",
		"93.184.216.34", "::1", "fd00::1", "127.0.0.1", "2606:4700::1"}
	somePatterns = []string{"example.com", "*.example.com", "**.example.com", "*", "**", "example.com:443", "*:80", "*.com", "a.example.com:80",
		"10.0.0.0/8", "10.0.0.1:80", "0.0.0.0/0", "::/0", "fd00::/8", "127.0.0.1", "93.184.216.34", "[::1]:443"}
	somePorts = []uint16{80, 443, 7}
)

func randomRules(r *rand.Rand) []plan.EgressRule {
	rules := make([]plan.EgressRule, r.IntN(8))
	for i := range rules {
		rules[i] = randomRule(r)
	}
	return rules
}

func randomRule(r *rand.Rand) plan.EgressRule {
	return plan.EgressRule{
		Phase:   []plan.Phase{plan.Install, plan.Runtime, plan.Runtime}[r.IntN(3)],
		Pattern: somePatterns[r.IntN(len(somePatterns))],
		Allow:   r.IntN(3) > 0,
		Source:  []string{"operator", "kit a"}[r.IntN(2)],
	}
}

// A trial is one question: whether host may be reached, and if addr is not
// empty, whether it may be at that address.
type trial struct {
	Request
	addr netip.Addr
	own  bool
}

var trials = func() (all []trial) {
	for _, phase := range []plan.Phase{plan.Install, plan.Runtime} {
		for _, host := range someHosts {
			for _, port := range somePorts {
				req := Request{Phase: phase, Host: host, Port: port, Protocol: TCP}
				all = append(all, trial{Request: req})
				for _, addr := range someHosts[5:] {
					all = append(all, trial{req, netip.MustParseAddr(addr), false}, trial{req, netip.MustParseAddr(addr), true})
				}
			}
		}
	}
	return all
}()

// allowed answers every trial.
func allowed(t *testing.T, rules []plan.EgressRule) []bool {
	t.Helper()
	p, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]bool, len(trials))
	could := map[Request]bool{}
	for i, x := range trials {
		if x.addr.IsValid() {
			got[i] = p.DecideAddr(x.Request, x.addr, x.own).Allow
			continue
		}
		got[i] = p.Decide(x.Request).Allow
		// 7 stands for all ports that no rule mentions.
		name := Request{Phase: x.Phase, Host: x.Host}
		could[name] = could[name] || got[i]
	}
	for name, want := range could {
		if c := p.CouldAllow(name.Phase, name.Host).Allow; c != want {
			t.Fatalf("CouldAllow(%s, %s) = %v, but some port is %v; rules %+v", name.Phase, name.Host, c, want, rules)
		}
	}
	return got
}

func TestProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		rules := randomRules(r)
		base := allowed(t, rules)

		shuffled := slices.Clone(rules)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i, v := range allowed(t, shuffled) {
			if v != base[i] {
				t.Fatalf("order matters for %+v: %+v", trials[i], rules)
			}
		}

		more := randomRule(r)
		more.Allow = false
		for i, v := range allowed(t, append(slices.Clone(rules), more)) {
			if v && !base[i] {
				t.Fatalf("the denial %+v allowed %+v: %+v", more, trials[i], rules)
			}
		}
		more.Allow = true
		for i, v := range allowed(t, append(slices.Clone(rules), more)) {
			if !v && base[i] {
				t.Fatalf("the allowance %+v denied %+v: %+v", more, trials[i], rules)
			}
		}
	}
}

func FuzzNew(f *testing.F) {
	for _, s := range somePatterns {
		f.Add(s, "example.com", uint16(443))
	}
	f.Fuzz(func(t *testing.T, pattern, host string, port uint16) {
		rule := plan.EgressRule{Phase: plan.Runtime, Pattern: pattern, Allow: true, Source: "kit a"}
		p, err := New([]plan.EgressRule{rule})
		if err != nil {
			return
		}
		v := p.Decide(tcp(host, port))
		if v.Why == "" || v.Allow && v.Rule != pattern {
			t.Fatalf("rule %q, %q:%d: %+v", pattern, host, port, v)
		}
		if v.Allow && !p.CouldAllow(plan.Runtime, host).Allow {
			t.Fatalf("rule %q allows %q:%d, but its name does not resolve", pattern, host, port)
		}
		rule.Allow = false
		denied, err := New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: pattern, Allow: true}, rule})
		if err != nil {
			t.Fatal(err)
		}
		if v := denied.Decide(tcp(host, port)); v.Allow {
			t.Fatalf("rule %q is denied and allowed, and %q:%d is allowed", pattern, host, port)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	var lines []string
	for i := range 200 {
		lines = append(lines, fmt.Sprintf("runtime allow host%d.example.com:443", i), fmt.Sprintf("runtime deny *.bad%d.example", i))
	}
	p := must(b, append(lines, "runtime allow *.cdn.example", "runtime allow 10.0.0.0/8")...)
	for name, req := range map[string]Request{
		"exact":    tcp("host150.example.com", 443),
		"wildcard": tcp("a.cdn.example", 443),
		"address":  tcp("10.1.2.3", 443),
		"refused":  tcp("nowhere.example.net", 443),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(req)
			}
		})
	}
}

func TestCoversNeverSaysMoreThanMatching(t *testing.T) {
	for _, c := range []struct {
		wide, narrow string
		want         bool
	}{
		{"a.example", "A.example.", true},
		{"a.example", "a.example:443", true},
		{"a.example:443", "a.example", false},
		{"a.example:443", "a.example:443", true},
		{"a.example:443", "a.example:80", false},
		{"*.example", "a.example", true},
		{"*.example", "example", false},
		{"*.example", "a.b.example", false},
		{"*.example", "*.example:22", true},
		{"*.example", "**.example", false},
		{"**.example", "a.b.example", true},
		{"**.example", "*.b.example", true},
		{"**.example", "example", false},
		{"**", "**.example", true},
		{"*", "**", true},
		{"**.example", "**", false},
		{"**", "192.0.2.1", false},
		{"192.0.2.0/24", "192.0.2.1:80", true},
		{"192.0.2.1", "192.0.2.0/24", false},
		{"0.0.0.0/0", "::1", false},
		{"a..b", "a.example", false},
		{"a.example", "a..b", false},
	} {
		if got := Covers(c.wide, c.narrow); got != c.want {
			t.Errorf("Covers(%q, %q) = %v", c.wide, c.narrow, got)
		}
	}
}
