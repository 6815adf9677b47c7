package capability_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
)

type inner struct {
	On   bool   `json:"on"`
	Text string `json:"text"`
}

type sample struct {
	Path  string   `json:"path"`
	Count int      `json:"count"`
	Share *float64 `json:"share"`
	Inner []inner  `json:"inner"`
	Tail  []string `json:"tail"`
}

func read(config string, f capability.Form) (sample, capability.Open, bool, []capability.Problem) {
	var in capability.Inspection
	var s sample
	open, ok := in.Read(capability.Request{Type: "a/b@1", Config: jsontext.Value(config)}, f, &s)
	return s, open, ok, in.Problems
}

func TestReadLetsAReferenceStandForANumber(t *testing.T) {
	const config = `{"path":"${{ kit.args.p }}","count":"${{ kit.args.c }}","share":"${{ kit.args.s }}","inner":[{"text":"x"},{"on":"${{ kit.args.o }}"}]}`
	for _, f := range []capability.Form{capability.Authored, capability.Published} {
		s, open, ok, problems := read(config, f)
		want := capability.Open{{"config.count", "${{ kit.args.c }}"}, {"config.share", "${{ kit.args.s }}"}, {"config.inner[1].on", "${{ kit.args.o }}"}}
		if !ok || len(problems) != 0 || !slices.Equal(open, want) || s.Path != "${{ kit.args.p }}" || s.Inner[0].Text != "x" {
			t.Errorf("%v form: %+v, %q, %v, %v", f, s, open, ok, problems)
		}
		if !open.Has("config.count") || open.Has("config.path") {
			t.Error("Has disagrees with the list")
		}
	}
	if _, _, ok, problems := read(config, capability.Effective); ok || len(problems) != 1 || problems[0].Path != "config" || !problems[0].Decode {
		t.Errorf("effective form: %v, %+v", ok, problems)
	}
}

func TestReadExplainsItself(t *testing.T) {
	for config, want := range map[string]string{
		``:                                   "a config is required",
		`null`:                               "a config is required",
		`{"hostPath":"/"}`:                   "there is no field hostPath; what may stand there: path, ",
		`{"inner":[{"Text":"x"}]}`:           "there is no field inner[0].Text; what may stand there: on, text",
		`{"count":"80"}`:                     "count must be a whole number, not text",
		`{"path":1}`:                         "path must be text, not a number",
		`{"tail":"x"}`:                       "tail must be a list, not text",
		`{"inner":[[]]}`:                     "inner[0] must be a map of fields, not a list",
		`{"path":"a","path":"b"}`:            "field path is stated twice",
		`[]`:                                 "the config must be a map of fields, not a list",
		`{`:                                  "is not well formed",
		`{"path":"${{ kit.args.p }}","x":1}`: "there is no field x",
		`{"path":"${{ kit.args.p }}","count":"80"}`: "count: is text where a number or a boolean belongs",
	} {
		_, _, ok, problems := read(config, capability.Authored)
		if ok || len(problems) != 1 || !strings.HasPrefix(problems[0].Message, want) || problems[0].Path != "config" || !problems[0].Decode {
			t.Errorf("%s: %v, %+v; want %q", config, ok, problems, want)
		}
	}
}

func TestAnOpenFieldNameDefersTheShape(t *testing.T) {
	const config = `{"${{ kit.args.k }}":"v"}`
	if _, _, ok, problems := read(config, capability.Authored); ok || len(problems) != 0 {
		t.Errorf("authored: %v, %+v", ok, problems)
	}
	if _, _, ok, problems := read(config, capability.Effective); ok || len(problems) != 1 {
		t.Errorf("effective: %v, %+v", ok, problems)
	}
}

func TestNullsNamesEveryPlace(t *testing.T) {
	const config = `{"a":null,"b":{"c/d":null},"e":[1,null,null],"f":[{"g":null},{"h":[null]}],"ok":{"deep":null,"l":[null]},"text":"null"}`
	got := capability.Nulls(jsontext.Value(config), "ok")
	want := []string{"config.a", "config.b.c/d", "config.e", "config.f[0].g", "config.f[1].h"}
	if !slices.Equal(got, want) {
		t.Errorf("Nulls = %q, want %q", got, want)
	}
	if got := capability.Nulls(jsontext.Value(`{"ok":null}`), "ok"); len(got) != 1 {
		t.Errorf("the nullable field itself: %q", got)
	}
	for _, harmless := range []string{`null`, `{"a":null`, `nullnull`, `{]null`} {
		capability.Nulls(jsontext.Value(harmless))
	}
}

func TestInvalidErrorIsARefusal(t *testing.T) {
	var in capability.Inspection
	if in.Err("a/b@1") != nil {
		t.Fatal("nothing wrong, yet an error")
	}
	in.Problems = append(in.Problems, capability.Problem{Path: "config.x", Message: "hm", Warning: true})
	if in.Err("a/b@1") != nil {
		t.Fatal("a warning counted")
	}
	in.Problem("config.path", "must be absolute")
	in.Problem("config.mode", "must be octal")
	err := in.Err("a/b@1")
	if !errors.Is(err, kiterr.ErrRefused) || err.Error() != "capability a/b@1: config.path: must be absolute; config.mode: must be octal" {
		t.Errorf("Err = %v", err)
	}
}

func TestClaimsWaitForTheirKey(t *testing.T) {
	var in capability.Inspection
	in.Claim(capability.Claim{Space: "s", Key: "/x/${{ kit.args.a }}"})
	in.Claim(capability.Claim{Space: "s", Key: "/x"})
	if len(in.Claims) != 1 {
		t.Errorf("claims: %+v", in.Claims)
	}
}

func TestEncodeKeepsNumbers(t *testing.T) {
	r, err := capability.Encode("a/b@1", map[string]any{"b": int64(1)<<62 + 1, "a": 1})
	if err != nil || string(r.Config) != `{"a":1,"b":4611686018427387905}` {
		t.Errorf("Encode = %s, %v", r.Config, err)
	}
}
