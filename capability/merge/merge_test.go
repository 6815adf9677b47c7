package merge_test

import (
	"slices"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

const typ = "com.example/x@1"

func labelled(c capability.Contribution, name, description string) capability.Contribution {
	c.Request.Name, c.Request.Description = name, description
	return c
}

func TestJoin(t *testing.T) {
	a := labelled(ct.Optional(ct.From("a", typ, `{"a":1}`)), "", "why")
	b := labelled(ct.From("b", typ, `{"b":1}`), "Label", "because")
	c := labelled(ct.Optional(ct.From("c", typ, `{"c":1}`)), "Other", "")
	c.Workload = true
	got := merge.Join(merge.Join(a, b), c)
	if r := got.Request; r.Optional || r.Name != "Label" || r.Description != "why" || string(r.Config) != `{"a":1}` || !got.Workload {
		t.Errorf("joined: %+v", got)
	}
	if kits := merge.Kits(got, a); !slices.Equal(kits, []string{"a", "b", "c"}) || len(got.From) != 3 {
		t.Errorf("kits %q, from %+v", kits, got.From)
	}
	if both := merge.Join(a, a); !both.Request.Optional || len(merge.Kits(both)) != 1 {
		t.Errorf("two optional asks: %+v", both)
	}
	if a.From != nil {
		t.Error("Join changed its argument")
	}
}

func TestSameConfig(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":2}`, ` { "b" : 2 , "a" : 1 } `, true},
		{`{"a":1}`, `{"a":1.0}`, false},
		{``, ``, true},
		{``, `{}`, false},
		{`{`, `{`, true},
	} {
		if got := merge.SameConfig(ct.Request(typ, tt.a), ct.Request(typ, tt.b)); got != tt.want {
			t.Errorf("SameConfig(%s, %s) = %v", tt.a, tt.b, got)
		}
	}
}

func TestInstancesStandApartWhileTheirKeyIsOpen(t *testing.T) {
	key := func(c capability.Contribution) (string, bool) {
		s := string(c.Request.Config)
		return s, !capability.HasReference(s)
	}
	open, known := ct.From("a", typ, `"${{ kit.args.x }}"`), ct.From("b", typ, `"k"`)
	apart := func(mode capability.MergeMode, cs ...capability.Contribution) (n int) {
		out, _ := merge.Instances(mode, cs, key, merge.Restated)
		for _, c := range out {
			if c.Apart {
				n++
			}
		}
		return n
	}
	if n := apart(capability.MergePublish, open, known); n != 1 {
		t.Errorf("%d apart, want the open one", n)
	}
	if n := apart(capability.MergePublish, open, open); n != 0 {
		t.Errorf("%d apart, though the same config twice is one", n)
	}
	if n := apart(capability.MergeRuntime, open, known); n != 0 {
		t.Errorf("%d apart for a sandbox", n)
	}
}

func TestOneNamesBothKits(t *testing.T) {
	out, conflicts := merge.One([]capability.Contribution{ct.From("a", typ, `1`), ct.From("b", typ, `1`), ct.From("c", typ, `2`)}, "thing", merge.SameConfig)
	if len(out) != 1 || len(conflicts) != 1 || conflicts[0].Key != "thing" || !slices.Equal(conflicts[0].Kits, []string{"a", "b", "c"}) {
		t.Errorf("merged %+v, %+v", out, conflicts)
	}
}

func TestWithKeepsOtherFields(t *testing.T) {
	if got := merge.With([]byte(`{"phase":["a","b"],"n":1.50,"x":{"b":1,"a":2}}`), "phase", []byte(`"a"`)); string(got) != `{"n":1.50,"phase":"a","x":{"b":1,"a":2}}` {
		t.Errorf("With = %s", got)
	}
	if got := merge.With([]byte(`[1]`), "phase", []byte(`"a"`)); string(got) != `[1]` {
		t.Errorf("With = %s", got)
	}
}
