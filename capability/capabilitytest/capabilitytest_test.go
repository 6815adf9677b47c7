package capabilitytest_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

const typ = "com.example/x@1"

// recorder counts failures instead of failing.
type recorder struct{ failures int }

func (*recorder) Helper()                 {}
func (r *recorder) Errorf(string, ...any) { r.failures++ }

// grammar is a grammar that says fixed things.
func grammar(in capability.Inspection, out []capability.Contribution, conflicts ...capability.Conflict) capability.Definition {
	return capability.Definition{
		Types: []string{typ},
		Inspect: func(_ capability.Request, _ capability.Form, into *capability.Inspection) {
			into.Problems = append(into.Problems, in.Problems...)
			into.Claims = append(into.Claims, in.Claims...)
			into.Lines = append(into.Lines, in.Lines...)
		},
		Merge: func(capability.MergeMode, []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
			return out, conflicts
		},
	}
}

// TestEveryCheckCanFail breaks a grammar in every way that a check is there to
// notice: what no broken grammar fails has never been seen to work.
func TestEveryCheckCanFail(t *testing.T) {
	r := ct.Request(typ, `{"a":1}`)
	a, b := ct.From("a", typ, `1`), ct.From("b", typ, `2`)
	problem := func(path, message string) capability.Inspection {
		return capability.Inspection{Problems: []capability.Problem{{Path: path, Message: message}}}
	}
	claim := capability.Claim{Space: "s", Key: "k", At: "config.a", What: "thing"}
	conflict := capability.Conflict{Kits: []string{"a", "b"}, Key: "k", Message: "a and b differ"}
	changes := grammar(capability.Inspection{}, []capability.Contribution{a})
	changes.Merge = func(_ capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
		cs[0].Request.Config = []byte(`9`)
		return cs[:1], nil
	}
	check := func(d capability.Definition, want ...string) func(ct.T) {
		return func(t ct.T) { ct.Check(t, d, typ, []ct.Case{{Config: `{}`, Want: want}}) }
	}
	merged := func(d capability.Definition, want []string, keys ...string) func(ct.T) {
		return func(t ct.T) {
			ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{a, b}, want, keys...)
		}
	}
	var none capability.Inspection
	for name, tt := range map[string]struct {
		run  func(ct.T)
		want int
	}{
		"problem as wanted":     {check(grammar(problem("config.a", "is wrong"), nil), "config.a"), 0},
		"problem elsewhere":     {check(grammar(problem("config.b", "is wrong"), nil), "config.a"), 1},
		"problem missing":       {check(grammar(none, nil), "config.a"), 1},
		"problem unwanted":      {check(grammar(problem("config.a", "is wrong"), nil)), 1},
		"message with a period": {check(grammar(problem("config.a", "Is wrong."), nil), "config.a"), 1},
		"no message":            {check(grammar(problem("config.a", ""), nil), "config.a"), 1},
		"claim as wanted": {func(t ct.T) {
			ct.Claims(t, grammar(capability.Inspection{Claims: []capability.Claim{claim}}, nil), r, "s|k|config.a")
		}, 0},
		"claim missing": {func(t ct.T) { ct.Claims(t, grammar(none, nil), r, "s|k|config.a") }, 1},
		"claim without a noun": {func(t ct.T) {
			ct.Claims(t, grammar(capability.Inspection{Claims: []capability.Claim{{Space: "s", Key: "k", At: "config.a"}}}, nil), r, "s|k|config.a")
		}, 1},
		"line as wanted": {func(t ct.T) {
			ct.Lines(t, grammar(capability.Inspection{Lines: []capability.Line{{List: "l", Value: "v"}}}, nil), r, "l v")
		}, 0},
		"line missing":             {func(t ct.T) { ct.Lines(t, grammar(none, nil), r, "l v") }, 1},
		"merger as wanted":         {merged(grammar(none, []capability.Contribution{a}), []string{typ + " 1"}), 0},
		"merger of another config": {merged(grammar(none, []capability.Contribution{b}), []string{typ + " 1"}), 1},
		"conflict as wanted":       {merged(grammar(none, nil, conflict), nil, "k"), 0},
		"conflict missing":         {merged(grammar(none, []capability.Contribution{a}), nil, "k"), 1},
		"conflict without Kits":    {merged(grammar(none, nil, capability.Conflict{Key: "k", Message: "differ"}), nil, "k"), 1},
	} {
		var rec recorder
		tt.run(&rec)
		if rec.failures != tt.want {
			t.Errorf("%s: %d failures, want %d", name, rec.failures, tt.want)
		}
	}
	var rec recorder
	merged(changes, []string{typ + " 9"})(&rec)
	if rec.failures == 0 {
		t.Error("merging that changes its arguments goes unnoticed")
	}
}
