package gitidentity_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/gitidentity"
)

func TestCheck(t *testing.T) {
	ct.Check(t, gitidentity.Definition(), gitidentity.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"a":1}`, Form: capability.Effective, Want: []string{"config"}},
		{Config: `"${{ kit.args.x }}"`, Want: []string{"config"}},
	})
	ct.Lines(t, gitidentity.Definition(), ct.Request(gitidentity.Type, ``), "services "+gitidentity.Type)
	ct.Lines(t, gitidentity.Definition(), ct.Request(gitidentity.Type, `{}`))
}

func TestMergeKeepsOne(t *testing.T) {
	a, b, c := ct.Optional(ct.From("a", gitidentity.Type, ``)), ct.From("b", gitidentity.Type, ``), ct.From("c", gitidentity.Type, ``)
	b.Request.Name, c.Request.Name = "Label", "Other"
	out, conflicts := gitidentity.Definition().Merge(capability.MergePublish, []capability.Contribution{a, b, c})
	if len(out) != 1 || len(conflicts) != 0 || out[0].Request.Optional || out[0].Request.Name != "Label" || len(out[0].From) != 3 {
		t.Errorf("merged: %+v, %+v", out, conflicts)
	}
	ct.Merged(t, gitidentity.Definition(), capability.MergeRuntime, []capability.Contribution{a, a}, []string{"optional git-identity@1"})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, gitidentity.Definition(), gitidentity.Decode, ct.Hostile...)
}
