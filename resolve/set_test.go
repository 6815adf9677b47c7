package resolve_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
)

func TestMergeSet(t *testing.T) {
	kits := []resolve.Kit{
		kit(t, "hub.example/tool:2", "mixin", `provides: [tool]
requires: ["base >= 1", "lib < 3"]
conflicts: [zed]
licenses: [MIT, Apache-2.0]
args: {where: {default: /t, pattern: "/.*"}, level: {default: low, env: LEVEL}}
capabilities:
  - {type: com.docker.sandbox/volume@1, config: {path: "${{ kit.args.where }}/cache"}}
  - group: {optional: true, capabilities: [{type: com.example/x@1, config: {at: "${{ kit.args.where }}"}}]}
`),
		kit(t, "hub.example/base:edge", "workload", `version: "1.5"
provides: [base]
licenses: [MIT]
capabilities: [{type: com.docker.sandbox/volume@1, optional: true, name: Data, config: {path: /d}}]
`),
	}
	set := kit(t, "", "set", `displayName: Team
version: "7"
provides: [team]
args: {w: {default: /w, pattern: "/.*"}}
kits:
  - ref: hub.example/tool:2
    args: {where: "${{ kit.args.w }}"}
  - ref: hub.example/base:edge
capabilities: [{type: com.docker.sandbox/volume@1, config: {path: /d}}]
`).Descriptor
	m, err := resolve.MergeSet(set, kits)
	if err != nil {
		t.Fatal(err)
	}
	d := m.Descriptor
	if d.Kind != spec.KindWorkload || d.DisplayName != "Team" || d.Version != "7" || len(d.Args) != 1 {
		t.Errorf("own fields: %+v", d)
	}
	for _, c := range []struct{ got, want []string }{
		{d.Provides, []string{"base@1.5", "tool@2", "team@7"}}, {d.Requires, []string{"lib < 3"}},
		{d.Conflicts, []string{"zed"}}, {d.Licenses, []string{"Apache-2.0", "MIT"}},
		{slices.Sorted(maps.Keys(m.Env)), []string{"LEVEL"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if got := refs(m.Layers); got != "hub.example/base:edge hub.example/tool:2" {
		t.Errorf("layers: %s", got)
	}
	if d.Kits[0].Digest != kits[0].Digest || set.Kits[0].Digest != "" {
		t.Errorf("kits: %+v", d.Kits)
	}
	b, err := d.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := spec.DecodePublished(b); err != nil {
		t.Errorf("the result is not a published descriptor: %v\n%s", err, b)
	}
	for _, part := range []string{
		`{"type":"com.docker.sandbox/volume@1","name":"Data","config":{"path":"/d"},"source":{"kit":"hub.example/base:edge","path":"capabilities[0]"}}`,
		`{"type":"com.example/x@1","config":{"at":"${{ kit.args.w }}"},"source":{"kit":"hub.example/tool:2","path":"capabilities[1].group.capabilities[0]"}}`,
		`"path":"${{ kit.args.w }}/cache"`,
	} {
		if !strings.Contains(string(b), part) {
			t.Errorf("%s\nlacks %s", b, part)
		}
	}
}

func TestMergeSetRefuses(t *testing.T) {
	for name, c := range map[string]struct{ a, set, part string }{
		"padded":          {"args: {x: {}}", "args: {y: {}}\nkits: [{ref: a, args: {x: \"${{ kit.args.y }} \"}}]", "whole value"},
		"undeclared":      {"args: {x: {}}", "kits: [{ref: a, args: {x: \"${{ kit.args.y }}\"}}]", "does not declare"},
		"exports":         {"args: {x: {env: X}}", "args: {y: {}}\nkits: [{ref: a, args: {x: \"${{ kit.args.y }}\"}}]", "container environment"},
		"wider":           {"args: {x: {enum: [a]}}", "args: {y: {}}\nkits: [{ref: a, args: {x: \"${{ kit.args.y }}\"}}]", "enum"},
		"pattern":         {"args: {x: {pattern: a+}}", "args: {y: {pattern: a}}\nkits: [{ref: a, args: {x: \"${{ kit.args.y }}\"}}]", "pattern"},
		"value":           {"args: {x: {enum: [a]}}", "kits: [{ref: a, args: {x: b}}]", "enum"},
		"missing":         {"args: {x: {required: true}}", "kits: [{ref: a}]", "required"},
		"not text":        {"args: {x: {}}\ncapabilities: [{type: com.docker.sandbox/port@1, config: {container: \"${{ kit.args.x }}\"}}]", "args: {y: {}}\nkits: [{ref: a, args: {x: \"${{ kit.args.y }}\"}}]", "takes no text"},
		"stated kind":     {"", "kind: workload\nkits: [{ref: a}]", "make a mixin"},
		"two with a path": {"capabilities: [{type: com.docker.sandbox/volume@1, config: {path: /d, size: 1g}}]", "kits: [{ref: a}]\ncapabilities: [{type: com.docker.sandbox/volume@1, config: {path: /d}}]", "/d"},
	} {
		kind := "set"
		if rest, ok := strings.CutPrefix(c.set, "kind: workload\n"); ok {
			kind, c.set = "workload", rest
		}
		set := kit(t, "", kind, c.set+"\n").Descriptor
		_, err := resolve.MergeSet(set, []resolve.Kit{kit(t, "a", "mixin", c.a+"\n")})
		if err == nil || !strings.Contains(err.Error(), c.part) || !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%s: %v, want %q", name, err, c.part)
		}
	}
}

func BenchmarkFiftyKits(b *testing.B) {
	var kits []resolve.Kit
	for i := range 50 {
		kits = append(kits, benchKit(b, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		set, err := resolve.Resolve(kits, resolve.Options{})
		if err != nil {
			b.Fatal(err)
		}
		var cs []capability.Contribution
		for _, k := range set.Declarations {
			for _, r := range k.Descriptor.Requests() {
				cs = append(cs, capability.Contribution{Kit: k.Ref, Request: r})
			}
		}
		merged, err := resolve.Merge(capability.MergeRuntime, cs)
		if err != nil || len(merged) < 500 {
			b.Fatalf("%d entries, %v", len(merged), err)
		}
	}
}

// benchKit is one of fifty Kits of twenty entries; each requires the one before
// it, and all share a policy and some storage.
func benchKit(b *testing.B, i int) resolve.Kit {
	var s strings.Builder
	kind := "mixin"
	if i == 0 {
		kind = "workload"
	} else {
		s.WriteString("requires: [\"" + name(i-1) + " >= 1\"]\n")
	}
	s.WriteString("provides: [" + name(i) + "@1.0]\ncapabilities:\n")
	s.WriteString("  - {type: com.docker.sandbox/network-policy@2, config: {runtime: {allow: [common.example, " + name(i) + ".example, {hosts: [api.example], methods: [GET], paths: [/" + name(i) + "/**]}]}}}\n")
	s.WriteString("  - {type: com.docker.sandbox/lifecycle@1, config: {startup: [{command: [echo, " + name(i) + "]}]}}\n")
	s.WriteString("  - {type: com.docker.sandbox/volume@1, config: {path: /shared, size: 1g}}\n")
	s.WriteString("  - {type: com.docker.sandbox/git-identity@1, optional: true}\n")
	for j := range 4 {
		n := name(i) + "-" + name(j)
		s.WriteString("  - {type: com.docker.sandbox/volume@1, config: {path: /data/" + n + "}}\n")
		s.WriteString("  - {type: com.docker.sandbox/agent-skill@1, config: {path: /opt/skills/" + n + "}}\n")
		s.WriteString("  - {type: com.docker.sandbox/credential@1, optional: true, config: {service: s" + n + ", phase: runtime, apiKey: {name: K}}}\n")
		s.WriteString("  - {type: com.example/opaque@1, config: {who: " + n + "}}\n")
	}
	return kit(b, "hub.example/"+name(i)+":1", kind, s.String())
}

func name(i int) string { return "k" + string(rune('a'+i/26)) + string(rune('a'+i%26)) }
