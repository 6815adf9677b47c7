package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/killer"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// trimming is the directory of a hook log that this process, when it is set, adds to
// and cuts down for ever.
const trimming = "KITBOX_TEST_TRIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(trimming); dir != "" {
		for {
			if err := fillHookLog(dir); err != nil {
				panic(err)
			}
			fmt.Println("cut")
			if err := trimHookRuns(dir); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// fillHookLog adds runs of a startup hook until the log is too long; their indexes
// count up.
func fillHookLog(dir string) error {
	runs, err := HookRuns(dir)
	if err != nil {
		return err
	}
	for n := runs[len(runs)-1].Index + 1; ; n++ {
		r := sandbox.HookRun{Time: time.Now(), Kit: "k", Phase: string(plan.Runtime), Index: n, Output: strings.Repeat("x", keptOutput)}
		if err := appendHookRun(dir, r); err != nil {
			return err
		}
		if st, err := os.Stat(filepath.Join(dir, HookLogName)); err != nil || st.Size() > maxHookLog {
			return err
		}
	}
}

func installedOnce(t *testing.T, dir string) {
	t.Helper()
	for i := range 2 {
		if err := appendHookRun(dir, sandbox.HookRun{Kit: "k", Phase: string(plan.Install), Index: i, Output: "once"}); err != nil {
			t.Fatal(err)
		}
	}
}

// checkHookRuns wants both runs of install hooks, and of the others the newest without
// a gap.
func checkHookRuns(t *testing.T, dir string) (newest int) {
	t.Helper()
	runs, err := HookRuns(dir)
	if err != nil || len(runs) < 3 || runs[0].Output != "once" || runs[1].Output != "once" || runs[1].Index != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	for i := 3; i < len(runs); i++ {
		if runs[i].Phase != string(plan.Runtime) || runs[i].Index != runs[i-1].Index+1 || len(runs[i].Output) != keptOutput {
			t.Fatalf("run %d is %s %d after %d", i, runs[i].Phase, runs[i].Index, runs[i-1].Index)
		}
	}
	return runs[len(runs)-1].Index
}

func TestALongHookLogIsCutDownAtABoot(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	// What no boot has bounded so far may be very long.
	installedOnce(t, dir)
	for range 30 {
		if err := fillHookLog(dir); err != nil {
			t.Fatal(err)
		}
		r := sandbox.HookRun{Kit: "k", Phase: string(plan.Runtime), Index: checkHookRuns(t, dir) + 1, Output: strings.Repeat("x", keptOutput)}
		if err := appendHookRun(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	newest := checkHookRuns(t, dir)
	x := w.live(t, dir, testPlan(), false, nil)
	<-x.k.Booted()
	st, err := os.Stat(filepath.Join(dir, HookLogName))
	if err != nil || st.Size() > maxHookLog*3/4 || st.Size() < maxHookLog/4 || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	runs, err := HookRuns(dir)
	if err != nil {
		t.Fatal(err)
	}
	// This boot's come after those before it.
	n := len(runs) - 3
	if runs[0].Output != "once" || runs[n-1].Index != newest || runs[n].Kit != "a" || runs[len(runs)-1].Kit != "b" {
		t.Errorf("%d runs, the last before is %d of %s, then comes %s", len(runs), runs[n-1].Index, runs[n-1].Kit, runs[n].Kit)
	}
}

func TestAHookLogSurvivesAKillWhileItIsCutDown(t *testing.T) {
	dir := t.TempDir()
	installedOnce(t, dir)
	if err := appendHookRun(dir, sandbox.HookRun{Kit: "k", Phase: string(plan.Runtime), Output: strings.Repeat("x", keptOutput)}); err != nil {
		t.Fatal(err)
	}
	before := 0
	killer.Victim{Env: trimming + "=" + dir, Dir: dir, Name: HookLogName, Lines: 1, Within: 40 * time.Millisecond}.Kill(t, 10, func(string) {
		newest := checkHookRuns(t, dir)
		if newest < before {
			t.Fatalf("the newest is %d, and was %d", newest, before)
		}
		before = newest
	})
}

func TestALineOfTheHookLogThatWasCutShortIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, HookLogName)
	if err := appendHookRun(dir, sandbox.HookRun{Kit: "k", Phase: string(plan.Runtime), Index: 1}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) - 1 {
		if err := os.WriteFile(name, append(append([]byte{}, whole...), whole[:n]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := appendHookRun(dir, sandbox.HookRun{Kit: "k", Phase: string(plan.Runtime), Index: 2}); err != nil {
			t.Fatal(err)
		}
		runs, err := HookRuns(dir)
		if err != nil || len(runs) != 2 || runs[1].Index != 2 {
			t.Fatalf("cut at %d: %v, %v", n, runs, err)
		}
	}
}
