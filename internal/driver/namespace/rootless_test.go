package namespace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// rootlessVariable names the directory of an ordinary user in whose name the
// test program runs; it is set in the processes of asUser only.
const rootlessVariable = "NAMESPACE_TEST_ROOTLESS"

// enterRootless makes a test program of an ordinary user root of a user
// namespace, as kitbox does with itself.
func enterRootless() {
	dir := os.Getenv(rootlessVariable)
	if dir == "" {
		return
	}
	if !rootless.Inside() {
		e := rootless.Entry{Dir: dir + "/namespace", GuestPath: dir + "/kit-guest"}
		fmt.Println(e.Enter(append([]string{dir + "/test"}, os.Args[1:]...)))
		os.Exit(1)
	}
	if err := rootless.Arrive(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// A user of no system: in a mount namespace of its own the files that name
// users say that it exists.
const ordinary = 20001

// asUser runs tests of this program as an ordinary user with subordinate ids,
// or without, in several processes at once. It returns their output.
func asUser(t *testing.T, subordinate bool, tests string, processes int) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 || os.Getenv(rootlessVariable) != "" {
		t.Skip("only root can become any user")
	}
	for _, p := range []string{"unshare", "setpriv", "nsenter", "newuidmap"} {
		needs.Program(t, p, "apt-get install uidmap util-linux")
	}
	guest, err := guestPath()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "rootless")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	sub := ""
	if subordinate {
		sub = "someone:2000000000:65536\n"
	}
	for name, content := range map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\nsomeone:x:%d:%d::%s:/bin/sh\n", ordinary, ordinary, dir),
		"group":  fmt.Sprintf("root:x:0:\nsomeone:x:%d:\n", ordinary),
		"sub":    sub,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(copyProgram(dir+"/test", "/proc/self/exe"), copyProgram(dir+"/kit-guest", guest),
		os.Mkdir(dir+"/tmp", 0o755), os.Chown(dir+"/tmp", ordinary, ordinary), os.Chmod(dir, 0o755),
		os.Chown(dir, ordinary, ordinary)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	script := `set -e
		mount --bind "$1/passwd" /etc/passwd; mount --bind "$1/group" /etc/group
		for f in subuid subgid; do test -e /etc/$f; mount --bind "$1/sub" /etc/$f; done
		cd "$1/tmp"
		for i in $(seq $4); do
			setpriv --reuid=$2 --regid=$2 --clear-groups -- "$1/test" -test.run "$3" -test.v -test.timeout 4m & all="$all $!"
		done
		for i in $all; do wait $i; done`
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir, fmt.Sprint(ordinary), tests, fmt.Sprint(processes))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir + "/tmp", "CI=" + os.Getenv("CI"), rootlessVariable + "=" + dir}
	out, err := cmd.CombinedOutput()
	anchorEnds(t, dir)
	return string(out), err
}

// anchorEnds waits for the end of the process that keeps the user namespace:
// nobody needs it any more.
func anchorEnds(t *testing.T, dir string) {
	t.Helper()
	var a struct{ PID int }
	b, err := os.ReadFile(dir + "/namespace/anchor.json")
	if err != nil || json.Unmarshal(b, &a) != nil {
		return
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", a.PID))
		if err != nil || !bytes.Contains(cmdline, []byte("anchor")) {
			return
		}
		if time.Now().After(end) {
			t.Errorf("the anchor %d lives although nobody needs it", a.PID)
			syscall.Kill(a.PID, syscall.SIGKILL)
			return
		}
	}
}

func copyProgram(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

func TestRootlessPromises(t *testing.T) {
	out, err := asUser(t, true, "^TestPromises$", 1)
	if err != nil || !strings.Contains(out, "--- PASS: TestPromises ") {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Count(out, "--- PASS: TestPromises/") < 40 {
		t.Errorf("too few checks ran\n%s", out)
	}
}

// Without subordinate ids a machine has root only, and says so.
func TestRootlessWithOneID(t *testing.T) {
	out, err := asUser(t, false, "^TestOneID$", 1)
	if err != nil || !strings.Contains(out, "--- PASS: TestOneID ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOneID runs as the other process of TestRootlessWithOneID.
func TestOneID(t *testing.T) {
	if os.Getenv(rootlessVariable) == "" {
		t.Skip("runs as a part of TestRootlessWithOneID")
	}
	d, m := newDriver(t), newMachine(t)
	cl := up(t, d, m)
	if got := sh(t, cl, "id -u; cat /proc/self/uid_map | tr -s ' '; touch /f; stat -c %u /f; ls /dev/pts/ptmx"); got != "0\n 0 0 1\n0\n/dev/pts/ptmx\n" {
		t.Errorf("got %q", got)
	}
	ms, err := d.List(within(t))
	if err != nil || len(ms) != 1 || !strings.Contains(strings.Join(ms[0].Unenforced, "\n"), "/etc/subuid") {
		t.Errorf("List = %+v, %v; want a word about /etc/subuid", ms, err)
	}
}

// The namespace of one process is that of the next: what a keeper made, its
// successor can enter.
func TestRootlessProcessesShareTheirNamespace(t *testing.T) {
	out, err := asUser(t, true, "^TestShared$", 2)
	if err != nil || strings.Count(out, "--- PASS: TestShared ") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestShared runs as two other processes of
// TestRootlessProcessesShareTheirNamespace at once.
func TestShared(t *testing.T) {
	dir := os.Getenv(rootlessVariable)
	if dir == "" {
		t.Skip("runs as a part of TestRootlessProcessesShareTheirNamespace")
	}
	ns, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	if wd, err := os.Getwd(); err != nil || wd != dir+"/tmp" {
		t.Errorf("arrived in %s, %v; left from %s/tmp", wd, err, dir)
	}
	// A link says all it says from the moment that it is there.
	if err := os.Symlink(ns, fmt.Sprintf("%s/tmp/shared-%d", dir, os.Getpid())); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		files, _ := filepath.Glob(dir + "/tmp/shared-*")
		if len(files) == 2 {
			for _, f := range files {
				if other, err := os.Readlink(f); err != nil || other != ns {
					t.Errorf("one process is in %s, the other in %s, %v", ns, other, err)
				}
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("the other process did not come")
		}
	}
}

func TestIdentityIsForUserNamespacesOnly(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	if ids.IsIdentity() {
		t.Skip("it is one")
	}
	m.IDMap.Size, m.IDMap.Base = 0, 0
	if err := d.Create(within(t), m); !errors.Is(err, kiterr.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
