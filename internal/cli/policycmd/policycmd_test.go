package policycmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/cli/world"
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

// A box has a log, and looks at how much of it has been printed.
type box struct {
	sandbox.Runtime
	sandbox.Sandbox
	t       *testing.T
	printed *bytes.Buffer
	last    func() // before the last event
}

const events = 100

func (b box) Open(context.Context, string) (sandbox.Sandbox, error) { return b, nil }

func (b box) PolicyLog(context.Context, sandbox.PolicyLogOptions) iter.Seq2[sandbox.PolicyEvent, error] {
	return func(yield func(sandbox.PolicyEvent, error) bool) {
		for i := range events {
			if got := bytes.Count(b.printed.Bytes(), []byte(`"host"`)); got != i {
				b.t.Fatalf("%d of %d events are printed, the others held", got, i)
			}
			if i == events-1 {
				b.last()
			}
			if !yield(sandbox.PolicyEvent{Host: fmt.Sprint(i, ".example")}, nil) {
				return
			}
		}
	}
}

// Few machines have the memory for all of a long one, and an interrupted one is not
// passed off as the whole.
func TestALongLogIsPrintedAsItIsRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for _, last := range []func(){func() {}, cancel} {
		var out bytes.Buffer
		b := box{t: t, printed: &out, last: last}
		cmd := policyLog(&world.Env{Runtime: b, Stdout: &out})
		cmd.SetArgs([]string{"t", "--json"})
		err := cmd.ExecuteContext(ctx)
		var all []sandbox.PolicyEvent
		jerr := json.Unmarshal(out.Bytes(), &all)
		if ctx.Err() == nil && (err != nil || jerr != nil || len(all) != events) {
			t.Errorf("%d events, %v, %v", len(all), err, jerr)
		}
		if ctx.Err() != nil && (err == nil || jerr == nil) {
			t.Errorf("interrupted: %v, %v", err, jerr)
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
