package copycmd

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/cli/world"
)

func TestWhatIsLeftOutIsNamedAFewTimes(t *testing.T) {
	var errs strings.Builder
	l := leftOut{e: &world.Env{Stderr: &errs}}
	for range 150 {
		l.add("x")
	}
	l.total()
	if strings.Count(errs.String(), "\n") != firstLeft+1 || !strings.Contains(errs.String(), "145 more") {
		t.Error(errs.String())
	}
}
