package egress

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func bounded(allow bool, pattern, methods, paths string) plan.EgressRule {
	return plan.EgressRule{Phase: plan.Runtime, Pattern: pattern, Allow: allow, Methods: strings.Fields(methods), Paths: strings.Fields(paths), Source: "kit k"}
}

func policyOf(t testing.TB, rules ...plan.EgressRule) *Policy {
	t.Helper()
	p, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func at(host string) Request {
	return Request{Phase: plan.Runtime, Host: host, Port: 443, Protocol: TCP}
}

func TestABoundedHostAdmitsItsRequestsAndNothingElse(t *testing.T) {
	p := policyOf(t,
		bounded(true, "api.example", "GET HEAD", "/repos/**"),
		bounded(true, "api.example", "POST", "/repos/*/issues"),
		bounded(false, "api.example", "GET", "/repos/secret/**"),
		bounded(true, "any.example", "ANY", "/v1/**"),
		bounded(true, "every.example", "GET", ""),
		bounded(true, "both.example", "GET", ""), bounded(true, "both.example", "", ""),
		bounded(true, "free.example", "", ""), bounded(false, "free.example", "DELETE", ""),
		bounded(true, "gone.example", "GET", ""), bounded(false, "gone.example", "", ""),
		bounded(true, "*.wide.example", "", ""), bounded(false, "**.wide.example", "ANY", "/admin/**"),
		bounded(true, "port.example:443", "GET", ""),
	)
	for _, c := range []struct {
		request string
		allow   bool
	}{
		{"GET api.example /repos/x", true},
		{"HEAD api.example /repos/x/y", true},
		{"GET API.example. /repos/x", true},
		{"GET api.example /repos/", true},
		{"GET api.example /repos", false},
		{"GET api.example /other", false},
		{"GET api.example /", false},
		{"PUT api.example /repos/x", false},
		{"get api.example /repos/x", false},
		{"POST api.example /repos/x/issues", true},
		{"POST api.example /repos/x/y/issues", false},
		{"GET api.example /repos/secret/x", false},
		{"HEAD api.example /repos/secret/x", true},
		{"GET api.example /repos/secret;p=1/x", false},
		{"GET api.example /%72epos/x", true},
		{"GET api.example /repos/%73ecret/x", false},
		{"GET api.example /repos/../x", false},
		{"GET api.example /repos//x", false},
		{"GET api.example /repos/x/..;/y", false},
		{"GET api.example /repos%2fx", false},
		{`GET api.example /repos\x`, false},
		{"FROB any.example /v1/x", true},
		{"FROB any.example /v2/x", false},
		{"GET every.example /whatever/it/is", true},
		{"POST every.example /", false},
		{"POST both.example /", true},
		{"GET both.example //odd", true}, // nothing is bounded there
		{"GET free.example /", true},
		{"DELETE free.example /", false},
		{"delete free.example /", false},
		{"GET gone.example /", false},
		{"GET a.wide.example /x", true},
		{"GET a.wide.example /admin/x", false},
		{"GET port.example /", true},
		{"GET nowhere.example /", false},
	} {
		f := strings.Fields(c.request)
		v := p.DecideRequest(at(f[1]), f[0], f[2])
		if v.Allow != c.allow || v.Why == "" {
			t.Errorf("%s: %+v", c.request, v)
		}
	}
	r := at("port.example")
	if r.Port = 80; p.Decide(r).Allow {
		t.Error("a bounded rule for one port opens another")
	}
}

// TestADenialCoversWhatSomeServersTakeForItsPaths: to refuse too much is a mistake
// that is seen, and to allow it would be none. Allowances stay as strict as they are.
func TestADenialCoversWhatSomeServersTakeForItsPaths(t *testing.T) {
	p := policyOf(t, bounded(true, "a.example", "", ""),
		bounded(false, "a.example", "ANY", "/admin /admin/** /Mixed/Case/* /slash/ /only/below/**"),
		bounded(true, "b.example", "GET", "/ok /In/Case/* /slash/"))
	for path, allow := range map[string]bool{
		"/admin": false, "/admin/x": false, "/admin/": false, "/Admin": false, "/ADMIN/x": false, "/aDmin/": false,
		"/admin;p=1": false, "/Admin;p=1/": false, "/%41dmin/x": false, "/admi%6E/": false,
		"/mixed/case/x": false, "/MIXED/CASE/x/": false, "/Mixed/Case/x;y/": false,
		"/slash": false, "/Slash/": false, "/only/below/x": false, "/Only/Below/": false,
		"/only/below": true, "/administrator": true, "/x/admin": true, "/": true, "/mixed/case": true, "/mixed/case/x/y": true,
	} {
		if v := p.DecideRequest(at("a.example"), "GET", path); v.Allow != allow {
			t.Errorf("denied %s: %+v", path, v)
		}
	}
	for path, allow := range map[string]bool{
		"/ok": true, "/In/Case/x": true, "/slash/": true,
		"/OK": false, "/ok/": false, "/in/case/x": false, "/In/Case/x/": false, "/slash": false, "/ok;p=1": false,
	} {
		if v := p.DecideRequest(at("b.example"), "GET", path); v.Allow != allow {
			t.Errorf("allowed %s: %+v", path, v)
		}
	}
}

func TestInspectIsAskedForExactlyWhereRequestsAreBounded(t *testing.T) {
	private := bounded(true, "10.0.0.1", "GET", "")
	private.Source = "operator"
	p := policyOf(t,
		bounded(true, "bound.example", "GET", ""),
		bounded(true, "both.example", "GET", ""), bounded(true, "both.example", "", ""),
		bounded(true, "free.example", "", ""), bounded(false, "free.example", "DELETE", ""),
		bounded(true, "192.0.2.1", "GET", ""), private, bounded(true, "named.example", "", ""),
	)
	for host, want := range map[string][2]bool{"bound.example": {true, true}, "both.example": {true, false}, "free.example": {true, true}, "x.example": {false, false}, "192.0.2.1": {true, true}} {
		if v := p.Decide(at(host)); v.Allow != want[0] || v.Inspect != want[1] {
			t.Errorf("%s: %+v", host, v)
		}
	}
	if v := p.CouldAllow(plan.Runtime, "bound.example"); !v.Allow {
		t.Errorf("a bounded host does not resolve: %+v", v)
	}
	// What is opened for some requests to the address is not opened to a name
	// that resolves there.
	if v := p.DecideAddr(at("named.example"), netip.MustParseAddr("10.0.0.1"), false); v.Allow {
		t.Errorf("named: %+v", v)
	}
	if v := p.DecideAddr(at("10.0.0.1"), netip.MustParseAddr("10.0.0.1"), false); !v.Allow || !v.Inspect {
		t.Errorf("address: %+v", v)
	}
	if v := p.DecideRequest(at("10.0.0.1"), "GET", "/"); !v.Allow {
		t.Errorf("request to an address: %+v", v)
	}
	if v := p.DecideRequest(at("10.0.0.1"), "PUT", "/"); v.Allow {
		t.Errorf("request to an address: %+v", v)
	}
}

func TestTheRefusalOfARequestSaysWhatWouldPass(t *testing.T) {
	p := policyOf(t, bounded(true, "api.example", "GET HEAD", "/a/*"), bounded(true, "api.example", "POST", ""))
	v := p.DecideRequest(at("api.example"), "PUT", "/b")
	if want := "no runtime rule allows PUT api.example/b; there only GET,HEAD /a/*; POST"; v.Why != want {
		t.Errorf("why = %q, want %q", v.Why, want)
	}
	if v := p.DecideRequest(at("api.example"), "GET", "/a/x"); v.Rule != "api.example GET,HEAD /a/*" || v.Source != "kit k" {
		t.Errorf("%+v", v)
	}
}

func TestBoundsThatCannotHoldAreRefused(t *testing.T) {
	for _, r := range []plan.EgressRule{
		bounded(true, "*.example", "GET", ""),
		bounded(true, "**", "GET", "/x"),
		bounded(true, "192.0.2.0/24", "GET", ""),
		bounded(true, "a.example", "", "/x"),
		bounded(true, "a.example", "get", ""),
		bounded(true, "a.example", "GET ANY", ""),
		bounded(true, "a.example", "GET", "x"),
		bounded(true, "a.example", "GET", "/a/../b"),
		bounded(false, "a.example", "GET", "/a%2fb"),
		bounded(true, "a.example", "GET", "/a?b"),
	} {
		if _, err := New([]plan.EgressRule{r}); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := New([]plan.EgressRule{bounded(false, "**.example", "GET", "/a/**")}); err != nil {
		t.Errorf("a denial may be wide: %v", err)
	}
}

func FuzzDecodePath(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/a%20b", "/..", "/a/%2e%2e/b", "//", "/a;b/c", "/%", "/a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if plainPath(s) && strings.HasPrefix(s, "/") {
			if p, err := decodePath(s); err != nil || p != s {
				t.Fatalf("%q is not itself, but %q, %v", s, p, err)
			}
		}
		p, err := DecodePath(s)
		if err != nil {
			if p != "" {
				t.Fatalf("%q and %v", p, err)
			}
			return
		}
		if !strings.HasPrefix(p, "/") || strings.Contains(p, "//") || strings.Contains(p, `\`) || strings.Contains(p+"/", "/../") || strings.Contains(p+"/", "/./") {
			t.Fatalf("%q is read as %q", s, p)
		}
		if strings.Contains(s, "%") {
			return
		}
		if again, err := DecodePath(p); err != nil || again != p {
			t.Fatalf("%q, read again, is %q, %v", p, again, err)
		}
	})
}
