package authoring_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const descriptor = "schemaVersion: \"3\"\nkind: mixin\n"

func TestFindPrefersTheFileNamedAfterTheDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
		err   error
	}{
		"the only descriptor":   {map[string]string{"other.yaml": descriptor, "compose.yaml": "services: {}\n"}, "other.yaml", nil},
		"named after directory": {map[string]string{"hello.yaml": descriptor, "b.yaml": descriptor}, "hello.yaml", nil},
		"kit.yaml":              {map[string]string{"kit.yaml": descriptor, "b.yml": descriptor}, "kit.yaml", nil},
		"comment descriptor":    {map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   kind: mixin\nFROM scratch\n"}, "Dockerfile", nil},
		"a plain recipe":        {map[string]string{"Dockerfile": "# a comment\nFROM scratch\n# kit:\n"}, "", kiterr.ErrNotFound},
		"ambiguous":             {map[string]string{"a.yaml": descriptor, "b.yaml": descriptor}, "", kiterr.ErrRefused},
		"too large":             {map[string]string{"a.yaml": descriptor + strings.Repeat("#", 1<<20)}, "", kiterr.ErrRefused},
		"too large beside one":  {map[string]string{"a.yaml": descriptor + strings.Repeat("#", 1<<20), "b.yaml": descriptor}, "b.yaml", nil},
		"large, and none":       {map[string]string{"data.yaml": "x: " + strings.Repeat("#", 1<<20)}, "", kiterr.ErrNotFound},
		"nothing":               {nil, "", kiterr.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "hello")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for f, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := authoring.Find(dir)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("Find = %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestStemAndCompanion(t *testing.T) {
	for file, want := range map[string][2]string{
		"hello.yaml":        {"hello", "hello.dockerfile"},
		"sub/gh.yml":        {"gh", "sub/gh.dockerfile"},
		"motd.dockerfile":   {"motd", "motd.dockerfile"},
		"Dockerfile":        {"Dockerfile", "Dockerfile.dockerfile"},
		"with.dots.kit.yml": {"with.dots.kit", "with.dots.kit.dockerfile"},
	} {
		if got := authoring.Stem(file); got != want[0] {
			t.Errorf("Stem(%q) = %q, want %q", file, got, want[0])
		}
		if got := authoring.Companion(file); got != want[1] {
			t.Errorf("Companion(%q) = %q, want %q", file, got, want[1])
		}
	}
}

func TestFindNamesWhatItCannotChooseFrom(t *testing.T) {
	const yaml = "schemaVersion: \"3\"\nkind: workload\n"
	const comment = "# syntax=docker/sandbox-kit:3\n# kit:\n#   kind: workload\nFROM scratch\n"
	for want, files := range map[string]map[string]string{
		"holds two workloads, a.yaml and b.yaml; a composition has exactly one: name the file": {"a.yaml": yaml, "b.yaml": yaml},
		"holds two workloads, a.dockerfile and b.yaml; ":                                       {"a.dockerfile": comment, "b.yaml": yaml},
		"holds several Kit descriptors, a.yaml, b.yaml and c.yaml: name the file":              {"a.yaml": yaml, "b.yaml": descriptor, "c.yaml": yaml},
	} {
		dir := t.TempDir()
		for f, text := range files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := authoring.Find(dir); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("Find = %v, want %q", err, want)
		}
	}
}

func TestOnlyRegularFilesAreOpenedAndReadUpToABound(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(syscall.Mkfifo(at("pipe"), 0o600), os.WriteFile(at("file"), []byte("text"), 0o600), os.WriteFile(at("large"), nil, 0o600),
		os.Truncate(at("large"), 1<<40), os.Symlink("file", at("link"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"pipe": kiterr.ErrRefused, ".": kiterr.ErrRefused, "none": fs.ErrNotExist} {
		if _, err := authoring.Read(at(name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	for name, want := range map[string]int{"file": 4, "link": 4, "large": 1<<20 + 1} {
		if data, err := authoring.Read(at(name)); err != nil || len(data) != want {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}
