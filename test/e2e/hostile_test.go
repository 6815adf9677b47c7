package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// A workspace that holds kitbox's own state would let a sandbox write the plan
// of the next one.
func TestAWorkspaceMustNotHoldTheState(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{home, filepath.Dir(home), filepath.Join(home, "images"), link, "/"} {
		o := kitbox(t, "run", "--rm", "-q", "--name", "greedy", "--exec", probe, dir, "--", "touch", "x")
		if o.Code != 2 || !strings.Contains(o.Stderr, home) || !strings.Contains(o.Stderr, "KITBOX_HOME") {
			t.Errorf("workspace %s: %+v", dir, o)
		}
	}
	if kitbox(t, "status", "greedy").Code == 0 {
		t.Error("the sandbox is left")
	}
}

// What is a directory when the sandbox is made can be a link when it starts
// again, made by another sandbox that has the directory above it.
func TestAWorkspaceThatBecameALinkIsNotFollowed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	secret := t.TempDir()
	create(t, "swapped", probe, dir)
	ok(t, "stop", "swapped")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, dir); err != nil {
		t.Fatal(err)
	}
	if o := kitbox(t, "start", "swapped"); o.Code != 2 || !strings.Contains(o.Stderr, dir) {
		t.Errorf("start: %+v", o)
	}
}

func TestAMountThatIsNotThereAnyMoreIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "given")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	create(t, "missing", "-q", "-v", dir+":/given", probe)
	ok(t, "stop", "missing")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	want := "kitbox: sandbox missing: mount /given: " + dir + " is not there any more; put it back and start again, or 'kitbox rm missing'\n"
	if o := kitbox(t, "start", "missing"); o.Code != 1 || o.Stderr != want {
		t.Errorf("start: %+v, want %q", o, want)
	}
	stateOf(t, "missing", "stopped")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ok(t, "start", "missing")
}

// One descriptor per level would not do, and paths are not that long either.
func TestASandboxWithAVeryDeepDirectoryCanBeRemoved(t *testing.T) {
	create(t, "deep", probe)
	script := "import os\nos.chdir('/tmp')\nfor i in range(25000):\n os.mkdir('d'); os.chdir('d')\n"
	if o := kitboxIn(t, []byte(script), "exec", "-i", "deep", "--", "python3", "-"); o.Code != 0 {
		t.Fatalf("making it: %+v", o)
	}
	if o := kitbox(t, "rm", "deep"); o.Code != 0 {
		t.Errorf("rm: status %d, %.300s", o.Code, o.Stderr)
	}
}

// A name that was made up is one that nobody asks for again, so what a killed
// command left under it goes with the next creation of any other.
func TestACreationClearsWhatAnotherLeft(t *testing.T) {
	left := filepath.Join(home, "sandboxes", "left-over")
	young := filepath.Join(home, "sandboxes", "young")
	for _, dir := range []string{left, young} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, past, past); err != nil {
		t.Fatal(err)
	}
	create(t, "clearing", probe)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the remains are still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what was just begun is gone: %v", err)
	}
}

// A plan that a full disk or a crash cut short must not keep a sandbox for ever.
func TestASandboxWithATornPlanCanBeRemoved(t *testing.T) {
	create(t, "torn", probe)
	ok(t, "stop", "torn")
	file := filepath.Join(home, "sandboxes", "torn", "plan.json")
	if err := os.Truncate(file, 100); err != nil {
		t.Fatal(err)
	}
	if o := kitbox(t, "rm", "torn"); o.Code != 0 {
		t.Errorf("rm: %+v", o)
	}
	if o := kitbox(t, "status", "torn"); o.Code == 0 {
		t.Errorf("it is still there: %+v", o)
	}
}

// A process may lower its score as far as an ancestor of its was allowed to, so
// a sandbox below a protected service could be the last to go.
func TestASandboxIsNotSparedWhenMemoryRunsOut(t *testing.T) {
	needs.Root(t, "only root sets the floor of a score")
	create(t, "memory", probe)
	// The guest sets the score of a command that has begun, so the first look
	// may be too early; what counts is that it comes and cannot be undone.
	script := "i=0; while [ $(cat /proc/$$/oom_score_adj) != 100 ] && [ $i -lt 200 ]; do i=$((i+1)); done; cat /proc/self/oom_score_adj; for n in -1000 -1; do echo $n 2>/dev/null >/proc/self/oom_score_adj && echo lowered; done; cat /proc/self/oom_score_adj"
	if o := sh(t, "memory", "0", script); o.Stdout != "100\n100\n" {
		t.Errorf("%+v", o)
	}
}
