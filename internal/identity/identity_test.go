package identity

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAKitIsItsRepositoryOrItsPlace(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(dir, "layout")
	if err := os.Mkdir(layout, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layout, "oci-layout"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"hub.example:5000/a/kit:1":    "repository hub.example:5000/a/kit",
		"hub.example:5000/a/kit":      "repository hub.example:5000/a/kit",
		"hub.example/kit@sha256:abcd": "repository hub.example/kit",
		dir:                           "directory " + dir,
		layout:                        "layout " + layout,
		layout + ":1":                 "layout " + layout,
	} {
		if got, err := OfReference(ref); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", ref, got, err, want)
		}
	}
	for _, ref := range []string{filepath.Join(dir, "none"), "sha256:abcd"} {
		if got, err := OfReference(ref); err == nil {
			t.Errorf("%s is %q", ref, got)
		}
	}
}
