package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// canMeasure skips, or under CI fails, where the peers cannot be run.
func canMeasure(t *testing.T) (programs string) {
	t.Helper()
	why := ""
	programs = os.Getenv("KITBOX_LIBEXEC")
	switch {
	case os.Geteuid() != 0:
		why = "the peer needs root"
	case programs == "":
		why = "KITBOX_LIBEXEC does not name the built programs; run `make test`"
	}
	if _, err := os.Stat(filepath.Join(programs, "tools", "buildctl")); why == "" && err != nil {
		why = err.Error() + "; run scripts/tools"
	}
	for _, p := range []string{"crun", "busybox", "runc"} {
		if _, err := exec.LookPath(p); why == "" && err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		needs.Lacks(t, "%s", why)
	}
	return programs
}

// TestQuickRunMeasuresEverything looks at the harness, not at the figures: a
// machine that is busy misses bars.
func TestQuickRunMeasuresEverything(t *testing.T) {
	programs := canMeasure(t)
	t.Setenv("KITBOX_HOME", "") // set by the run
	t.Setenv("TMPDIR", t.TempDir())
	r, err := run(t.Context(), options{rounds: 2, quick: true, fleet: 6, programs: programs})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.text())
	compared, judged := 0, 0
	for _, l := range r.lines {
		if l.what == "" || l.ours == "" || l.peer == "" || strings.HasPrefix(l.ours, "0 µs") {
			t.Errorf("measured nothing: %+v", l)
		}
		if l.ratio != "" {
			compared++
			if l.theirs == "" || l.ratio == "0" {
				t.Errorf("compared with nothing: %+v", l)
			}
		}
		if l.ok != "" {
			judged++
			if l.bar == "" {
				t.Errorf("judged by no bar: %+v", l)
			}
		}
		if strings.Contains(l.what, "ten Kits") && l.ok != pass {
			t.Errorf("composing copies: %+v", l)
		}
		if strings.Contains(l.what, "a set of three") && !strings.Contains(l.what, ": 0 bytes") {
			t.Errorf("publishing moves layers: %+v", l)
		}
	}
	if compared != 22 || judged != 24 {
		t.Errorf("%d comparisons and %d verdicts, want 22 and 24", compared, judged)
	}
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "kitbox-bench-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReplaceKeepsTheRest(t *testing.T) {
	got, err := replace([]byte("# T\n\n"+begin+"old\n"+end+"\n## Grammar\n"), "new\n")
	if want := "# T\n\n" + begin + "\nnew\n\n" + end + "\n## Grammar\n"; err != nil || string(got) != want {
		t.Errorf("replace = %q, %v; want %q", got, err, want)
	}
	if again, err := replace(got, "new"); err != nil || string(again) != string(got) {
		t.Errorf("replacing again gives %q, %v", again, err)
	}
	if _, err := replace([]byte("no part\n"), "new"); err == nil {
		t.Error("a document without a measured part is written over")
	}
}

func TestDocumentHasAMeasuredPart(t *testing.T) {
	doc, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replace(doc, ""); err != nil {
		t.Error(err)
	}
}

func TestRatioIsTakenWithinARound(t *testing.T) {
	// The machine was three times slower in the second round.
	ours := []time.Duration{10, 30, 11}
	theirs := []time.Duration{20, 60, 20}
	if r := ratio(ours, theirs); r != 0.5 {
		t.Errorf("ratio = %v, want 0.5", r)
	}
	if r := ratio(ours, make([]time.Duration, 3)); r != 0 {
		t.Errorf("ratio to nothing = %v", r)
	}
}

func TestQuantile(t *testing.T) {
	ds := []int{5, 1, 4, 2, 3}
	for q, want := range map[float64]int{0: 1, 0.2: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(ds, q); got != want {
			t.Errorf("quantile %v = %d, want %d", q, got, want)
		}
	}
}

func TestVerdictFollowsTheBar(t *testing.T) {
	one, two := series{{wall: 10}}, series{{wall: 20}}
	if l := compared("x", "y", one, two, 0.5, 0); l.ok != pass {
		t.Errorf("half is within a half: %+v", l)
	}
	if l := compared("x", "y", two, one, 1.5, 1); l.ok != fail || l.aim != "1×" {
		t.Errorf("twice is within 1.5: %+v", l)
	}
	r := &report{lines: []line{{ok: pass}, {ok: fail}, {}}}
	if r.missed() != 1 {
		t.Errorf("%d missed, want 1", r.missed())
	}
}

// Nothing would pass any bar.
func TestKernelMemoryThatNobodySaysIsAnError(t *testing.T) {
	root := t.TempDir()
	const groups = "9:memory:/a\n8:pids:/a\n0::/b\n"
	if n, err := kernelMemoryOf(groups, root); err == nil || !strings.Contains(err.Error(), "memory.stat") {
		t.Errorf("without a file: %d, %v", n, err)
	}
	put := func(file, content string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put(root+"/b/memory.stat", "anon 5\n")
	if n, err := kernelMemoryOf(groups, root); err == nil {
		t.Errorf("without the word: %d", n)
	}
	put(root+"/b/memory.stat", "anon 5\nkernel 4096\nkernel_stack 7\n")
	if n, err := kernelMemoryOf(groups, root); n != 4096 || err != nil {
		t.Errorf("unified: %d, %v", n, err)
	}
	put(root+"/memory/a/memory.kmem.usage_in_bytes", "8192\n")
	if n, err := kernelMemoryOf(groups, root); n != 8192 || err != nil {
		t.Errorf("of its own tree: %d, %v", n, err)
	}
}

func TestATailMissesABar(t *testing.T) {
	even, one := series{{wall: 10}, {wall: 10}}, series{{wall: 10}, {wall: 10}}
	if l := tailed(compared("x", "y", even, one, 1, 0), even); l.ok != pass {
		t.Errorf("%+v", l)
	}
	long := series{{wall: 10}, {wall: 10}, {wall: 31}}
	if l := tailed(compared("x", "y", long, series{{wall: 10}, {wall: 10}, {wall: 31}}, 1, 0), long); l.ok != fail || !strings.Contains(l.bar, "3.1×") {
		t.Errorf("%+v", l)
	}
}

func TestHearingNothingIsAnError(t *testing.T) {
	for _, script := range []string{"true", "echo up; exit 3", "echo other", "printf u"} {
		cmd := exec.Command("sh", "-c", script)
		if _, err := hear(cmd, cmd.Run); err == nil {
			t.Errorf("%q is taken for an answer", script)
		}
	}
	cmd := exec.Command("sh", "-c", "sleep 0.05; echo up")
	begun := time.Now()
	if said, err := hear(cmd, cmd.Run); err != nil || said.Sub(begun) < 50*time.Millisecond {
		t.Errorf("%v, %v", said.Sub(begun), err)
	}
}
