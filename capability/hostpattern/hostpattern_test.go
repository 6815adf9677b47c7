package hostpattern_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
)

func TestFault(t *testing.T) {
	for _, h := range []string{"a", "a.example:443", "*.example", "*", "**", "10.0.0.0/8", "[::1]:80", "::1", "bücher.example"} {
		if fault := hostpattern.Fault(h); fault != "" {
			t.Errorf("%q %s", h, fault)
		}
	}
	for _, h := range []string{"", " ", "a b", "a\n", "https://a", "\x00", "\x7f"} {
		if hostpattern.Fault(h) == "" {
			t.Errorf("%q is accepted", h)
		}
	}
}

func TestWithoutPort(t *testing.T) {
	for h, want := range map[string]string{
		"a.example": "a.example", "a.example:443": "a.example", "*:80": "*", "[::1]:80": "[::1]", "[::1]": "[::1]", "::1": "::1", "fe80::1:80": "fe80::1:80",
		"a:": "a:", "a:x": "a:x", "[": "[", "[::1]80": "[::1]80", "": "",
	} {
		if got := hostpattern.WithoutPort(h); got != want {
			t.Errorf("WithoutPort(%q) = %q, want %q", h, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]hostpattern.Pattern{
		"API.example.com.":    {Scope: hostpattern.Exact, Name: "api.example.com"},
		"api.example.com:443": {Scope: hostpattern.Exact, Name: "api.example.com", Port: 443},
		"bücher.example":      {Scope: hostpattern.Exact, Name: "xn--bcher-kva.example"},
		"*.example.com":       {Scope: hostpattern.OneLabel, Name: "example.com"},
		"**.example.com:80":   {Scope: hostpattern.AnyLabel, Name: "example.com", Port: 80},
		"*":                   {Scope: hostpattern.Anything},
		"**:443":              {Scope: hostpattern.Anything, Port: 443},
		"0x7f.1":              {Scope: hostpattern.Network, Prefix: netip.MustParsePrefix("127.0.0.1/32")},
		"10.1.2.3/8":          {Scope: hostpattern.Network, Prefix: netip.MustParsePrefix("10.0.0.0/8")},
		"[::1]:80":            {Scope: hostpattern.Network, Prefix: netip.MustParsePrefix("::1/128"), Port: 80},
	} {
		if got, err := hostpattern.Parse(s); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "api..example.com:443", "api.example.com:443x", "*.*.example.com", "api,example.com", "api.example.com/", "*api.example.com", "api.*.com",
		"api.example.com:0", "api.example.com:65536", "api.example.com:", ":443", ".example.com", "*.", "*.10.0.0.1", "fe80::1%eth0", "1.2.3.4.5", "::ffff:10.0.0.0/80",
	} {
		if got, err := hostpattern.Parse(s); err == nil {
			t.Errorf("%q is %+v", s, got)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.com.", "bücher.example", "0x7f.1", "[::1]", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3.4.", "-a.b", "a。b", "xn--a", "ſ.example"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := hostpattern.ParseHost(s)
		if err != nil {
			return // refusing is always allowed
		}
		if h.Addr.IsValid() == (h.Name != "") {
			t.Fatalf("ParseHost(%q) = %+v", s, h)
		}
		again, err := hostpattern.ParseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("ParseHost(%q) = %q, which reads as %q, %v", s, h, again, err)
		}
		if strings.ContainsFunc(h.Name, func(r rune) bool { return r >= 0x80 }) || strings.ToLower(h.Name) != h.Name || len(h.Name) > 253 {
			t.Fatalf("ParseHost(%q) = %q, not in its one spelling", s, h.Name)
		}
	})
}
