package networkpolicy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

const v1, v2 = networkpolicy.Type, networkpolicy.TypeV2

func ExampleCovers() {
	c, err := networkpolicy.Decode(capability.Request{
		Type:   networkpolicy.TypeV2,
		Config: []byte(`{"runtime":{"allow":["api.example.com:443",{"hosts":["github.com"],"methods":["GET"]}]}}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	allowed := networkpolicy.AllowedHosts(c, phase.Runtime)
	fmt.Println(networkpolicy.Covers(allowed, "api.example.com"), networkpolicy.Covers(allowed, "github.com"), networkpolicy.Covers(allowed, "example.com"))
	// Output: true true false
}

func TestCheck(t *testing.T) {
	const at = "config.runtime.allow[0]"
	ct.Check(t, networkpolicy.Definition(), v2, []ct.Case{
		{Config: `{}`},
		{Config: `{"install":{},"runtime":{"allow":[],"deny":["t.example"]}}`},
		{Config: `{"runtime":{"allow":["**",{"hosts":["a.example"],"methods":["GET"]}]}}`},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example","10.0.0.0/8","[::1]:443"],"methods":["ANY"],"paths":["/v1/**"]}]}}`},
		{Config: `{"runtime":{"deny":[{"hosts":["*.example"],"methods":["DELETE"]}]}}`},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":[]}]}}`, Want: []string{at + ".methods"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["GET"],"paths":[]}]}}`, Want: []string{at + ".paths"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"paths":["/x"]}]}}`, Want: []string{at + ".paths"}},
		{Config: `{"runtime":{"allow":[{"hosts":[]}]}}`, Want: []string{at + ".hosts"}},
		{Config: `{"runtime":{"allow":[{"methods":["GET"]}]}}`, Want: []string{at + ".hosts"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["get"]}]}}`, Want: []string{at + ".methods"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["ANY","GET"]}]}}`, Want: []string{at + ".methods"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["GET"],"paths":["x"]}]}}`, Want: []string{at + ".paths"}},
		{Config: `{"runtime":{"allow":[{"hosts":["*.example"],"methods":["GET"]}]}}`, Want: []string{at + ".hosts"}},
		{Config: `{"runtime":{"allow":[{"hosts":["*.example"]}]}}`},
		{Config: `{"runtime":{"allow":["", "https://a.example", "a b"]}}`, Want: []string{at, "config.runtime.allow[1]", "config.runtime.allow[2]"}},
		{Config: `{"runtime":{"allow":[null]}}`, Want: []string{"config.runtime.allow"}},
		{Config: `{"runtime":null}`, Want: []string{"config.runtime"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"Methods":["GET"]}]}}`, Want: []string{"config"}},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"hosts":["b.example"]}]}}`, Want: []string{"config"}},
		{Config: `{"runtime":{"allow":[["a.example"]]}}`, Want: []string{"config"}},
		{Config: `{"runtime":{"allow":"a.example"}}`, Want: []string{"config"}},
		{Config: `{"startup":{}}`, Want: []string{"config"}},
		// Order of the fields, not of the text.
		{Config: `{"runtime":{"deny":[""],"allow":[""]},"install":{"deny":[""]}}`,
			Want: []string{"config.install.deny[0]", at, "config.runtime.deny[0]"}},
		// Presence does not wait for values.
		{Config: `{"runtime":{"allow":[{"hosts":["${{ kit.args.h }}"],"methods":[]}]}}`, Want: []string{at + ".methods"}},
		{Config: `{"runtime":{"allow":[{"hosts":["${{ kit.args.h }}"],"methods":["${{ kit.args.m }}"],"paths":["${{ kit.args.p }}"]}]}}`},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["${{ kit.args.m }}"]}]}}`, Form: capability.Effective, Want: []string{at + ".methods"}},
		{Config: `{"runtime":{"allow":["a.example"]}}`, Type: v1},
		{Config: `{"runtime":{"allow":[{"hosts":["a.example"]}]}}`, Type: v1, Want: []string{"config"}},
		{Config: `{"install":{"allow":[""]}}`, Type: v1, Want: []string{"config.install.allow[0]"}},
	})
}

func TestABareHostIsWrittenAsText(t *testing.T) {
	for _, tt := range []struct{ typ, in, want string }{
		{v1, `{"runtime":{"allow":["b","a"]}}`, `{"runtime":{"allow":["b","a"]}}`},
		{v2, `{"runtime":{"allow":["a",{"hosts":["b"]}]}}`, `{"runtime":{"allow":["a","b"]}}`},
		{v2, `{"runtime":{"allow":[{"methods":["GET"],"hosts":["b"]}]}}`, `{"runtime":{"allow":[{"hosts":["b"],"methods":["GET"]}]}}`},
		{v2, `{"runtime":{"deny":[{"hosts":["b","c"]}]}}`, `{"runtime":{"deny":[{"hosts":["b","c"]}]}}`},
	} {
		c, err := networkpolicy.Decode(ct.Request(tt.typ, tt.in))
		if err != nil {
			t.Error(err)
			continue
		}
		if r, err := c.Encode(); err != nil || string(r.Config) != tt.want {
			t.Errorf("%s became %s, %v; want %s", tt.in, r.Config, err, tt.want)
		}
	}
}

func TestEncodeRefusesAStatedNothing(t *testing.T) {
	c := networkpolicy.Config{Runtime: networkpolicy.Rules{Allow: []networkpolicy.Entry{{Hosts: []string{"a"}, Methods: []string{}}}}}
	if r, err := c.Encode(); err == nil {
		t.Errorf("encoded as %s", r.Config)
	}
}

