package resolve_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
)

// kit makes a Kit of lines of a descriptor.
func kit(tb testing.TB, ref, kind, rest string) resolve.Kit {
	tb.Helper()
	d, diags := spec.Decode([]byte("schemaVersion: \"3\"\nkind: "+kind+"\n"+rest), spec.Options{})
	if err := diags.Err(); err != nil {
		tb.Fatal(err)
	}
	return resolve.Kit{Ref: ref, Digest: "sha256:" + strings.Repeat("0", 64), Descriptor: d.Descriptor}
}

func rules(err error) []resolve.Rule {
	var re *resolve.Error
	var out []resolve.Rule
	if errors.As(err, &re) {
		for _, v := range re.Violations {
			out = append(out, v.Rule)
		}
	}
	return out
}

func refs(ks []resolve.Kit) string {
	var out []string
	for _, k := range ks {
		out = append(out, k.Ref)
	}
	return strings.Join(out, " ")
}

func TestOrdersAreAFunctionOfTheSet(t *testing.T) {
	kits := []resolve.Kit{
		kit(t, "base:1", "workload", "provides: [base@1]\nrequires: [tool]\n"),
		kit(t, "tool:2", "mixin", "provides: [tool]\n"),
		kit(t, "a:1", "mixin", "requires: [\"tool >= 2\"]\nintegrates: [absent, \"zed > 0\"]\n"),
		kit(t, "zed:edge", "mixin", "version: \"3\"\nprovides: [zed]\n"),
		kit(t, "b:1", "mixin", ""),
	}
	for range 20 {
		rand.Shuffle(len(kits), func(i, j int) { kits[i], kits[j] = kits[j], kits[i] })
		set, err := resolve.Resolve(kits, resolve.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := refs(set.Declarations); got != "b:1 tool:2 base:1 zed:edge a:1" {
			t.Fatalf("declarations: %s", got)
		}
		if got := refs(set.Layers); got != "base:1 b:1 tool:2 zed:edge a:1" {
			t.Fatalf("layers: %s", got)
		}
	}
}

func TestEveryViolationIsReported(t *testing.T) {
	_, err := resolve.Resolve([]resolve.Kit{
		kit(t, "a:1", "mixin", "provides: [a@1, a@2]\nrequires: [a, gone, \"b >= 2\"]\nconflicts: [a, c]\n"),
		kit(t, "b:1", "mixin", "provides: [b@1]\nintegrates: [\"c < 1\"]\nrequires: [d]\n"),
		kit(t, "c:1", "mixin", "provides: [c@1, com.docker.kit/b@9]\n"),
		kit(t, "d:1", "mixin", "provides: [d]\nintegrates: [b]\n"),
	}, resolve.Options{})
	want := []resolve.Rule{
		resolve.RuleNoWorkload, resolve.RuleDuplicateProvider, resolve.RuleConflict, resolve.RuleRequires, resolve.RuleRequires,
		resolve.RuleIntegrates, resolve.RuleCycle,
	}
	if got := rules(err); !slices.Equal(got, want) {
		t.Errorf("rules %v, want %v\n%v", got, want, err)
	}
	if !errors.Is(err, kiterr.ErrRefused) {
		t.Error("the error is not a refusal")
	}
	for _, part := range []string{"a:1 requires gone", "d:1 before b:1 before d:1", "b:1 integrates with c < 1, but c:1 provides it at 1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestVersionOfAProvide(t *testing.T) {
	for _, c := range []struct {
		ref, rest string
		ok        bool
	}{
		{"p:2.0", "version: \"1.0\"\nprovides: [p]\n", true},
		{"p:v2", "provides: [p]\n", true},
		{"p:edge", "version: \"2.1\"\nprovides: [p]\n", true},
		{"p:2.0", "provides: [p@1]\n", false},
		{"p:edge", "provides: [p]\n", false},
		{"git+https://g.example/p#ref=v2.1&dir=x", "provides: [p]\n", true},
		{"https://g.example/p.git#v2:dir", "provides: [p]\n", true},
		{"hub.example:5000/p", "provides: [p]\n", false},
	} {
		_, err := resolve.Resolve([]resolve.Kit{kit(t, c.ref, "workload", c.rest), kit(t, "q:1", "mixin", "requires: [\"p >= 2\"]\n")}, resolve.Options{})
		if (err == nil) != c.ok {
			t.Errorf("%s %q: %v", c.ref, c.rest, err)
		}
	}
}

func TestPartialSetsKeepOutsideRequirements(t *testing.T) {
	kits := []resolve.Kit{kit(t, "a:1", "mixin", "requires: [base]\nprovides: [a@1]\n"), kit(t, "b:1", "mixin", "requires: [\"a > 1\"]\n")}
	if got := rules(second(resolve.Resolve(kits, resolve.Options{Partial: true}))); !slices.Equal(got, []resolve.Rule{resolve.RuleRequires}) {
		t.Errorf("an unsuitable provider inside: %v", got)
	}
	if _, err := resolve.Resolve(kits[:1], resolve.Options{Partial: true}); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

func accept(types ...string) resolve.Selector {
	return resolve.SelectorFunc(func(_ resolve.Operation, _ spec.Descriptor, r capability.Request) (bool, string) {
		return slices.Contains(types, r.Type), "no " + r.Type
	})
}

func TestSelection(t *testing.T) {
	k := kit(t, "k:1", "mixin", `capabilities:
  - {type: a/x@1, optional: true}
  - group:
      name: G
      optional: true
      capabilities: [{type: a/y@1}, {type: a/x@1}, {type: a/z@1}]
  - group: {name: G, capabilities: [{type: a/y@1, source: {kit: origin, path: "capabilities[7]"}}]}
  - {type: a/y@1, config: {n: 1}}
`)
	sel, err := resolve.Select([]resolve.Kit{k}, accept("a/y@1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range sel.Effective {
		got = append(got, fmt.Sprintf("%s %s %s", c.Kit, c.Request.Source.Kit, c.Request.Source.Path))
	}
	if want := []string{"k:1 origin capabilities[7]", "k:1 k:1 capabilities[3]"}; !slices.Equal(got, want) {
		t.Errorf("effective: %q, want %q", got, want)
	}
	if len(sel.Items) != 2 || len(sel.Skipped) != 2 || len(sel.Refused) != 0 {
		t.Errorf("records: %+v", sel)
	}
	g := sel.Skipped[1]
	if want := []string{"capabilities[1].group.capabilities[1]", "capabilities[1].group.capabilities[2]"}; !slices.Equal(g.Rejected, want) || g.Messages[0] != "no a/x@1" {
		t.Errorf("a skipped group: %+v", g)
	}
	if m := sel.Items[0].MemberSources; len(m) != 1 || m[0].Kit != "origin" {
		t.Errorf("member sources: %+v", m)
	}

	sel, err = resolve.Select([]resolve.Kit{k}, nil)
	var se *resolve.SelectionError
	if !errors.As(err, &se) || !errors.Is(err, kiterr.ErrRefused) || len(se.Refused) != 2 || len(sel.Skipped) != 4 {
		t.Fatalf("nobody answers: %v, %+v", err, sel)
	}
	if !strings.Contains(err.Error(), `k:1: required group "G" (capabilities[2]) is refused`) {
		t.Errorf("message: %v", err)
	}
}

func TestNobodyIsAskedAboutAnInvalidDescriptor(t *testing.T) {
	for _, rest := range []string{
		"capabilities: [{type: a/x@1}, {type: bad}]\n",
		"args: {x: {}}\ncapabilities: [{type: a/x@1, config: \"${{ kit.args.x }}\"}]\n",
	} {
		calls := 0
		_, err := resolve.Select([]resolve.Kit{kit(t, "k", "mixin", rest)}, resolve.SelectorFunc(func(resolve.Operation, spec.Descriptor, capability.Request) (bool, string) {
			calls++
			return true, ""
		}))
		if err == nil || calls != 0 {
			t.Errorf("%q: %v after %d calls", rest, err, calls)
		}
	}
}

func TestSelectedGroupsMustStandTogether(t *testing.T) {
	k := kit(t, "k", "mixin", `capabilities:
  - group: {optional: true, capabilities: [{type: com.docker.sandbox/privileged@1}]}
  - group: {optional: true, capabilities: [{type: com.docker.sandbox/privileged@1}]}
`)
	if _, err := resolve.Select([]resolve.Kit{k}, accept("com.docker.sandbox/privileged@1")); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("two singletons were selected: %v", err)
	}
	// What a set took from two Kits is merged, not compared.
	k.Descriptor.Capabilities[0].Group.Capabilities[0].Source = &capability.Source{Kit: "a", Path: "capabilities[0]"}
	k.Descriptor.Capabilities[1].Group.Capabilities[0].Source = &capability.Source{Kit: "b", Path: "capabilities[0]"}
	if _, err := resolve.Select([]resolve.Kit{k}, accept("com.docker.sandbox/privileged@1")); err != nil {
		t.Errorf("contributions of two Kits: %v", err)
	}
}

func contribution(ref, typ, config string) capability.Contribution {
	c := capability.Contribution{Kit: ref, Request: capability.Request{Type: typ}}
	if config != "" {
		c.Request.Config = []byte(config)
	}
	return c
}

func TestMergeComparesAcrossTypes(t *testing.T) {
	const ns = "com.docker.sandbox/"
	for _, c := range []struct {
		cs   []capability.Contribution
		part string // of the error, "" for none
	}{
		{[]capability.Contribution{contribution("a", ns+"volume@1", `{"path":"/x/../d"}`), contribution("b", ns+"host-mount@1", `{"path":"/d"}`)}, "a and b: "},
		{[]capability.Contribution{contribution("a", ns+"volume@1", `{"path":"/d"}`), contribution("b", ns+"volume@1", `{"path":"/d"}`), contribution("c", ns+"host-mount@1", `{"path":"/e"}`)}, ""},
		{[]capability.Contribution{
			contribution("a", ns+"credential@1", `{"service":"s","phase":"runtime","apiKey":{"name":"A","inject":[{"domain":"api.ex","header":"H"}]}}`),
			contribution("b", ns+"network-policy@1", `{"runtime":{"allow":["api.ex:443"]}}`)}, ""},
		{[]capability.Contribution{
			contribution("a", ns+"credential@1", `{"service":"s","phase":"runtime","apiKey":{"name":"A","inject":[{"domain":"api.ex","header":"H"}]}}`),
			contribution("b", ns+"network-policy@1", `{"install":{"allow":["api.ex"]}}`)}, "runtime phase"},
		{[]capability.Contribution{
			contribution("a", ns+"lifecycle@1", `{"interactive":["--ui"]}`),
			contribution("b", ns+"agent-interactive-sessions@1", `{"newSession":[]}`)}, "newSession"},
	} {
		_, err := resolve.Merge(capability.MergeRuntime, c.cs)
		if c.part == "" && err != nil || c.part != "" && (err == nil || !strings.Contains(err.Error(), c.part) || !errors.Is(err, kiterr.ErrRefused)) {
			t.Errorf("%+v: %v, want %q", c.cs, err, c.part)
		}
	}
}

func TestOpaqueTypesMergeByWholeConfig(t *testing.T) {
	a, b, c := contribution("a", "x/y@1", `{"p":1,"q":2}`), contribution("b", "x/y@1", `{"q":2,"p":1}`), contribution("c", "x/y@1", `{"p":1}`)
	a.Request.Optional, b.Request.Name = true, "B"
	out, err := resolve.Merge(capability.MergeRuntime, []capability.Contribution{a, b, c})
	if err != nil || len(out) != 2 {
		t.Fatalf("Merge = %+v, %v", out, err)
	}
	if m := out[0]; m.Request.Optional || m.Request.Name != "B" || len(m.From) != 2 || m.From[1].Kit != "b" || m.From[0].From != nil {
		t.Errorf("merged: %+v", m)
	}
}

func TestSelectionNeedsThePolicyThatCredentialsRelyOn(t *testing.T) {
	credential := "  - {type: com.docker.sandbox/credential@1, config: {service: s, phase: runtime, apiKey: {inject: [{domain: a.ex}]}}}\n"
	policy := "  - {type: com.docker.sandbox/network-policy@1, optional: true, config: {runtime: {allow: [a.ex]}}}\n"
	const credentialType, policyType = "com.docker.sandbox/credential@1", "com.docker.sandbox/network-policy@1"
	one := []resolve.Kit{kit(t, "k:1", "mixin", "capabilities:\n"+credential+policy)}
	two := []resolve.Kit{kit(t, "k:1", "mixin", "capabilities:\n"+credential), kit(t, "l:1", "mixin", "capabilities:\n"+policy)}
	for _, kits := range [][]resolve.Kit{one, two} {
		if _, err := resolve.Select(kits, accept(credentialType, policyType)); err != nil {
			t.Errorf("%d Kits: %v", len(kits), err)
		}
		_, err := resolve.Select(kits, accept(credentialType))
		var me *resolve.MergeError
		if !errors.As(err, &me) || !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "k:1") {
			t.Errorf("%d Kits without the policy: %v", len(kits), err)
		}
	}
}
