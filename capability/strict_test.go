package capability_test

import (
	"regexp"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

func TestDecodeIsStrict(t *testing.T) {
	type config struct {
		Path string `json:"path"`
	}
	for _, bad := range []string{
		``, `null`, ` null `, `{"Path":"/a"}`, `{"PATH":"/a"}`, `{"path":"/a","path":"/b"}`,
		`{"path":"/a","size":"1g"}`, `{"path":"/a"}{}`, `[]`, `{"path":1}`, `{"path":"/a"`,
	} {
		var c config
		if err := capability.Decode(capability.Request{Type: "a/b@1", Config: jsontext.Value(bad)}, &c); err == nil {
			t.Errorf("Decode(%q) accepted it as %+v", bad, c)
		}
	}
	var c config
	if err := capability.Decode(capability.Request{Type: "a/b@1", Config: jsontext.Value(`{"path":"/a"}`)}, &c); err != nil || c.Path != "/a" {
		t.Errorf("Decode = %+v, %v", c, err)
	}
}

func TestValidType(t *testing.T) {
	for s, want := range map[string]bool{
		"com.docker.sandbox/volume@1": true, "a/b@10": true,
		"volume@1": false, "a/b@0": false, "a/b": false, "A/b@1": false, "a/b_c@1": false, "a-/b@1": false, "a/b@1 ": false,
		"a.-.b/c-d@1": true, "0/0@1": true, ".a/b@1": false, "a./b@1": false, "a/b.c@1": false, "a/-b@1": false, "a/b-@1": false, "a/b@": false,
		"a/b@01": false, "a/b@1a": false, "a/b@1@2": false, "a/b/c@1": false, "/b@1": false, "a/@1": false, "": false, "a/b@1\n": false,
	} {
		if got := capability.ValidType(s); got != want {
			t.Errorf("ValidType(%q) = %v, want %v", s, got, want)
		}
	}
}

// TestValidTypeIsItsPattern holds the hand-written scan, which runs for every
// entry, against the pattern that the specification gives.
func TestValidTypeIsItsPattern(t *testing.T) {
	pattern := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9-]*[a-z0-9])?@[1-9][0-9]*$`)
	const letters = "a0.-/@1A"
	var walk func(s string, left int)
	walk = func(s string, left int) {
		if got := capability.ValidType(s); got != pattern.MatchString(s) {
			t.Errorf("ValidType(%q) = %v", s, got)
		}
		if left > 0 {
			for _, c := range letters {
				walk(s+string(c), left-1)
			}
		}
	}
	walk("", 6)
	walk("ab/", 4)
}
