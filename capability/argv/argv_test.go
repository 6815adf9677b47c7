package argv_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/kitbox-dev/kitbox/capability/argv"
)

func TestCommand(t *testing.T) {
	for _, tt := range []struct {
		text     string
		argv     []string
		runnable bool
	}{
		{`"a b"`, []string{"sh", "-c", "a b"}, true},
		{`["a","b c",""]`, []string{"a", "b c", ""}, true},
		{`""`, nil, false},
		{`" \t"`, []string{"sh", "-c", " \t"}, false},
		{`[]`, []string{}, false},
		{`["",  "x"]`, []string{"", "x"}, false},
		{`["a","\u0000"]`, []string{"a", "\x00"}, false},
		{`"a\u0000"`, []string{"sh", "-c", "a\x00"}, false},
	} {
		var c argv.Command
		if err := json.Unmarshal([]byte(tt.text), &c); err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if got := c.Argv(); !slices.Equal(got, tt.argv) || (c.Fault() == "") != tt.runnable {
			t.Errorf("%s: argv %q, fault %q", tt.text, got, c.Fault())
		}
		b, err := json.Marshal(c)
		var again argv.Command
		if err != nil || json.Unmarshal(b, &again) != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("%s went out as %s, %v", tt.text, b, err)
		}
	}
	for _, bad := range []string{`1`, `{}`, `true`, `[1]`, `[["a"]]`, `["a",{}]`, `["a"`} {
		var c argv.Command
		if json.Unmarshal([]byte(bad), &c) == nil {
			t.Errorf("%s is accepted as %+v", bad, c)
		}
	}
}

func TestEqualComparesWhatRuns(t *testing.T) {
	text, list := argv.Command{Shell: "ids a"}, argv.Command{List: []string{"sh", "-c", "ids a"}}
	if !text.Equal(list) || text.Equal(argv.Command{List: []string{"ids", "a"}}) {
		t.Error("text means sh -c")
	}
	var none argv.Command
	if !none.IsZero() || (argv.Command{List: []string{}}).IsZero() || text.IsZero() {
		t.Error("a stated empty list is not the absence of one")
	}
}

func TestTailMentions(t *testing.T) {
	tail := argv.Tail{"-p", "--ask={{.Prompt}}"}
	if !tail.Mentions("{{.Prompt}}") || tail.Mentions("{{.SessionID}}") || argv.Tail(nil).Mentions("x") {
		t.Error("Mentions")
	}
}
