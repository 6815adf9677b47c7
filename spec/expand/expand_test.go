package expand_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

func ptr(s string) *string { return &s }

func TestResolveArgs(t *testing.T) {
	args := map[string]spec.Arg{
		"plain": {}, "def": {Default: ptr("")}, "req": {Required: true}, "enum": {Enum: []string{"a", "b"}, Default: ptr("a")},
		"pat": {Pattern: "a|ab"}, "built": {BuildArg: "B", Default: ptr("1")},
	}
	got, err := expand.ResolveArgs(args, map[string]string{"req": "x", "pat": "ab"}, expand.PhaseCreate)
	if err != nil || len(got) != 4 || got["def"] != "" || got["req"] != "x" || got["enum"] != "a" || got["pat"] != "ab" {
		t.Errorf("ResolveArgs = %v, %v", got, err)
	}
	if got, err := expand.ResolveArgs(args, nil, expand.PhaseBuild); err != nil || len(got) != 1 || got["built"] != "1" {
		t.Errorf("build phase: %v, %v", got, err)
	}
	for _, c := range []struct {
		supplied map[string]string
		want     error
	}{
		{map[string]string{}, expand.ErrRequired},
		{map[string]string{"req": "", "nope": ""}, expand.ErrUndeclared},
		{map[string]string{"req": "", "built": "2"}, expand.ErrOtherPhase},
		{map[string]string{"req": "", "enum": "c"}, spec.ErrNotInEnum},
		{map[string]string{"req": "", "pat": "abc"}, spec.ErrPatternMismatch},
		{map[string]string{"req": "", "pat": "a\n"}, spec.ErrPatternMismatch},
		{map[string]string{"req": "x${{ kit.env.Y }}"}, expand.ErrPlaceholder},
		{map[string]string{"req": "x\x00"}, expand.ErrNUL},
	} {
		_, err := expand.ResolveArgs(args, c.supplied, expand.PhaseCreate)
		if !errors.Is(err, c.want) || !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%q: %v, want %v", c.supplied, err, c.want)
		}
	}
	_, err = expand.ResolveArgs(args, map[string]string{"zzz": "SECRET", "enum": "SECRET"}, expand.PhaseCreate)
	if n := strings.Count(err.Error(), "\n"); n != 2 || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("all faults and no value: %v", err)
	}
}

func descriptor(config string) spec.Descriptor {
	return spec.Descriptor{
		Description: "d ${{ kit.args.x }} ${{ kit.env.HOME }}",
		Provides:    []string{"a@${{ kit.args.b }}", "c"},
		Build:       "RUN ${{ kit.args.x }}",
		Args:        map[string]spec.Arg{"x": {}, "y": {}, "b": {BuildArg: "B"}},
		Capabilities: []spec.Item{{Group: &spec.Group{Description: "g ${{ kit.args.x }}", Capabilities: []capability.Request{{
			Type: "com.docker.sandbox/volume@1", Name: "n ${{ kit.args.x }}", Config: []byte(config),
		}}}}},
	}
}

func TestPhasesLeaveEachOtherAlone(t *testing.T) {
	d := descriptor(`{"path":"${{ kit.args.b }}${{ kit.args.x }}"}`)
	built, err := expand.Build(d, map[string]string{"b": "2"})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(built.Capabilities[0].Group.Capabilities[0].Config); got != `{"path":"2${{ kit.args.x }}"}` || built.Provides[0] != "a@2" {
		t.Errorf("built: %s, %q", got, built.Provides)
	}
	created, err := expand.Create(built, map[string]string{"x": "v"})
	if err != nil {
		t.Fatal(err)
	}
	g := created.Capabilities[0].Group
	if string(g.Capabilities[0].Config) != `{"path":"2v"}` || g.Description != "g v" || g.Capabilities[0].Name != "n v" ||
		created.Description != "d v ${{ kit.env.HOME }}" || created.Build != d.Build {
		t.Errorf("created: %+v %+v", created, g)
	}
	if d.Provides[0] != "a@${{ kit.args.b }}" || strings.Contains(string(d.Capabilities[0].Group.Capabilities[0].Config), "2") {
		t.Error("expansion changed its input")
	}
}

