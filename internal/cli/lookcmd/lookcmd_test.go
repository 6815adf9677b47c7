package lookcmd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestStatusShowsWhatWasSkippedAndWhatDoesNotHold(t *testing.T) {
	var b bytes.Buffer
	writeInfo(&b, sandbox.Info{Name: "t", Skipped: []sandbox.Skipped{{Kit: "./w", Type: "x/usb@1", Reason: "this host does not implement it"}},
		Unenforced: []string{"pids: no cgroup controller is delegated"},
		Problems:   []string{"limit does not hold: pids: no cgroup controller is delegated", "a hook failed"}})
	for _, want := range []string{"skipped    x/usb@1 of ./w: this host does not implement it\n", "no limit   pids: no cgroup", "problem    a hook failed\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Count(b.String(), "pids") != 1 {
		t.Errorf("said twice:\n%s", b.String())
	}
}

func TestStatusSaysWhenASandboxStopsAndOnlyOfOneThatDoes(t *testing.T) {
	now := time.Now()
	up := sandbox.Info{State: sandbox.Ready, PID: 1, KeeperPID: 2, IdleMs: 1800_000, IdleSince: now.Add(-time.Minute), StopsAt: now.Add(29 * time.Minute)}
	busy, ever, orphan := up, up, up
	busy.IdleSince, busy.StopsAt = time.Time{}, time.Time{}
	ever.IdleMs, ever.StopsAt = 0, time.Time{}
	orphan.KeeperPID = 0
	for want, i := range map[string]sandbox.Info{
		"for 1m0s, stops in 29m0s at " + up.StopsAt.Local().Format(time.RFC3339) + " unless a session comes": up,
		"stopped 30m0s after its last session": busy,
		"never stopped for want of a session":  ever,
		"":                                     orphan,
	} {
		if got := idle(i, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
