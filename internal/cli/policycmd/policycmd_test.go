package policycmd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/spf13/cobra"
)

func TestADecisionOfAnotherDayHasItsDate(t *testing.T) {
	now := time.Date(2030, 5, 6, 7, 8, 9, 0, time.Local)
	if s := clock(now.Add(-time.Hour), now); s != "06:08:09.000" {
		t.Error(s)
	}
	for _, then := range []time.Time{now.AddDate(0, 0, -1), now.AddDate(-1, 0, 0)} {
		if s := clock(then, now); !strings.HasPrefix(s, then.Format("2006-01-02 ")) {
			t.Error(s)
		}
	}
}

func TestARefusedRuleOfTheOperatorsIsAMistake(t *testing.T) {
	root := &cobra.Command{Use: "allow"}
	err := fmt.Errorf("%w: egress rule 1 of operator: pattern \"x:0\": \"0\" is not a port between 1 and 65535", kiterr.ErrRefused)
	if got := mistaken(root, err); kiterr.ExitCode(got) != kiterr.StatusFailed || !strings.HasPrefix(got.Error(), `pattern "x:0": `) {
		t.Error(got)
	}
	if other := fmt.Errorf("sandbox t: %w", kiterr.ErrRefused); mistaken(root, other) != other || mistaken(root, nil) != nil {
		t.Error("another refusal is not one of these")
	}
}
