package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestExamplesBuildOfflineAndPassTheSuite builds every descriptor below examples
// on the base image, with steps that have no network, and lets the judge look at
// what came of it.
func TestExamplesBuildOfflineAndPassTheSuite(t *testing.T) {
	if o := kitbox(t, "kit", "check", "--strict", "./examples"); o.Code != 0 {
		t.Errorf("kit check: %d\n%s%s", o.Code, o.Stdout, o.Stderr)
	}
	dirs, err := os.ReadDir(filepath.Join(repo, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, d := range dirs { // a set comes after the Kits that it lists, by name
		for _, file := range descriptors(t, filepath.Join(repo, "examples", d.Name())) {
			name := strings.TrimSuffix(strings.TrimSuffix(file, ".yaml"), ".dockerfile")
			seen = append(seen, name)
			t.Run(d.Name()+"/"+file, func(t *testing.T) {
				tag := "kitbox.local/example-" + name + ":1"
				ok(t, "build", "-q", "--tag", tag, "./"+filepath.Join("examples", d.Name(), file))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				o := finish(t, command(ctx, "kit-tck", "validate", tag, "--layout", filepath.Join(home, "images")))
				if o.Code != 0 || !strings.Contains(o.Stdout, " 0 failed, 0 warnings") {
					t.Errorf("kit-tck validate: %d\n%s%s", o.Code, o.Stdout, o.Stderr)
				}
				// What waits for arguments is judged when it is composed. A
				// host may lack what a Kit asks for; it must not find it wrong.
				plan := []string{"plan", tag}
				if strings.Contains(o.Stdout, "  mixin  ") {
					base := "./examples/shell"
					if name == "tool" {
						base = "./examples/hello"
					}
					plan = []string{"plan", base, "--kit", tag}
				}
				if o := kitbox(t, plan...); o.Code != 0 && !strings.Contains(o.Stderr, "this host") || strings.Contains(o.Stderr, "invalid") {
					t.Errorf("%q: %d\n%s", plan, o.Code, o.Stderr)
				}
			})
		}
	}
	for _, want := range []string{"hello", "tool", "motd", "banner", "shell", "forge", "parrot", "shared-cache", "ssh-signing", "team"} {
		if !slices.Contains(seen, want) {
			t.Errorf("there is no example %s", want)
		}
	}
}

// descriptors returns the files of a directory that hold one.
func descriptors(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // a directory
		}
		switch filepath.Ext(e.Name()) {
		case ".yaml":
			if strings.Contains(string(text), "schemaVersion:") {
				names = append(names, e.Name())
			}
		case ".dockerfile":
			if strings.Contains(string(text), "\n# kit:\n") {
				names = append(names, e.Name())
			}
		}
	}
	return names
}

// TestAnExampleWorkloadTakesMixins composes what needs nothing of the host.
func TestAnExampleWorkloadTakesMixins(t *testing.T) {
	out := ok(t, "run", "-q", "--rm", "--exec", "./examples/shell", "--kit", "./examples/banner", "--", "sh", "-c", "banner hi; id -un; ls -d ~/keep")
	if want := "+----+\n| hi |\n+----+\nagent\n/home/agent/keep\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}
