package compose

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

func TestAnArgThatIsNotAdmittedIsShownWithWhatWouldBe(t *testing.T) {
	other := "secret-of-the-kit"
	declared := map[string]spec.Arg{"port": {Pattern: "[0-9]+"}, "size": {Enum: []string{"s", "m"}}, "key": {Default: &other, Pattern: "x"}, "must": {Required: true}}
	supplied := map[string]string{"port": "abc", "size": "l"}
	_, err := expand.ResolveArgs(declared, supplied, expand.PhaseCreate)
	err = explainArgs(err, declared, supplied)
	want := "args.key: does not match pattern as a whole\nargs.must: is required and has no value\n" +
		"arg port=\"abc\" does not match pattern as a whole: [0-9]+\narg size=\"l\" is none of s, m"
	if err == nil || err.Error() != want || !errors.Is(err, kiterr.ErrRefused) || !errors.Is(err, spec.ErrPatternMismatch) {
		t.Errorf("%v, want\n%s", err, want)
	}
	if explainArgs(nil, declared, supplied) != nil {
		t.Error("an error of nothing")
	}
}

func TestAnArgThatNobodyDeclaresIsAnsweredByThoseDeclared(t *testing.T) {
	many := map[string]bool{}
	for i := range 25 {
		many[fmt.Sprintf("a%02d", i)] = true
	}
	for _, c := range []struct {
		known map[string]bool
		want  string
	}{
		{nil, "none is declared at all"},
		{map[string]bool{"b": true, "a": true}, "those declared are a, b"},
		{many, "those declared are a00, a01, a02, a03, a04, a05, a06, a07, a08, a09, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19 and 5 more"},
	} {
		if got := declaredArgs(c.known); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
