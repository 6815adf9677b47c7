package capability_test

import (
	"errors"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

type small struct {
	N int `json:"n"`
}

// judge wants an even number, and warns about zero.
func (s *small) judge(f capability.Form, open capability.Open, in *capability.Inspection) {
	switch {
	case open.Has("config.n"):
		in.Line("numbers", open.Text("config.n"))
	case s.N == 0:
		in.Warn("config.n", "is nothing")
	case s.N%2 != 0:
		in.Breach("config.n", "small@1/even", "must be even")
	default:
		in.Claim(capability.Claim{Space: "number", Key: "n", At: "config.n", What: "number"})
	}
}

const smallType = "com.example/small@1"

func request(typ, config string) capability.Request {
	return capability.Request{Type: typ, Config: jsontext.Value(config)}
}

func TestDecodeValidReturnsOnlyWhatIsValid(t *testing.T) {
	for _, tt := range []struct {
		typ, config string
		want        int
		path        string // of the first problem; empty: accepted
	}{
		{smallType, `{"n":2}`, 2, ""},
		{smallType, `{"n":0}`, 0, ""}, // a warning is no problem
		{smallType, `{"n":3}`, 0, "config.n"},
		{smallType, `{"n":"${{ kit.args.n }}"}`, 0, "config"},
		{smallType, `{"m":2}`, 0, "config"},
		{smallType, ``, 0, "config"},
		{"com.example/other@1", `{"n":2}`, 0, "type"},
	} {
		got, err := capability.DecodeValid(smallType, request(tt.typ, tt.config), (*small).judge)
		var invalid *capability.InvalidError
		path := ""
		if errors.As(err, &invalid) {
			path = invalid.Problems[0].Path
		}
		if got.N != tt.want || path != tt.path || (err != nil) != (tt.path != "") {
			t.Errorf("%s %s: %+v, %v", tt.typ, tt.config, got, err)
		}
	}
}

func TestEncodeValidWritesOnlyWhatIsValid(t *testing.T) {
	if r, err := capability.EncodeValid(smallType, small{N: 4}, (*small).judge); err != nil || r.Type != smallType || string(r.Config) != `{"n":4}` {
		t.Errorf("EncodeValid = %+v, %v", r, err)
	}
	if r, err := capability.EncodeValid(smallType, small{N: 5}, (*small).judge); err == nil {
		t.Errorf("wrote %s", r.Config)
	}
}

func TestDefinitionViews(t *testing.T) {
	d := capability.Definition{Types: []string{smallType}, Inspect: capability.Inspecting((*small).judge)}
	if p := d.Check(request(smallType, `{"n":3}`), capability.Effective); len(p) != 1 || p[0].Statement != "small@1/even" {
		t.Errorf("Check = %+v", p)
	}
	if c := d.Claims(request(smallType, `{"n":2}`)); len(c) != 1 || c[0].Key != "n" {
		t.Errorf("Claims = %+v", c)
	}
	if l := d.Surface(request(smallType, `{"n":"${{ kit.args.n }}"}`)); len(l) != 1 || l[0].Value != "${{ kit.args.n }}" {
		t.Errorf("Surface = %+v", l)
	}
	if l := d.Surface(request(smallType, `{"n":`)); l != nil {
		t.Errorf("Surface of nothing = %+v", l)
	}
}

func TestFormsByName(t *testing.T) {
	for f, want := range map[capability.Form]string{capability.Authored: "authored", capability.Published: "published", capability.Effective: "effective", 7: "unknown form"} {
		if f.String() != want {
			t.Errorf("%d is %q", int(f), f.String())
		}
	}
	if !capability.Authored.Waits("a${{ x }}") || capability.Effective.Waits("${{ x }}") || capability.Published.Waits("$X ${Y}") {
		t.Error("Waits")
	}
}
