package template_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/format"
	"github.com/kitbox-dev/kitbox/spec/lint"
	"github.com/kitbox-dev/kitbox/spec/template"
)

// TestNewKitsAreClean holds every template to what it is to teach: no finding
// of any kind, and a layout that formatting leaves alone.
func TestNewKitsAreClean(t *testing.T) {
	for _, kind := range template.Kinds {
		for _, name := range []string{"x", "my-tool", "c++", "node-18.x1", "0", "null"} {
			files, err := template.Files(kind, name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(files[0].Data), "--build-arg") {
				t.Errorf("%s: kitbox build has no --build-arg", kind)
			}
			if files[0].Path != name+".yaml" {
				t.Errorf("%s: the first file is %s", kind, files[0].Path)
			}
			recipe := ""
			if len(files) > 1 {
				recipe = string(files[1].Data)
			}
			if (recipe == "") != (kind == spec.KindSet) {
				t.Errorf("%s: recipe %q", kind, recipe)
			}
			if kind == spec.KindWorkload && !strings.Contains(recipe, "\nENV BASH_ENV=/") {
				t.Errorf("%s: BASH_ENV is not set, which building warns of:\n%s", kind, recipe)
			}
			d, ds := spec.Decode(files[0].Data, spec.Options{})
			if d == nil {
				t.Fatal(ds)
			}
			ds = append(ds, d.Validate()...)
			for _, f := range lint.Check(d, lint.Options{Recipe: recipe, Names: []string{name}}) {
				ds = append(ds, f.Diagnostic)
			}
			if len(ds) > 0 || d.Kind != kind {
				t.Errorf("%s %s: kind %s, %v\n%s", kind, name, d.Kind, ds, files[0].Data)
			}
			out, err := format.Source(files[0].Data)
			if err != nil || string(out) != string(files[0].Data) {
				t.Errorf("%s: formatting makes of it, %v:\n%s", kind, err, out)
			}
		}
	}
}

func TestBadNames(t *testing.T) {
	for _, c := range [][2]string{{"workload", ""}, {"workload", "A"}, {"workload", "a/b"}, {"workload", ".."}, {"workload", "a-"}, {"mixin", "com.example/x"}, {"sandbox", "x"}, {".", "x"}, {"", "x"}, {"../lint", "x"}} {
		if fs, err := template.Files(c[0], c[1]); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%q: %v, %v", c, fs, err)
		}
	}
	if !slices.Contains(template.Kinds, "mixin") {
		t.Error("no mixin")
	}
}
