package policycmd

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
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
	cmd := &cobra.Command{Use: "allow"}
	err := fmt.Errorf("rules: %w", &sandbox.RuleError{Faults: []string{`pattern "x:0": "0" is not a port between 1 and 65535`, "two"}})
	if !errors.Is(err, kiterr.ErrRefused) {
		t.Error("it is a refusal for programs")
	}
	if got := mistaken(cmd, err); kiterr.ExitCode(got) != kiterr.StatusFailed || got.Error() != `pattern "x:0": "0" is not a port between 1 and 65535; two; see "allow --help"` {
		t.Error(got)
	}
	if other := fmt.Errorf("egress rule 1 of operator: %w", kiterr.ErrRefused); mistaken(cmd, other) != other || mistaken(cmd, nil) != nil {
		t.Error("another refusal is not one of these")
	}
}
