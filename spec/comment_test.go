package spec_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
)

func TestCommentDescriptorPassesThroughByteForByte(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"# kit:\n#   a: 1\nFROM x\n", "a: 1\n"},
		{"# syntax=x\n\n# kit:\n#   a: \\n \\\\ \"\t\n#\n#     b\n#\n", "a: \\n \\\\ \"\t\n\n  b\n\n"},
		{"# kit: \t\r\n#   a: 1\r\n#\r\nFROM x\r\n", "a: 1\n\n"},
		{"# kit:\n#  two\n", ""},
		{"#kit:\n#   a: 1\n", ""},
		{"# kit: x\n#   a: 1\n", ""},
		{" # kit:\n#   a: 1\n", ""},
		{"FROM x\n# kit:\n#   a: 1\n", ""},
		{"# kit:\n#   a: 1\n# end\n#   b: 2\n", "a: 1\n"},
		{"# kit:\n\n#   a: 1\n", ""},
		{"# kit:\n", ""},
	} {
		b, ok := spec.ExtractComment([]byte(c.src))
		if ok != (c.want != "") || string(b.Descriptor) != c.want {
			t.Errorf("%q gives %q, %v; want %q", c.src, b.Descriptor, ok, c.want)
		}
	}
}

func TestRecipeOfACommentDescriptor(t *testing.T) {
	block := "# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n"
	for _, c := range []struct{ src, want string }{
		// The recipe's own frontend: everything from its directive.
		{"# syntax=docker/sandbox-kit:3\n" + block + "# syntax=docker/dockerfile:1\nFROM x\n", "# syntax=docker/dockerfile:1\nFROM x\n"},
		// None: the Kit's directive is no longer one, and lines keep their numbers.
		{"# syntax=docker/sandbox-kit:3\n" + block + "FROM x\n", "# syntax docker/sandbox-kit:3\n" + block + "FROM x\n"},
		// A directive behind the first instruction is a comment.
		{"#syntax = docker/sandbox-kit:3\n" + block + "FROM x\n# syntax=y\n", "#syntax   docker/sandbox-kit:3\n" + block + "FROM x\n# syntax=y\n"},
		{block + "FROM x\n", block + "FROM x\n"},
	} {
		d, diags := spec.Decode([]byte(c.src), spec.Options{})
		if len(diags) > 0 {
			t.Fatalf("%q: %v", c.src, diags)
		}
		if got, ok := d.Recipe(); !ok || got != c.want {
			t.Errorf("%q has the recipe %q, want %q", c.src, got, c.want)
		}
	}
}

func TestCommentDescriptorFindingsPointIntoTheDockerfile(t *testing.T) {
	src := "# syntax=docker/sandbox-kit:3\n#\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   build: x\n#   nope: 1\nFROM x\n"
	diags := judge(src, capability.Authored)
	if len(diags) != 2 {
		t.Fatalf("findings: %v", diags)
	}
	if d := diags[0]; d.Path != "nope" || d.Line != 7 || d.Column != 5 {
		t.Errorf("unknown key: %+v", d)
	}
	if d := diags[1]; d.Path != "build" || d.Line != 6 || d.Statement != "SPEC-v3 §3.3/comment-descriptor-no-content" {
		t.Errorf("second recipe: %+v", d)
	}
}

func TestYAMLDescriptorIsNotSearchedForAnother(t *testing.T) {
	src := "# kit:\n#   kind: workload\nschemaVersion: \"3\"\nkind: mixin\n"
	d, diags := spec.Decode([]byte(src), spec.Options{})
	if len(diags) > 0 || d.Kind != spec.KindMixin {
		t.Errorf("got %v, %v", d, diags)
	}
	if _, comment := d.Recipe(); comment {
		t.Error("it counts as a comment descriptor")
	}
}

func TestContent(t *testing.T) {
	files := map[string]bool{"lamp.dockerfile": true, "sub/x.dockerfile": true}
	for _, c := range []struct {
		src  string
		stem string
		want spec.Content
		err  error
	}{
		{"kind: workload", "lamp", spec.Content{RecipeFile: "lamp.dockerfile"}, nil},
		{"kind: workload", "other", spec.Content{}, spec.ErrNoContent},
		{"kind: mixin", "other", spec.Content{}, nil},
		{"kind: mixin\ndockerfile: ./sub/../sub/x.dockerfile", "lamp", spec.Content{RecipeFile: "sub/x.dockerfile"}, nil},
		{"kind: mixin\ndockerfile: y", "lamp", spec.Content{RecipeFile: "y"}, spec.ErrNoRecipe},
		{"kind: mixin\nbuild: \"# syntax=z\\nFROM x\\n\"", "lamp", spec.Content{Recipe: "# syntax=z\nFROM x\n"}, nil},
		{"kind: set\nkits: [{ref: a}]", "lamp", spec.Content{Kits: true}, nil},
	} {
		d, diags := spec.Decode([]byte("schemaVersion: \"3\"\n"+c.src+"\n"), spec.Options{})
		if len(diags) > 0 {
			t.Fatal(diags)
		}
		got, err := d.Content(c.stem, func(name string) bool { return files[name] })
		if got != c.want || !is(err, c.err) {
			t.Errorf("%q: %+v, %v; want %+v, %v", c.src, got, err, c.want, c.err)
		}
	}
}

func TestStage(t *testing.T) {
	entry := func(file string) spec.Item {
		return spec.Item{Request: capability.Request{
			Type: "com.docker.sandbox/agent-context@1", Config: []byte(`{"contentFile":"` + file + `"}`),
		}}
	}
	d := spec.Descriptor{Capabilities: []spec.Item{entry("./docs/a.md"), {Group: &spec.Group{Capabilities: []capability.Request{entry("docs/a.md").Request}}}}}
	out, files, err := spec.Stage(d, "lamp")
	if err != nil || len(files) != 1 || files[0].From != "docs/a.md" || files[0].To != "/usr/share/sandbox/kit/lamp/a.md" {
		t.Fatalf("Stage = %+v, %v", files, err)
	}
	want := `{"contentFile":"/usr/share/sandbox/kit/lamp/a.md"}`
	if got := string(out.Capabilities[0].Config); got != want {
		t.Errorf("entry: %s", got)
	}
	if got := string(out.Capabilities[1].Group.Capabilities[0].Config); got != want {
		t.Errorf("member: %s", got)
	}
	if strings.Contains(string(d.Capabilities[0].Config), "/usr") || strings.Contains(string(d.Capabilities[1].Group.Capabilities[0].Config), "/usr") {
		t.Error("Stage changed its input")
	}
	for _, c := range []struct {
		files []string
		err   error
	}{
		{[]string{"./x/kit.yaml"}, spec.ErrReservedStage}, {[]string{"kit.dockerfile"}, spec.ErrReservedStage},
		{[]string{"a/x.md", "b/x.md"}, spec.ErrStagedTwice}, {[]string{"../x.md"}, spec.ErrOutside}, {[]string{"/etc/passwd"}, spec.ErrOutside},
	} {
		var d spec.Descriptor
		for _, f := range c.files {
			d.Capabilities = append(d.Capabilities, entry(f))
		}
		if _, _, err := spec.Stage(d, "lamp"); !is(err, c.err) {
			t.Errorf("%q: %v, want %v", c.files, err, c.err)
		}
	}
}
