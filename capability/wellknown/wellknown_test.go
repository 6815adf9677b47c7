package wellknown_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// names are the types that the specification knows. A type that is missing from
// the list would be opaque: never judged, and gone from the permission surface.
var names = strings.Fields(`acp@1 agent-context@1 agent-interactive-sessions@1 agent-sessions@1 agent-skill@1 agent-skills@1
	credential@1 docker-auth@1 dockerd@1 git-identity@1 host-mount@1 host-port@1 kit-registry@1 lifecycle@1 long-running@1
	network-policy@1 network-policy@2 port@1 privileged@1 resources@1 sbx@1 ssh-agent@1 usb-device@1 volume@1`)

// singletons may stand once in a declaration block (§7.1).
var singletons = strings.Fields(`network-policy@1 network-policy@2 resources@1 privileged@1 kit-registry@1 agent-sessions@1
	agent-interactive-sessions@1 lifecycle@1 sbx@1 long-running@1 git-identity@1 dockerd@1`)

func TestEveryTypeIsListedAndFound(t *testing.T) {
	var got []string
	for _, d := range wellknown.Definitions() {
		for _, typ := range d.Types {
			name := strings.TrimPrefix(typ, capability.Namespace+"/")
			got = append(got, name)
			if !capability.ValidType(typ) {
				t.Errorf("%s is not a type name", typ)
			}
			found, ok := wellknown.Find(typ)
			if !ok || !slices.Equal(found.Types, d.Types) {
				t.Errorf("Find(%s) = %v, %v", typ, found.Types, ok)
			}
			if singleton := slices.Contains(singletons, name); singleton != (d.Arity == capability.Singleton) {
				t.Errorf("%s: arity %v", name, d.Arity)
			}
			if d.Inspect == nil || d.Merge == nil || d.Schema == nil || len(d.Schema(typ)) == 0 {
				t.Errorf("%s: its definition has holes", name)
			}
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("types %q\nwant %q", got, names)
	}
	for _, unknown := range []string{"", "com.docker.sandbox/volume@2", "com.docker.runtime/volume@1", "volume@1"} {
		if _, ok := wellknown.Find(unknown); ok {
			t.Errorf("Find(%q) found something", unknown)
		}
	}
}

func TestServicesAreListedByType(t *testing.T) {
	for _, d := range wellknown.Definitions() {
		var services []string
		for _, l := range d.Surface(ct.Request(d.Types[0], "")) {
			if l.List == capability.ListServices {
				services = append(services, l.Value)
			}
		}
		if d.Service != slices.Equal(services, d.Types) {
			t.Errorf("%s: Service is %v, lines %q", d.Types[0], d.Service, services)
		}
	}
}

func TestNoGrammarChokes(t *testing.T) {
	for _, d := range wellknown.Definitions() {
		for _, typ := range d.Types {
			for _, config := range append(ct.Hostile, ct.Deep...) {
				r := ct.Request(typ, config)
				d.Check(r, capability.Authored)
				d.Claims(r)
				d.Surface(r)
				d.Merge(capability.MergePublish, []capability.Contribution{{Kit: "a", Request: r}, {Kit: "b", Request: r}})
			}
			if out, conflicts := d.Merge(capability.MergeRuntime, nil); len(out) != 0 || len(conflicts) != 0 {
				t.Errorf("%s: merging nothing gives %v, %v", typ, out, conflicts)
			}
		}
	}
}
