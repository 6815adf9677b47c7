package longrunning_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/longrunning"
)

func TestCheck(t *testing.T) {
	ct.Check(t, longrunning.Definition(), longrunning.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"a":1}`, Form: capability.Effective, Want: []string{"config"}},
		{Config: `"${{ kit.args.x }}"`, Want: []string{"config"}},
	})
	ct.Lines(t, longrunning.Definition(), ct.Request(longrunning.Type, ``))
	ct.Lines(t, longrunning.Definition(), ct.Request(longrunning.Type, `{}`))
}

func TestMergeKeepsOne(t *testing.T) {
	a, b, c := ct.Optional(ct.From("a", longrunning.Type, ``)), ct.From("b", longrunning.Type, ``), ct.From("c", longrunning.Type, ``)
	b.Request.Name, c.Request.Name = "Label", "Other"
	out, conflicts := longrunning.Definition().Merge(capability.MergePublish, []capability.Contribution{a, b, c})
	if len(out) != 1 || len(conflicts) != 0 || out[0].Request.Optional || out[0].Request.Name != "Label" || len(out[0].From) != 3 {
		t.Errorf("merged: %+v, %+v", out, conflicts)
	}
	ct.Merged(t, longrunning.Definition(), capability.MergeRuntime, []capability.Contribution{a, a}, []string{"optional long-running@1"})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, longrunning.Definition(), longrunning.Decode, ct.Hostile...)
}
