package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// TestALogThatCannotBeWrittenIsAProblem fills the disk that a sandbox's records are on.
func TestALogThatCannotBeWrittenIsAProblem(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	addr, _ := serve(t, "served")
	create(t, "full", "-q", kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [allowed.test]}}\n"), "--route", "allowed.test="+addr)
	ok(t, "stop", "full")
	dir := filepath.Join(home, "sandboxes", "full")
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Fatal(err)
	}
	// Before the sandbox is removed, which has to remove the directory.
	t.Cleanup(func() {
		kitbox(t, "stop", "full")
		_ = unix.Unmount(dir, unix.MNT_DETACH) // fails where it did not come to that
		_ = unix.Unmount(disk, unix.MNT_DETACH)
	})
	if out, err := exec.Command("cp", "-a", dir+"/.", disk).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v, %s", err, out)
	}
	if err := unix.Mount(disk, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	ok(t, "start", "full")

	problems := func() string { return ok(t, "status", "full") }
	if s := problems(); strings.Contains(s, "unrecorded") {
		t.Fatalf("with room: %s", s)
	}
	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 512); ; {
		if _, err := f.Write(b); err != nil {
			break
		}
	}
	f.Close()
	// Each name is a line, until the page that the log ends in is full.
	try := func() {
		sh(t, "full", "", "for i in 1 2 3 4 5 6 7 8; do getent hosts $(tr -d - </proc/sys/kernel/random/uuid).denied.test; done; true")
	}
	until := func(what string, done func(string) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			try()
			s := problems()
			if done(s) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s", what, s)
			}
		}
	}
	until("without room, status says", func(s string) bool {
		return strings.Contains(s, "decisions go unrecorded") && strings.Contains(s, "free space there")
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	until("with room again, status says", func(s string) bool { return !strings.Contains(s, "unrecorded") })
	if log := ok(t, "policy", "log", "full"); !strings.Contains(log, "could not be written") {
		t.Errorf("the log does not say what it lacks: %s", log)
	}
}

// TestPolicyLogReadsThroughTheRotation has older files beside the one that is written.
func TestPolicyLogReadsThroughTheRotation(t *testing.T) {
	create(t, "rotated", "-q", kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [allowed.test]}}\n"))
	sh(t, "rotated", "", "getent hosts newest.denied.test; true")
	ok(t, "stop", "rotated")
	dir := filepath.Join(home, "sandboxes", "rotated")
	line := func(host string) string {
		return `{"schema":1,"time":"2026-01-02T03:04:05Z","sandbox":"rotated","phase":"runtime","kind":"dns","verdict":"deny","host":"` + host + `","why":"no rule","count":1}` + "\n"
	}
	for name, content := range map[string]string{
		"policy.jsonl.2.sum": line("oldest.denied.test"),
		"policy.jsonl.2":     line("counted.denied.test"), // is in the sum
		"policy.jsonl.3":     line("older.denied.test") + `{"schema":1,"ti`,
		"policy.jsonl.10":    line("newer.denied.test"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := ok(t, "policy", "log", "rotated", "--refused")
	at := -1
	for _, host := range []string{"oldest", "older", "newer", "newest"} {
		i := strings.Index(log, host+".denied.test")
		if i <= at {
			t.Errorf("%s is at %d, after %d:\n%s", host, i, at, log)
		}
		at = i
	}
	if strings.Contains(log, "counted.") {
		t.Errorf("what a sum covers is there twice:\n%s", log)
	}
}
