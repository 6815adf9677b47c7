package compose

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestALimitOfTheOperatorHoldsOrIsRefusedWithWhatToDo(t *testing.T) {
	c := New(Config{Unenforced: func(l plan.Limits) []string {
		if l.CPUMillis > 0 {
			return []string{"cpu: no control group is delegated"}
		}
		return nil
	}})
	if l, err := c.operatorLimits(sandbox.Limits{Pids: 9}); err != nil || l != (plan.Limits{Pids: 9, Enforce: true}) {
		t.Errorf("%+v, %v", l, err)
	}
	_, err := c.operatorLimits(sandbox.Limits{CPUs: 1})
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "cpu: no control group is delegated; leave them out, or see 'kitbox doctor'") {
		t.Errorf("%v", err)
	}
}
