package kitregistry_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/kitregistry"
)

func TestCheck(t *testing.T) {
	ct.Check(t, kitregistry.Definition(), kitregistry.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"a":1}`, Form: capability.Effective, Want: []string{"config"}},
		{Config: `"${{ kit.args.x }}"`, Want: []string{"config"}},
	})
	ct.Lines(t, kitregistry.Definition(), ct.Request(kitregistry.Type, ``), "services "+kitregistry.Type)
	ct.Lines(t, kitregistry.Definition(), ct.Request(kitregistry.Type, `{}`))
}

func TestMergeKeepsOne(t *testing.T) {
	a, b, c := ct.Optional(ct.From("a", kitregistry.Type, ``)), ct.From("b", kitregistry.Type, ``), ct.From("c", kitregistry.Type, ``)
	b.Request.Name, c.Request.Name = "Label", "Other"
	out, conflicts := kitregistry.Definition().Merge(capability.MergePublish, []capability.Contribution{a, b, c})
	if len(out) != 1 || len(conflicts) != 0 || out[0].Request.Optional || out[0].Request.Name != "Label" || len(out[0].From) != 3 {
		t.Errorf("merged: %+v, %+v", out, conflicts)
	}
	ct.Merged(t, kitregistry.Definition(), capability.MergeRuntime, []capability.Contribution{a, a}, []string{"optional kit-registry@1"})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, kitregistry.Definition(), kitregistry.Decode, ct.Hostile...)
}
