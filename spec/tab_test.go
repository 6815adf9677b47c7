package spec_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec"
)

// A tab is the fault that YAML parsers have the strangest words for.
func TestATabIsCalledATab(t *testing.T) {
	for text, line := range map[string]int{
		"schemaVersion: \"3\"\nkind: mixin\ncapabilities:\n\t- type: a/b@1\n":                             4,
		"schemaVersion: \"3\"\nkind: mixin\nargs:\n  a:\n  \tdefault: x\n":                                5,
		"# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides:\n\t- a@1\n\t- b@1\n": 5,
		"schemaVersion: \"3\"\nkind: mixin\ncapabilities:\n  - type: a/b@1\n    config:\n\t\tpath: /x\n":  6,
	} {
		_, ds := spec.Decode([]byte(text), spec.Options{File: "kit.yaml"})
		if err := ds.Err(); err == nil || ds[0].Line != line || !strings.Contains(ds[0].Message, "indented with a tab") || !strings.Contains(ds[0].Message, "put blanks") {
			t.Errorf("%q: %+v", text, ds)
		}
	}
}
