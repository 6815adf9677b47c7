package plan

import (
	"strings"
	"testing"
)

func TestLaunchFollowsTheFormat(t *testing.T) {
	for _, c := range []struct {
		what     string
		l        Launch
		args     []string
		terminal bool
		want     string
	}{
		{"headless is entrypoint and command", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, nil, false, "e c"},
		{"args are appended", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, []string{"a"}, false, "e c a"},
		{"a terminal alone changes nothing", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, nil, true, "e c"},
		{"a stated tail replaces the command", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, Interactive: []string{"t"}, InteractiveStated: true}, nil, true, "e t"},
		{"a stated empty tail is the entrypoint alone", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, InteractiveStated: true}, []string{"a"}, true, "e a"},
		{"a tail is nothing without a terminal", Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, Interactive: []string{"t"}, InteractiveStated: true}, nil, false, "e c"},
		{"bash", Launch{Argv: []string{"e", "c"}, Bash: true}, []string{"a b"}, false, `/bin/bash -c exec "$@" bash e c a b`},
	} {
		before := strings.Join(c.l.Argv, " ")
		if got := strings.Join(c.l.Command(c.args, c.terminal), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if strings.Join(c.l.Argv, " ") != before {
			t.Errorf("%s: the plan was changed", c.what)
		}
	}
}
