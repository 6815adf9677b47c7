package egress_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
)

func TestMatcher(t *testing.T) {
	for pattern, cases := range map[string]map[string]bool{
		"API.example.com":     {"api.example.com": true, "example.com": false, "x.api.example.com": false, "xapi.example.com": false, "": false},
		"api.example.com:443": {"api.example.com": true},
		"api.example.com:444": {"api.example.com": false},
		"*.example.com":       {"a.example.com": true, "example.com": false, "a.b.example.com": false, "aexample.com": false, ".example.com": false},
		"**.example.com":      {"a.example.com": true, "a.b.example.com": true, "example.com": false, "badexample.com": false},
	} {
		m, err := egress.ParseMatcher(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
		for name, want := range cases {
			if got := m.Matches(name, 443); got != want {
				t.Errorf("%s covers %q: %v, want %v", pattern, name, got, want)
			}
		}
	}
	for _, pattern := range []string{"", "*", "**", "*:443", "192.0.2.1", "[::1]:443", "10.0.0.0/8", "a*.example", "0x7f.1"} {
		if _, err := egress.ParseMatcher(pattern); err == nil {
			t.Errorf("%q was accepted", pattern)
		}
	}
	if new(egress.Matcher).Matches("", 1) {
		t.Error("the zero value covers something")
	}
}
