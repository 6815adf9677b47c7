package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/fetch"
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
		"sha256:abcd":                 "image sha256:abcd",
		dir:                           "directory " + dir,
		layout:                        "layout " + layout,
		layout + ":1":                 "layout " + layout,
	} {
		if got, err := OfReference(ref); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", ref, got, err, want)
		}
	}
	for _, ref := range []string{filepath.Join(dir, "none"), "git+https://"} {
		if got, err := OfReference(ref); err == nil {
			t.Errorf("%s is %q", ref, got)
		}
	}
	// A Kit in a repository is the same at every commit, fetched or not.
	const repository = "git+https://hub.example/a/kits.git"
	for _, ref := range []string{repository, repository + "#ref=v1", repository + "#ref=v2&dir=tool"} {
		got, err := OfReference(ref)
		want, werr := Of(&fetch.Kit{Ref: ref, Source: fetch.Git})
		if err != nil || werr != nil || got != want || !strings.HasPrefix(got, "git ") || strings.Contains(got, "v1") || strings.Contains(got, "v2") {
			t.Errorf("%s is %q, and %q when it is fetched; %v, %v", ref, got, want, err, werr)
		}
	}
}
