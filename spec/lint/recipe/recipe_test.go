package recipe_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/lint/recipe"
	"github.com/kitbox-dev/kitbox/spec/lint/shell"
)

func TestBase(t *testing.T) {
	for src, want := range map[string]string{
		"":                                 "",
		"FROM a":                           "a",
		"# syntax=x\n\nfrom a:1 AS b":      "a:1",
		"FROM a AS b\nFROM c":              "c",
		"FROM a AS b\nFROM B":              "a",
		"FROM a AS a\nFROM a":              "a",
		"ARG X=a\nFROM ${X}:${Y:-1}":       "a:1",
		"ARG X=\"a\" Y=b\nFROM $X/$Y":      "a/b",
		"ARG X\nFROM $X":                   "",
		"FROM a\nARG X=b\nFROM $X":         "", // an argument of a stage is not one of FROM
		"FROM --platform=$BUILDPLATFORM a": "a",
		"FROM ${X":                         "",
		"FROM":                             "",
	} {
		if got, _ := recipe.Parse(src).Base(); got != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

func TestRuns(t *testing.T) {
	for src, want := range map[string]string{
		"RUN a":                     "", // before any FROM
		"FROM x\nRUN a && b\nRUN c": "a; b; c",
		"FROM x\nRUN --mount=type=cache,target=/x --network=none \\\n  # note\n\n  a \\\n  b": "a b",
		"FROM x\nRUN [\"a\", \"b c\"]":              "a b c",
		"FROM x\nRUN [ -f a ] || b":                 "[ -f a ]; b",
		"FROM x\nRUN <<EOF\na\nb\nEOF\nRUN c":       "a; b; c",
		"FROM x\nRUN cat <<'EOF' >f\na\nEOF\nRUN c": "cat; c",
		"FROM x\nCOPY <<EOF /f\nRUN a\nEOF\nRUN b":  "b",
		"FROM x\nLABEL a=b\nUSER c":                 "",
	} {
		var got []string
		for _, s := range recipe.Parse(src).Stages {
			for _, r := range s.Runs {
				for _, c := range r.Commands {
					got = append(got, strings.ReplaceAll(strings.Join(c, " "), shell.Unknown, "…"))
				}
			}
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

func TestAdds(t *testing.T) {
	for src, want := range map[string]bool{
		"FROM x\nCOPY a /":                   true,
		"FROM x\nADD --chown=1 a.tar /":      true,
		"FROM x\nCOPY [\"a\", \"/\"]":        true,
		"FROM x\nCOPY passwd /etc/passwd":    true,
		"FROM x\nCOPY a /a":                  false,
		"FROM x\nWORKDIR /":                  false,
		"FROM x\nCOPY <<E /etc/passwd\na\nE": true,
	} {
		if got := recipe.Parse(src).Stages[0].Adds; got != want {
			t.Errorf("%q: %v", src, got)
		}
	}
}
