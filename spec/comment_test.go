package spec_test

import (
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
		// A comment would end the directives, so it goes behind them.
		{"# syntax=a\n# check=error=true\n#escape=`\n" + block + "FROM x\n", "# check=error=true\n#escape=`\n# syntax a\n" + block + "FROM x\n"},
		// What the descriptor says is no directive of the recipe.
		{"# syntax=a\n" + block + "#   description: |\n#     syntax=b\n#   version: '1'\n# syntax=c\nFROM x\n", "# syntax=c\nFROM x\n"},
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
