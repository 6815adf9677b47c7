package frontend

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/kitbox-dev/kitbox/spec"
)

// published returns the descriptor of text after change, encoded.
func published(t *testing.T, text string, change func(*spec.Descriptor)) (k *kit, annotation []byte) {
	t.Helper()
	doc, ds := spec.Decode([]byte(text), spec.Options{})
	if err := ds.Err(); err != nil {
		t.Fatal(err)
	}
	d := doc.Descriptor
	change(&d)
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return &kit{text: []byte(text), published: d}, b
}

func TestStagedDescriptorKeepsCommentsAndSaysWhatIsPublished(t *testing.T) {
	const text = `# syntax=docker/sandbox-kit:3
schemaVersion: '3'
kind: workload   # runs
# what it is called
displayName: Hello
provides: ["hello@1.0.0"] # one
args:
  # chosen by the author
  v: {default: "1", buildArg: V}
build: |
  FROM scratch
  # not YAML
  CMD ["x"]
`
	for name, c := range map[string]struct {
		change func(*spec.Descriptor)
		has    []string
		same   bool
	}{
		"nothing changed": {func(*spec.Descriptor) {}, []string{text}, true},
		"entries added": {func(d *spec.Descriptor) {
			d.Provides = append(d.Provides, "deb/bash@5.2.15")
		}, []string{"# runs", "# what it is called", "# one", "# chosen by the author", "# syntax=docker/sandbox-kit:3", "deb/bash@5.2.15", "  # not YAML\n"}, false},
		"a value changed": {func(d *spec.Descriptor) {
			d.DisplayName, d.Version = "yes", "2.0"
		}, []string{"# what it is called", `displayName: "yes"`, `"2.0"`}, false},
		"a key gone": {func(d *spec.Descriptor) {
			d.Args = nil
		}, []string{"# runs"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			k, annotation := published(t, text, c.change)
			got, err := k.stagedYAML(annotation)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.has {
				if !strings.Contains(string(got), want) {
					t.Errorf("lacks %q:\n%s", want, got)
				}
			}
			if !equalsPublished(got, annotation) {
				t.Errorf("says something else than %s:\n%s", annotation, got)
			}
		})
	}
}

func TestStagedDescriptorSurvivesAnchors(t *testing.T) {
	const text = `schemaVersion: "3"
kind: mixin
provides: &p [a@1.0]
conflicts: [b]
licenses: *p
`
	k, annotation := published(t, text, func(d *spec.Descriptor) { d.Provides = []string{"c@1.0"} })
	got, err := k.stagedYAML(annotation)
	if err != nil {
		t.Fatal(err)
	}
	if !equalsPublished(got, annotation) {
		t.Errorf("says something else than %s:\n%s", annotation, got)
	}
}

func TestForeignSyntaxIsToldFromOurs(t *testing.T) {
	sum := "@sha256:" + strings.Repeat("0", 64)
	for line, want := range map[string]bool{
		"# syntax=docker/dockerfile:1":                            false,
		"# syntax=docker/dockerfile":                              false,
		"# syntax=docker/dockerfile:latest":                       false,
		"# syntax=docker/dockerfile:1.7":                          false,
		"#syntax = docker.io/docker/dockerfile:1.7.0":             false,
		"# syntax=index.docker.io/docker/dockerfile:1":            false,
		"# syntax=docker/sandbox-kit:3":                           false,
		"# a comment":                                             false,
		"#syntax = docker.io/docker/dockerfile:1.7-labs":          true,
		"# syntax=docker/dockerfile:1-labs":                       true,
		"# syntax=docker/dockerfile:labs":                         true,
		"# syntax=docker/dockerfile:master":                       true,
		"# syntax=docker/dockerfile:1.0-experimental":             true,
		"# syntax=docker/dockerfile:1.20.0-rc1":                   true,
		"# syntax=docker/dockerfile:2":                            true,
		"# syntax=docker/dockerfile:10":                           true,
		"# syntax=docker/dockerfile-upstream":                     true,
		"# syntax=docker/dockerfile-upstream:master":              true,
		"# syntax=docker/dockerfile" + sum:                        true,
		"# syntax=docker/dockerfile:1" + sum:                      true,
		"# syntax=localhost:5000/other/frontend":                  true,
		"# syntax=localhost:5000/docker/dockerfile:1":             true,
		"# syntax=mirror.example/docker/dockerfile:1":             true,
		"# syntax=UPPER/dockerfile:1":                             true,
		"// syntax=docker/dockerfile:1-labs":                      true,
		"# escape=\\\n# syntax=docker/dockerfile:1-labs":          true,
		"#!/usr/bin/env build\n# syntax=docker/dockerfile:1-labs": true,
	} {
		r := &recipe{data: []byte(line + "\nFROM scratch\n")}
		if r.classify(); r.foreign != want {
			t.Errorf("%s: foreign = %v, want %v", line, r.foreign, want)
		}
	}
}

func TestANewerDockerfileIsTold(t *testing.T) {
	for tag, want := range map[string]bool{
		"": false, ":1": false, ":1.0": false, fmt.Sprintf(":1.%d", dockerfileMinor): false, fmt.Sprintf(":1.%d.9", dockerfileMinor): false,
		fmt.Sprintf(":1.%d", dockerfileMinor+1): true, ":1.9999": true, ":1.9999-labs": false,
	} {
		r := &recipe{data: []byte("# escape=`\n# syntax=docker/dockerfile" + tag + "\nFROM scratch\n")}
		r.classify()
		if got := r.behind(); (got != "") != want || want && !strings.Contains(got, tag[1:]) || r.syntax != 2 {
			t.Errorf("%s: %q, line %d", tag, got, r.syntax)
		}
	}
}

// TestTheVersionOfDockerfileIsThatOfBuildKit fails when one is updated without
// the other.
func TestTheVersionOfDockerfileIsThatOfBuildKit(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("github.com/moby/buildkit v0.%d.", dockerfileMinor+6); !strings.Contains(string(mod), want) {
		t.Errorf("go.mod has no %s: what dockerfileMinor says is not what is linked", want)
	}
}
