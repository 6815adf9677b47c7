package capability_test

import (
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
	} {
		if got := capability.ValidType(s); got != want {
			t.Errorf("ValidType(%q) = %v, want %v", s, got, want)
		}
	}
}
