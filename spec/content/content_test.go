package content_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
)

func TestContent(t *testing.T) {
	files := map[string]bool{"lamp.dockerfile": true, "sub/x.dockerfile": true}
	for _, c := range []struct {
		src  string
		stem string
		want content.Source
		err  error
	}{
		{"kind: workload", "lamp", content.Source{RecipeFile: "lamp.dockerfile"}, nil},
		{"kind: workload", "other", content.Source{}, content.ErrNoContent},
		{"kind: mixin", "other", content.Source{}, nil},
		{"kind: mixin\ndockerfile: ./sub/../sub/x.dockerfile", "lamp", content.Source{RecipeFile: "sub/x.dockerfile"}, nil},
		{"kind: mixin\ndockerfile: y", "lamp", content.Source{RecipeFile: "y"}, content.ErrNoRecipe},
		{"kind: mixin\nbuild: \"# syntax=z\\nFROM x\\n\"", "lamp", content.Source{Recipe: "# syntax=z\nFROM x\n"}, nil},
		{"kind: set\nkits: [{ref: a}]", "lamp", content.Source{Kits: true}, nil},
	} {
		d, diags := spec.Decode([]byte("schemaVersion: \"3\"\n"+c.src+"\n"), spec.Options{})
		if len(diags) > 0 {
			t.Fatal(diags)
		}
		got, err := content.Find(d, c.stem, func(name string) bool { return files[name] })
		if got != c.want || !errors.Is(err, c.err) {
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
	out, files, err := content.Stage(d, "lamp")
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
		{[]string{"./x/kit.yaml"}, content.ErrReservedStage}, {[]string{"kit.dockerfile"}, content.ErrReservedStage},
		{[]string{"a/x.md", "b/x.md"}, content.ErrStagedTwice}, {[]string{"../x.md"}, content.ErrOutside}, {[]string{"/etc/passwd"}, content.ErrOutside},
	} {
		var d spec.Descriptor
		for _, f := range c.files {
			d.Capabilities = append(d.Capabilities, entry(f))
		}
		if _, _, err := content.Stage(d, "lamp"); !errors.Is(err, c.err) {
			t.Errorf("%q: %v, want %v", c.files, err, c.err)
		}
	}
}
