package surface_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

const ns = "com.docker.sandbox/"

func requests(pairs ...string) []capability.Request {
	var rs []capability.Request
	for i := 0; i < len(pairs); i += 2 {
		r := capability.Request{Type: pairs[i]}
		if pairs[i+1] != "" {
			r.Config = []byte(pairs[i+1])
		}
		rs = append(rs, r)
	}
	return rs
}

func policy(config string) surface.Surface {
	return surface.Project(requests(ns+"network-policy@2", config))
}

func widenings(granted, candidate surface.Surface) string {
	var out []string
	for _, c := range surface.Diff(granted, candidate).Widenings {
		out = append(out, c.Category+"="+c.Detail)
	}
	return strings.Join(out, " ")
}

func TestNetworkWidenings(t *testing.T) {
	for _, c := range []struct{ granted, candidate, want string }{
		{`{"runtime":{"allow":["a.ex"]}}`, `{"runtime":{"allow":["a.ex:443"]}}`, ""},
		{`{"runtime":{"allow":["a.ex:443"]}}`, `{"runtime":{"allow":["a.ex"]}}`, "network.runtime.allow=a.ex"},
		{`{"runtime":{"allow":["*"]}}`, `{"runtime":{"allow":["b.ex",{"hosts":["c.ex"],"methods":["GET"]}]}}`, ""},
		{`{"runtime":{"allow":["a.ex"]}}`, `{"install":{"allow":["a.ex"]}}`, "network.install.allow=a.ex"},
		{`{"runtime":{"allow":["*.ex"]}}`, `{"runtime":{"allow":["a.ex"]}}`, "network.runtime.allow=a.ex"},
		{`{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["ANY"],"paths":["/p/**"]}]}}`,
			`{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["GET"],"paths":["/p/q/**","/pq"]}]}}`, "network.runtime.http.allow=GET a.ex/pq"},
		{`{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["GET","HEAD","POST"]}]}}`,
			`{"runtime":{"allow":[{"hosts":["a.ex"],"methods":["ANY"]}]}}`, "network.runtime.http.allow=ANY a.ex/**"},
		{`{"runtime":{"deny":["t.ex",{"hosts":["a.ex"],"methods":["DELETE"]}]}}`, `{"runtime":{"deny":["a.ex"]}}`, "network.runtime.deny-removed=t.ex"},
		{`{"runtime":{"deny":["t.ex"]}}`, `{"runtime":{"deny":[{"hosts":["t.ex"],"methods":["GET"]}]}}`, "network.runtime.deny-removed=t.ex"},
		{`{"runtime":{"deny":["t.ex"]}}`, `{"runtime":{"deny":["**"]}}`, ""},
		{`{"runtime":{"deny":[{"hosts":["t.ex"],"methods":["GET"]}]}}`, `{"runtime":{"deny":["x.ex"]}}`, "network.runtime.http.deny-removed=GET t.ex/**"},
	} {
		if got := widenings(policy(c.granted), policy(c.candidate)); got != c.want {
			t.Errorf("%s to %s widens %q, want %q", c.granted, c.candidate, got, c.want)
		}
	}
}

func TestOtherWidenings(t *testing.T) {
	for _, c := range []struct {
		granted, candidate []capability.Request
		want               string
	}{
		{requests(ns+"volume@1", `{"path":"/d"}`), requests(ns+"host-mount@1", `{"path":"/d"}`), "host-mount=/d"},
		{requests(ns+"volume@1", `{"path":"/d","size":"1g"}`), requests(ns+"volume@1", `{"path":"/x/../d","size":"9g","mode":"777"}`), ""},
		{requests(ns+"ssh-agent@1", `{"phase":"runtime","unrestricted":false,"sign":["git"]}`), requests(ns+"ssh-agent@1", `{"phase":"runtime"}`), "ssh-agent.runtime=unrestricted"},
		{requests(ns+"ssh-agent@1", `{"phase":"runtime","unrestricted":false,"authenticate":["u@f.ex"]}`), requests(ns+"ssh-agent@1", `{"phase":"runtime","unrestricted":false,"authenticate":["f.ex"]}`), "ssh-agent.runtime=authenticate f.ex"},
		{nil, requests(ns+"privileged@1", ""), "privileged=privileged"},
		{requests("x/y@1", `{"a":1}`), requests("x/y@1", `{"a":1.0}`), ""},
		{requests(ns+"agent-skills@1", `{"path":"/s"}`), requests(ns+"agent-skills@1", `{"path":"/s","mode":"readwrite"}`), "skills=/s (readwrite)"},
	} {
		if got := widenings(surface.Project(c.granted), surface.Project(c.candidate)); got != c.want {
			t.Errorf("%v to %v widens %q, want %q", c.granted, c.candidate, got, c.want)
		}
	}
	if got := widenings(surface.Project(requests("x/y@1", `{"a":1}`)), surface.Project(requests("x/y@1", `{"a":2}`))); !strings.HasPrefix(got, "services=x/y@1 sha256:") {
		t.Errorf("another config of an unknown type widens %q", got)
	}
}