func TestVolumeTextStaysText(t *testing.T) {
	d, err := expand.Create(descriptor(`{"path":"/v","size":"${{ kit.args.x }}","mode":"${{ kit.args.y }}","tmpfs":"${{ kit.args.x }}"}`), map[string]string{"x": "1024", "y": "755"})
	if got, want := string(d.Capabilities[0].Group.Capabilities[0].Config), `{"path":"/v","size":"1024","mode":"755","tmpfs":1024}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestValuesAreNotTemplates(t *testing.T) {
	args := map[string]spec.Arg{"x": {}, "y": {}}
	for _, c := range []struct {
		text   string
		values map[string]string
		want   error
	}{
		{"${{ kit.env.${{ kit.args.x }} }}", map[string]string{"x": "HOME"}, spec.ErrMalformedReference},
		{"$${{ kit.args.x }} kit.env.HOME }}", map[string]string{"x": "{{"}, expand.ErrJoined},
		{"${{${{ kit.args.x }}", map[string]string{"x": " kit.env.HOME }}"}, expand.ErrJoined},
		{"${{ kit.args.x }}${{ kit.args.y }}", map[string]string{"x": "${{", "y": "kit.env.HOME}}"}, expand.ErrJoined},
		{"${{ kit.args.x }}", map[string]string{"x": "${{kit.args.y}}"}, expand.ErrPlaceholder},
		{"${{ kit.args.x }}", map[string]string{"x": "a\x00"}, expand.ErrNUL},
		{"${{ kit.args.x }}", map[string]string{}, expand.ErrNoValue},
		{"${{ kit.args.z }}", map[string]string{}, expand.ErrUndeclared},
		{"${{ kit.args.x }}{kit.args.y}}", map[string]string{"x": "$"}, nil},
	} {
		_, err := expand.Document([]byte(`{"f":"`+c.text+`"}`), expand.PhaseCreate, args, c.values)
		if c.want == nil && err != nil || !errors.Is(err, c.want) {
			t.Errorf("%q with %q: %v, want %v", c.text, c.values, err, c.want)
		}
	}
}

func TestEnv(t *testing.T) {
	env := map[string]string{"HOME": "/h", "EMPTY": "", "N": "5", "NUL": "\x00", "T": "${{ kit.env.HOME }}"}
	d, err := expand.Env(descriptor(`{"path":"${{kit.env.HOME}}/x${{ kit.env.EMPTY }}","size":"${{ kit.env.N }}"}`), env)
	if got, want := string(d.Capabilities[0].Group.Capabilities[0].Config), `{"path":"/h/x","size":"5"}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if !strings.Contains(d.Description, "${{ kit.env.HOME }}") {
		t.Errorf("display text was expanded: %s", d.Description)
	}
	for _, c := range []struct {
		config string
		want   error
	}{
		{`{"path":"${{ kit.env.NOPE }}"}`, expand.ErrUnset}, {`{"${{ kit.env.HOME }}":1}`, expand.ErrEnvInKey},
		{`{"path":"${{ kit.env.NUL }}"}`, expand.ErrNUL}, {`{"path":"${{ kit.env.T }}"}`, expand.ErrPlaceholder},
		{`{"path":"${{ kit.env.2X }}"}`, spec.ErrMalformedReference},
	} {
		if _, err := expand.Env(descriptor(c.config), env); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.config, err, c.want)
		}
	}
}

// FuzzDocument says that no value changes the shape of a document, and that
// what comes out holds no placeholder that was not there.
func FuzzDocument(f *testing.F) {
	f.Add("a ${{ kit.args.x }}", "1")
	f.Add("${{ kit.args.x }}", "true")
	f.Add("${{${{ kit.args.x }}", " kit.env.A }}")
	f.Fuzz(func(t *testing.T, text, value string) {
		d := spec.Descriptor{Args: map[string]spec.Arg{"x": {}}, Capabilities: []spec.Item{{}}}
		doc := spec.Descriptor{Description: text}
		enc, err := doc.AppendJSON(nil)
		if err != nil {
			t.Skip()
		}
		out, err := expand.Document(enc, expand.PhaseCreate, d.Args, map[string]string{"x": value})
		if err != nil {
			return
		}
		if !out.IsValid() {
			t.Fatalf("%q with %q is not JSON: %s", text, value, out)
		}
		before, err := spec.References(text)
		if err != nil {
			return
		}
		env := 0
		for _, r := range before {
			if r.Scope == spec.ScopeEnv {
				env++
			}
		}
		if n := strings.Count(string(out), "kit.env."); spec.BeginsPlaceholder(string(out)) && env == 0 && n > 0 {
			t.Fatalf("%q with %q made a reference: %s", text, value, out)
		}
	})
}
