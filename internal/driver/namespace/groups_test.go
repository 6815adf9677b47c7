package namespace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// TestAMachineThatNestsHasGroupsOfItsOwn has one whose root may make namespaces, and
// one whose may not.
func TestAMachineThatNestsHasGroupsOfItsOwn(t *testing.T) {
	if len(unified(t, "cgroup.controllers")) == 0 {
		needs.Lacks(t, "this system has no unified tree of control groups")
	}
	d := newDriver(t)
	m := newMachine(t)
	m.Limits.Pids = 100
	m.Capabilities = []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN", "CAP_NET_ADMIN", "CAP_KILL"}
	cl := up(t, d, m)
	const group = "cd /sys/fs/cgroup && mkdir a && echo $$ >a/cgroup.procs && cat /proc/self/cgroup | grep ^0: && mkdir a/b"
	if got := sh(t, cl, group); got != "0::/a\n" {
		t.Errorf("it is in %q", got)
	}
	if got := sh(t, cl, "echo 1 >/proc/sys/net/ipv4/ip_forward && cat /proc/sys/net/ipv4/ip_forward"); got != "1\n" {
		t.Errorf("its own network: %q", got)
	}
	// What bounds it is not its own, and neither is what belongs to no namespace.
	for _, file := range []string{"/sys/fs/cgroup/cgroup.max.descendants", "/sys/fs/cgroup/cgroup.max.depth", "/sys/fs/cgroup/cgroup.freeze", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/panic"} {
		if out, code := shCode(t, cl, fmt.Sprintf("echo 1 >%s", file)); code == 0 || !strings.Contains(out, "denied") {
			t.Errorf("%s was written: %d %q", file, code, out)
		}
	}
	if got := sh(t, cl, "cd /sys/fs/cgroup; n=0; while [ $n -lt 1100 ] && mkdir a/x$n 2>/dev/null; do n=$((n+1)); done; echo $n"); got != "1022\n" {
		t.Errorf("it made %q groups, want the bound less two", got)
	}
	if got := sh(t, cl, "cd /sys/fs/cgroup/a/b; n=0; while [ $n -lt 50 ] && rmdir /sys/fs/cgroup/a/x$n && mkdir c && cd c; do n=$((n+1)); done 2>/dev/null; echo $n"); got != "30\n" {
		t.Errorf("it made groups %q deep, want the bound less two", got)
	}
	// What it does to itself holds up nobody.
	if _, code := shCode(t, cl, "(sleep 0.2; echo 1 >/sys/fs/cgroup/a/cgroup.freeze) & echo 1 >/sys/fs/cgroup/a/cgroup.procs"); code != 0 {
		t.Error("its first process cannot be moved")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		files := unified(t, "kitbox/"+m.ID+"-*/a/cgroup.events")
		if len(files) == 1 {
			if b, err := os.ReadFile(files[0]); err == nil && strings.Contains(string(b), "frozen 1") {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("it did not freeze itself: %v", files)
		}
	}
	if err := d.Remove(within(t), m.ID); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, d, m.ID)

	m = newMachine(t)
	cl = up(t, d, m)
	for _, try := range []string{group, "mount -t cgroup2 none /mnt", "echo 1 >/proc/sys/net/ipv4/ip_forward"} {
		if out, code := shCode(t, cl, try); code == 0 {
			t.Errorf("one that does not nest could %s: %q", try, out)
		}
	}
}

// unified returns the files that pattern matches in the unified tree.
func unified(t *testing.T, pattern string) (files []string) {
	t.Helper()
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(tree, "cgroup.controllers")); err != nil {
			continue
		}
		found, err := filepath.Glob(filepath.Join(tree, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}