func TestUndecodableConfigDoesNotVanish(t *testing.T) {
	s := surface.Project(requests(ns+"volume@1", `{"pfad":"/d"}`))
	if len(s.Services) != 1 || !strings.HasPrefix(s.Services[0], ns+"volume@1 sha256:") || len(s.StoragePaths) != 0 {
		t.Errorf("surface: %s", s.Canonical())
	}
}

func TestChangesNameTheKits(t *testing.T) {
	c := capability.Contribution{Kit: "a", Request: requests(ns+"network-policy@1", `{"runtime":{"allow":["a.ex","b.ex"]}}`)[0], From: []capability.Contribution{
		{Kit: "a", Request: requests(ns+"network-policy@1", `{"runtime":{"allow":["a.ex","b.ex"]}}`)[0]},
		{Kit: "b", Request: requests(ns+"network-policy@1", `{"runtime":{"allow":["b.ex"]}}`)[0]},
	}}
	changes := surface.Diff(surface.Surface{}, surface.ProjectKits([]capability.Contribution{c}))
	want := []surface.Change{{Category: "network.runtime.allow", Detail: "a.ex", Kits: []string{"a"}}, {Category: "network.runtime.allow", Detail: "b.ex", Kits: []string{"a", "b"}}}
	if !reflect.DeepEqual(changes.Widenings, want) || !changes.Widens() {
		t.Errorf("widenings: %+v", changes.Widenings)
	}
	back := surface.Diff(surface.ProjectKits([]capability.Contribution{c}), surface.Surface{})
	if back.Widens() || len(back.Narrowings) != 2 {
		t.Errorf("narrowing: %+v", back)
	}
}

func TestCanonicalHasNoOrder(t *testing.T) {
	a := surface.Project(requests(ns+"port@1", `{"container":80}`, "x/y@1", "", ns+"port@1", `{"container":53,"transport":"udp"}`))
	b := surface.Project(requests(ns+"port@1", `{"container":53,"transport":"udp"}`, "x/y@1", "", ns+"port@1", `{"container":80,"name":"n"}`))
	if !a.Equal(b) || a.Digest() != b.Digest() || string(a.Canonical()) != `{"ports":["53/udp","80/tcp"],"services":["x/y@1"]}` {
		t.Errorf("%s and %s", a.Canonical(), b.Canonical())
	}
	if got := string(surface.Surface{}.Canonical()); got != "{}" {
		t.Errorf("nothing is %s", got)
	}
}

// FuzzDiff says that nothing widens itself, and that what a candidate adds to a
// grant is never covered unless it is a network pattern or ssh host.
func FuzzDiff(f *testing.F) {
	f.Add(`{"runtime":{"allow":["a.ex"]}}`, `{"runtime":{"deny":["*"]}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		s, u := policy(a), policy(b)
		if surface.Diff(s, s).Widens() || surface.Diff(u, u).Widens() {
			t.Fatalf("%s widens itself", s.Canonical())
		}
		forth, back := surface.Diff(s, u), surface.Diff(u, s)
		if len(forth.Widenings) != len(back.Narrowings) || len(forth.Narrowings) != len(back.Widenings) {
			t.Fatalf("%+v is not the mirror of %+v", forth, back)
		}
	})
}
