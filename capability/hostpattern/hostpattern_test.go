package hostpattern_test

import (
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
