package privileged_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/privileged"
)

func TestCheck(t *testing.T) {
	ct.Check(t, privileged.Definition(), privileged.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"a":1}`, Form: capability.Effective, Want: []string{"config"}},
		{Config: `"${{ kit.args.x }}"`, Want: []string{"config"}},
	})
	ct.Lines(t, privileged.Definition(), ct.Request(privileged.Type, ``), "privileged "+privileged.Type)
	ct.Lines(t, privileged.Definition(), ct.Request(privileged.Type, `{}`))
}

func TestMergeKeepsOne(t *testing.T) {
	a, b, c := ct.Optional(ct.From("a", privileged.Type, ``)), ct.From("b", privileged.Type, ``), ct.From("c", privileged.Type, ``)
	b.Request.Name, c.Request.Name = "Label", "Other"
	out, conflicts := privileged.Definition().Merge(capability.MergePublish, []capability.Contribution{a, b, c})
	if len(out) != 1 || len(conflicts) != 0 || out[0].Request.Optional || out[0].Request.Name != "Label" || len(out[0].From) != 3 {
		t.Errorf("merged: %+v, %+v", out, conflicts)
	}
	ct.Merged(t, privileged.Definition(), capability.MergeRuntime, []capability.Contribution{a, a}, []string{"optional privileged@1"})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, privileged.Definition(), privileged.Decode, ct.Hostile...)
}
