package compose

import (
	"errors"
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
