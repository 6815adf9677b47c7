package dockerd_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/dockerd"
)

func TestCheck(t *testing.T) {
	ct.Check(t, dockerd.Definition(), dockerd.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"a":1}`, Form: capability.Effective, Want: []string{"config"}},
		{Config: `"${{ kit.args.x }}"`, Want: []string{"config"}},
	})
	ct.Lines(t, dockerd.Definition(), ct.Request(dockerd.Type, ``), "services "+dockerd.Type)
	ct.Lines(t, dockerd.Definition(), ct.Request(dockerd.Type, `{}`))
}

func TestMergeKeepsOne(t *testing.T) {
	a, b, c := ct.Optional(ct.From("a", dockerd.Type, ``)), ct.From("b", dockerd.Type, ``), ct.From("c", dockerd.Type, ``)
	b.Request.Name, c.Request.Name = "Label", "Other"
	out, conflicts := dockerd.Definition().Merge(capability.MergePublish, []capability.Contribution{a, b, c})
	if len(out) != 1 || len(conflicts) != 0 || out[0].Request.Optional || out[0].Request.Name != "Label" || len(out[0].From) != 3 {
		t.Errorf("merged: %+v, %+v", out, conflicts)
	}
	ct.Merged(t, dockerd.Definition(), capability.MergeRuntime, []capability.Contribution{a, a}, []string{"optional dockerd@1"})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, dockerd.Definition(), dockerd.Decode, ct.Hostile...)
}
