package shell_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/lint/shell"
)

// text shows a script on one line: reads (with "?" for a fallback), what is
// set, and the commands.
func text(s shell.Script) string {
	var reads, commands []string
	for _, r := range s.Reads {
		if r.Fallback {
			r.Name += "?"
		}
		reads = append(reads, r.Name)
	}
	for _, c := range s.Commands {
		commands = append(commands, strings.ReplaceAll(strings.Join(c, " "), shell.Unknown, "…"))
	}
	out := strings.Join(reads, " ") + " | " + strings.Join(slices.Sorted(maps.Keys(s.Sets)), " ") + " | " + strings.Join(commands, "; ")
	if s.Opaque {
		out += " | opaque"
	}
	return out
}

func TestParse(t *testing.T) {
	for src, want := range map[string]string{
		``:                         " |  | ",
		`a b; c`:                   " |  | a b; c",
		"a \\\n  b && c || d | e":  " |  | a b; c; d; e",
		`a "b c" 'd $e' \$f "\$g"`: " |  | a b c d $e $f $g",
		`a "$B"$C${D}`:             "B C D |  | a ………",
		`a ${B:-c} ${D-} ${E:+f}`:  "B? D? E? |  | a … … …",
		`a ${B:-$C}`:               "B? C |  | a …",
		`a ${#B} ${!C} ${D%/*} ${E[0]} ${F//x/y}`: "B C D E F |  | a … … … … …",
		`a $1 $@ $? $$ $# $`:                      " |  | a … … … … … $",
		`A=1 B+=2 c`:                              " | A B | A=1 B+=2 c",
		`: ${A:=1}`:                               "A? | A | : …",
		"a # b $C 'd\ne":                          " |  | a; e",
		`a#b`:                                     " |  | a#b",
		"cat <<E >f\n$A 'b\nE\nc $D":              "A D |  | cat; c …",
		"cat <<'E'\n$A 'b\nE\nc":                  " |  | cat; c",
		"cat <<-E\n\t$A\n\tE\nc":                  "A |  | cat; c",
		"cat <<A <<B\n$X\nA\n$Y\nB\nc":            "X Y |  | cat; c",
		`cat <<<"$A" 2>&1 >/dev/null`:             "A |  | cat",
		"a `b $C`":                                "C |  | b …; a …",
		`a "$(b "$(c $D)")"`:                      "D |  | c …; b …; a …",
		`(a; b) & { c; }`:                         " |  | a; b; { c; }",
		`if a; then b; else c; fi`:                " |  | if a; then b; else c; fi",
		`for f in a b; do c $f; done`:             "f | f | for f in a b; do c …; done",
		`case $A in b) c;; d|e) f;; esac`:         "A |  | case … in b; c; d; e; f; esac",
		`export A=1 B; local C`:                   " | A C | export A=1 B; local C",
		`export $(a)`:                             " |  | a; export … | opaque",
		`. /f`:                                    " |  | . /f | opaque",
		`read -r A B`:                             " | -r A B | read -r A B",
		`a $((B + $C)) $'d\'e'`:                   "C |  | a … …",
		`sh -c 'a b'`:                             " |  | sh -c a b; a b",
		`su - u -c "curl x"`:                      " |  | su - u -c curl x; curl x",
		`f() { a; }; f`:                           " |  | f; { a; }; f",
		`a ${{ kit.args.b }}c "${{kit.env.D}}"`:   " |  | a …c …",
		`a "b`:                                    " |  | a b",
		`a '`:                                     " |  | a ",
		`a $(b`:                                   " |  | b; a …",
		`a ${b`:                                   "b |  | a …",
		`a \`:                                     " |  | a ",
	} {
		if got := text(shell.Parse(src)); got != want {
			t.Errorf("%q:\n got %q\nwant %q", src, got, want)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"sh", "-c", "a $B"}, "B |  | a …"},
		{[]string{"/bin/bash", "-euxo", "pipefail", "-c", "a", "x"}, " |  | a"},
		{[]string{"bash", "-lc", "a $B"}, "B |  | a … | opaque"},
		{[]string{"bash", "--login", "-c", "a"}, " |  | a | opaque"},
		{[]string{"env", "A=1", "sh", "-c", "b"}, " |  | b"},
		{[]string{"bash", "/f", "$A"}, " |  | bash /f $A"},
		{[]string{"echo", "${{ kit.args.a }}"}, " |  | echo …"},
		{[]string{}, " |  | "},
	} {
		if got := text(shell.Of("", c.argv)); got != c.want {
			t.Errorf("%q: %q, want %q", c.argv, got, c.want)
		}
	}
	if got := text(shell.Of("a $B", nil)); got != "B |  | a …" {
		t.Errorf("text: %q", got)
	}
}

func TestSimple(t *testing.T) {
	for cmd, want := range map[string]string{
		"a b":                               "a b",
		"/usr/bin/curl x":                   "curl x",
		"A=1 B=2 c d":                       "c d",
		"sudo -u agent -E env -u X A=1 c d": "c d",
		"if ! timeout -s KILL 30 c d":       "c d",
		"then exec nice -n 5 c":             "c",
		"sudo -- c":                         "c",
		"sudo":                              "",
		"A=1":                               "",
	} {
		if got := strings.Join(shell.Simple(strings.Fields(cmd)), " "); got != want {
			t.Errorf("%q: %q, want %q", cmd, got, want)
		}
	}
}

// FuzzParse holds the scanner to ending, without a panic, on any text.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a ${B:-`c $(d <<E\n$F\nE\n)`}", "$((", "<<", "\\", "case a in b) ;; esac", "sh -c 'sh -c \"a\"'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range shell.Parse(s).Commands {
			shell.Simple(c)
		}
	})
}

func TestLongScriptsAreNotLookedInto(t *testing.T) {
	s := shell.Parse(strings.Repeat("curl https://a.ex $T\n", 5000))
	if !s.Opaque || len(s.Commands)+len(s.Reads) > 0 {
		t.Errorf("%d commands", len(s.Commands))
	}
}