func TestSurface(t *testing.T) {
	d := networkpolicy.Definition()
	ct.Lines(t, d, ct.Request(v1, `{"install":{"allow":["b.ex"]},"runtime":{"deny":["d.ex"]}}`),
		"networkInstallAllow b.ex", "networkInstallHTTPAllow ANY b.ex/**", "networkRuntimeDeny d.ex", "networkRuntimeHTTPDeny ANY d.ex/**")
	ct.Lines(t, d, ct.Request(v2, `{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["GET","HEAD"],"paths":["/p","/q"]}]}}`),
		"networkRuntimeHTTPAllow GET a.ex/p", "networkRuntimeHTTPAllow GET a.ex/q",
		"networkRuntimeHTTPAllow HEAD a.ex/p", "networkRuntimeHTTPAllow HEAD a.ex/q")
	ct.Lines(t, d, ct.Request(v2, `{"install":{"deny":[{"hosts":["a.ex"],"methods":["ANY"]}]}}`), "networkInstallHTTPDeny ANY a.ex/**")
}

func TestMerge(t *testing.T) {
	d := networkpolicy.Definition()
	merged := func(want string, cs ...capability.Contribution) {
		t.Helper()
		ct.Merged(t, d, capability.MergePublish, cs, []string{want})
	}
	merged(`network-policy@1 {"install":{"allow":["x"]},"runtime":{"allow":["a","b"],"deny":["t"]}}`,
		ct.From("a", v1, `{"runtime":{"allow":["a"]}}`), ct.From("b", v1, `{"install":{"allow":["x"]},"runtime":{"allow":["a","b"],"deny":["t"]}}`))
	merged(`network-policy@2 {"runtime":{"allow":["a","b"]}}`,
		ct.From("a", v1, `{"runtime":{"allow":["a"]}}`), ct.From("b", v2, `{"runtime":{"allow":["b"]}}`))
	merged(`network-policy@2 {"runtime":{"allow":[{"hosts":["b.ex"],"methods":["GET"]},"a.ex"]}}`,
		ct.From("a", v2, `{"runtime":{"allow":[{"hosts":["a.ex","b.ex"],"methods":["GET"]}]}}`), ct.From("b", v2, `{"runtime":{"allow":["a.ex"]}}`))
	merged(`network-policy@2 {"runtime":{"allow":["a.ex"]}}`,
		ct.From("a", v2, `{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["GET"]}]}}`), ct.From("b", v1, `{"runtime":{"allow":["a.ex"]}}`))
	// A comma inside a path separates nothing.
	merged(`network-policy@2 {"runtime":{"allow":[{"hosts":["a"],"methods":["GET"],"paths":["/p,/q"]},{"hosts":["a"],"methods":["GET"],"paths":["/p","/q"]}]}}`,
		ct.From("a", v2, `{"runtime":{"allow":[{"hosts":["a"],"methods":["GET"],"paths":["/p,/q"]}]}}`),
		ct.From("b", v2, `{"runtime":{"allow":[{"hosts":["a"],"methods":["GET"],"paths":["/p","/q"]}]}}`))
	// A wildcard swallows nothing, another phase neither, and a deny stays.
	merged(`network-policy@2 {"install":{"allow":["a.ex"]},"runtime":{"allow":["**",{"hosts":["a.ex"],"methods":["GET"]}],"deny":[{"hosts":["b"],"methods":["PUT"]},"b"]}}`,
		ct.From("a", v2, `{"install":{"allow":["a.ex"]},"runtime":{"allow":["**"],"deny":[{"hosts":["b"],"methods":["PUT"]}]}}`),
		ct.From("b", v2, `{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["GET"]}],"deny":["b"]}}`))
	merged(`network-policy@1 {"runtime":{"allow":["${{ kit.args.h }}","b"]}}`,
		ct.From("a", v1, `{"runtime":{"allow":["${{ kit.args.h }}"]}}`), ct.From("b", v1, `{"runtime":{"allow":["b"]}}`))

	out, _ := d.Merge(capability.MergeRuntime, []capability.Contribution{ct.Optional(ct.From("a", v1, `{}`)), ct.From("b", v2, `{}`)})
	if len(out) != 1 || out[0].Request.Optional || len(out[0].From) != 2 {
		t.Errorf("merged: %+v", out)
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		allowed, domain string
		want            bool
	}{
		{"api.example", "api.example", true},
		{"api.example:443", "api.example", true},
		{"api.example", "api.example:8443", true},
		{"API.example", "api.Example", true},
		{"*", "api.example", true},
		{"**", "api.example", true},
		{"*.example", "api.example", false},
		{"*.example", "*.example", true},
		{"example", "api.example", false},
		{"[::1]:443", "[::1]", true},
		{"::1", "::1", true},
		{"::1", "::2", false},
	} {
		if got := networkpolicy.Covers([]string{tt.allowed}, tt.domain); got != tt.want {
			t.Errorf("Covers(%q, %q) = %v", tt.allowed, tt.domain, got)
		}
	}
	c := networkpolicy.Config{Install: networkpolicy.Rules{Allow: []networkpolicy.Entry{{Hosts: []string{"i"}}}}}
	if got := networkpolicy.AllowedHosts(c, phase.Install); !slices.Equal(got, []string{"i"}) {
		t.Errorf("install hosts: %q", got)
	}
	if got := networkpolicy.AllowedHosts(c, phase.Runtime); got != nil {
		t.Errorf("runtime hosts: %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, networkpolicy.Definition(), networkpolicy.Decode, append(ct.Hostile,
		`{"install":{"allow":["packages.example.org"]},"runtime":{"allow":["api.example.com:443","*.example.net"],"deny":["t.example.com"]}}`,
		`{"runtime":{"allow":[{"hosts":["a"],"methods":["GET"],"paths":["/x/**"]},{"hosts":["b","c"]},{"hosts":["d"]}],"deny":[]}}`)...)
}
