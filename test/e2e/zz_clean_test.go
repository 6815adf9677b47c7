package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// keeperPID returns the keeper of a sandbox.
func keeperPID(t *testing.T, name string) *os.Process {
	t.Helper()
	var status struct {
		KeeperPID int `json:"keeperPid"`
	}
	out := ok(t, "status", name, "--json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.KeeperPID == 0 {
		t.Fatalf("status --json names no keeper: %v\n%s", err, out)
	}
	p, err := os.FindProcess(status.KeeperPID)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// there reports whether p is a process that runs.
func there(p *os.Process) bool { return p.Signal(syscall.Signal(0)) == nil }

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("waited 20 s for %s", what)
}

// TestZZNothingIsLeft runs last and looks at the host.
func TestZZNothingIsLeft(t *testing.T) {
	if out := ok(t, "ls", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("sandboxes are left: %s", out)
	}
	for _, dir := range []string{"machines", "machines-oci", "sandboxes"} {
		left, err := os.ReadDir(filepath.Join(home, dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range left {
			if e.Name() == ".ids.lock" {
				continue
			}
			if e.Name() == ".ids.json" || e.Name() == ".ids-volatile.json" { // the registers stay; their entries must not
				b, err := os.ReadFile(filepath.Join(home, dir, e.Name()))
				if err != nil || !strings.Contains(string(b), `"base": {}`) {
					t.Errorf("id ranges are left: %s %v", b, err)
				}
				continue
			}
			t.Errorf("%s/%s is left", dir, e.Name())
		}
	}
	waitFor(t, "processes of the sandboxes to end", func() bool { return len(processes(t)) == 0 })
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), home) {
		t.Errorf("mounts are left below %s", home)
	}
	waitFor(t, "loop devices of volumes to go", func() bool { return len(loopDevices(t)) == 0 })
	// Cgroups are named by machine and, in short, by the directory of machines,
	// so that other tests of this host are not taken for ours.
	sum := sha256.Sum256([]byte(filepath.Join(home, "machines")))
	ours := fmt.Sprintf("*-%x", sum[:4])
	cgroups, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*/kitbox", ours))
	more, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/kitbox", ours))
	for _, c := range append(cgroups, more...) {
		t.Errorf("cgroup %s is left", c)
	}
}

// processes lists what still runs with our state directory, the builder aside.
func processes(t *testing.T) []string {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var left []string
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !strings.Contains(string(env), "KITBOX_HOME="+home) {
			continue
		}
		cmdline, _ := os.ReadFile(d + "/cmdline")
		if line := strings.ReplaceAll(string(cmdline), "\x00", " "); line != "" && !strings.Contains(line, "kit-builder") && !strings.Contains(line, "e2e.test") {
			left = append(left, line)
		}
	}
	return left
}
