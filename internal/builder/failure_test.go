package builder

import "testing"

func TestAMissingLocalImageIsFollowedByWhatMakesIt(t *testing.T) {
	for ref, want := range map[string]string{
		"kitbox.local/base:1":         "make it with: kitbox base create",
		"kitbox.local/base:9":         "make it with: kitbox base create --tag kitbox.local/base:9, or start from kitbox.local/base:1",
		"kitbox.local/base:9@sha256:": "make it with: kitbox base create",
		"kitbox.local/svc:1":          "kitbox images lists what is; a Kit of that name is made by: kitbox build --tag kitbox.local/svc:1 DIR",
		"kitbox.local/svc:1@sha256:":  "kitbox images lists what is",
	} {
		var f Failure
		f.missingBase(ref, "")
		if f.Next != want {
			t.Errorf("%s: %q, want %q", ref, f.Next, want)
		}
	}
}
