package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// oneLine reports whether err is what a user can be shown.
func oneLine(t *testing.T, err, family error, words ...string) {
	t.Helper()
	if !errors.Is(err, family) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line of the family %q", err, family)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not name %q", err, w)
		}
	}
}

// nothingLeft checks that no trace of machine id is on this system but its
// directory, if that is to stay.
func nothingLeft(t *testing.T, d *Driver, id string) {
	t.Helper()
	for _, tree := range []string{"memory", "cpu", "pids", "unified", ""} {
		groups, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", tree, "kitbox", id+"-*"))
		if len(groups) > 0 {
			t.Errorf("control groups %v are left", groups)
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), d.Dir+"/") {
		t.Error("a mount is left")
	}
	for _, pid := range guests(id) {
		t.Errorf("process %s is left", pid)
	}
}

// guests finds guests by their log, which they keep open.
func guests(id string) []string {
	var pids []string
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/2")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasSuffix(target, id+"/guest.log") {
			pids = append(pids, strings.Split(fd, "/")[2])
		}
	}
	return pids
}

// Whatever instant the starting process is killed at, the next one goes on
// from there, and removing leaves nothing.
func TestAKilledStarterLeavesAMachineThatCanBeUsedOrRemoved(t *testing.T) {
	d := newDriver(t)
	guest, err := guestPath()
	if err != nil {
		t.Fatal(err)
	}
	pattern := newMachine(t)
	var hit int
	for i := range 30 {
		m := pattern
		m.ID = fmt.Sprintf("killed-%d-%d", os.Getpid(), i)
		if err := d.Create(within(t), m); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), dieVariable+"="+m.ID, "DIR="+d.Dir, "GUEST="+guest)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		if ms, err := d.List(within(t)); err != nil || len(ms) != 1 {
			t.Fatalf("List = %v, %v", ms, err)
		} else if !ms[0].Running {
			hit++
		}
		if i%2 == 0 {
			// It starts, or has started.
			if err := d.Start(within(t), m.ID); err != nil {
				t.Fatal(err)
			}
			if got := sh(t, guestOf(d, m.ID), "hostname"); got != "box\n" {
				t.Errorf("got %q", got)
			}
		}
		if err := d.Remove(within(t), m.ID); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, d, m.ID)
	}
	t.Logf("%d of 30 were killed before the machine ran", hit)
	if left, _ := os.ReadDir(d.Dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestHalfMadeMachinesAreSweptAndRemoved(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	// One whose maker died, and one whose maker is at work.
	for _, name := range []string{".new-dead", ".trash-dead", ".new-busy"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(d.Dir, name, "rw/upper"), 0o700),
			os.WriteFile(filepath.Join(d.Dir, name, "lock"), nil, 0o600),
			os.Chtimes(filepath.Join(d.Dir, name), time.Time{}, time.Now().Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(d.Dir, ".new-young"), 0o700); err != nil {
		t.Fatal(err)
	}
	busy, err := os.Open(filepath.Join(d.Dir, ".new-busy/lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := unix.Flock(int(busy.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if ms, err := d.List(within(t)); err != nil || len(ms) != 0 {
		t.Errorf("List = %v, %v", ms, err)
	}
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{".new-dead": false, ".trash-dead": false, ".new-busy": true, ".new-young": true} {
		if _, err := os.Stat(filepath.Join(d.Dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %v", name, err == nil)
		}
	}
	busy.Close()

	// A machine without or with a broken description can still be removed.
	for _, content := range []string{"", "{", "null"} {
		if err := os.WriteFile(filepath.Join(d.Dir, m.ID, "machine.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(within(t), m.ID); err == nil {
			t.Errorf("it started with the description %q", content)
		}
		nothingLeft(t, d, m.ID)
	}
	if err := os.Remove(filepath.Join(d.Dir, m.ID, "machine.json")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Stop(within(t), m.ID, 0), d.Remove(within(t), m.ID)); err != nil {
		t.Error(err)
	}
}

// A record may outlive its process, and the pid be somebody else's.
func TestARecycledPidIsNobodysMachine(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	canary := exec.Command("sleep", "1000")
	if err := canary.Start(); err != nil {
		t.Fatal(err)
	}
	defer canary.Wait()
	defer canary.Process.Kill()
	ticks, err := machinedir.StartTicks(canary.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]machinedir.Run{
		"another start": {PID: canary.Process.Pid, Start: ticks - 1, Boot: durable.Boot()},
		"another boot":  {PID: canary.Process.Pid, Start: ticks, Boot: "another"},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Dir, m.ID, "run.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if ms, err := d.List(within(t)); err != nil || ms[0].Running {
			t.Errorf("%s: List = %+v, %v", name, ms, err)
		}
		if err := d.Stop(within(t), m.ID, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := canary.Process.Signal(syscall.Signal(0)); err != nil {
			t.Fatalf("%s: the innocent process is dead", name)
		}
	}
}

func TestAFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	if ids.IsIdentity() {
		t.Skip("mounts on the system")
	}
	if err := unix.Mount("small", d.Dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(d.Dir, unix.MNT_DETACH) })
	// Full but for nothing.
	fill := func(leave int) {
		t.Helper()
		f, err := os.Create(d.Dir + "/.fill")
		if err != nil {
			t.Fatal(err)
		}
		f.Write(make([]byte, 64<<10-leave))
		f.Close()
	}
	fill(0)
	oneLine(t, d.Create(within(t), m), kiterr.ErrUnavailable, "disk is full")
	os.Remove(d.Dir + "/.fill")
	if left, _ := os.ReadDir(d.Dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	fill(0)
	oneLine(t, d.Start(within(t), m.ID), kiterr.ErrUnavailable, "disk is full", m.ID)
	nothingLeft(t, d, m.ID)
	if ms, err := d.List(within(t)); err != nil || len(ms) != 1 || ms[0].Running {
		t.Errorf("List = %+v, %v", ms, err)
	}
	if err := d.Remove(within(t), m.ID); err != nil {
		t.Error(err)
	}
}

func TestAnUnusableDirectoryIsNamed(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	if ids.IsIdentity() {
		t.Skip("mounts on the system")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	ro := &Driver{Dir: dir + "/machines", GuestPath: d.GuestPath}
	oneLine(t, ro.Create(within(t), m), kiterr.ErrUnavailable, ro.Dir, "KITBOX_HOME")
	if ms, err := ro.List(within(t)); err != nil || len(ms) != 0 {
		t.Errorf("List = %v, %v", ms, err)
	}
}

func TestABadGuestProgramIsAnErrorAndLeavesNothing(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"missing": "/no/such/kit-guest", "another": "/bin/true", "no program": "/etc/passwd"} {
		bad := &Driver{Dir: d.Dir, GuestPath: program}
		err := bad.Start(within(t), m.ID)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "missing" {
			oneLine(t, err, kiterr.ErrUnavailable, program, "KITBOX_LIBEXEC")
		}
		nothingLeft(t, d, m.ID)
	}
	// This test's own program, called as a guest, says nothing. See TestMain.
	silent := &Driver{Dir: d.Dir, GuestPath: "/proc/self/exe", StartTimeout: 300 * time.Millisecond}
	if err := silent.Start(within(t), m.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent guest: %v", err)
	}
	nothingLeft(t, d, m.ID)
	if err := d.Start(within(t), m.ID); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// A guest that was stopped, or has gone mad, answers nothing.
func TestAGuestThatDoesNotAnswerIsKilled(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	up(t, d, m)
	ms, err := d.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(ms[0].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if ms, err := d.List(within(t)); err != nil || !ms[0].Running {
		t.Errorf("List = %v, %v", ms, err)
	}
	start := time.Now()
	if err := d.Stop(within(t), m.ID, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	nothingLeft(t, d, m.ID)
}

func TestALongDirectoryIsNoProblem(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	for range 3 { // a socket's address has 108 bytes
		d.Dir = filepath.Join(d.Dir, strings.Repeat("long", 20))
	}
	long := &Driver{Dir: d.Dir, GuestPath: d.GuestPath}
	t.Cleanup(func() { long.Remove(context.Background(), m.ID) })
	cl := up(t, long, m)
	if got := sh(t, cl, "hostname"); got != "box\n" {
		t.Errorf("got %q", got)
	}
}

func TestOneOfManyCreatorsWins(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() { errs <- (&Driver{Dir: d.Dir, GuestPath: d.GuestPath}).Create(context.Background(), m) })
	}
	wg.Wait()
	won := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			won++
		} else if !errors.Is(err, kiterr.ErrExists) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
	if left, _ := os.ReadDir(d.Dir); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}

func TestEveryFaultOfAPlanIsReported(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	m.ID = "../x"
	m.Layers = append(m.Layers, "relative", "/no/such/layer", "/etc/passwd")
	m.Mounts = []plan.Mount{{Kind: "odd", Path: "/a"}, {Kind: plan.MountBind, Path: "b", Source: "c"}, {Kind: plan.MountTmpfs, Path: "/", SizeBytes: -1}}
	m.Files = []plan.BootFile{{Path: "x"}}
	m.Capabilities = []string{"CAP_FLY"}
	err := d.Create(within(t), m)
	if err == nil {
		t.Fatal("it was made")
	}
	for _, w := range []string{`"../x"`, `"relative"`, "/no/such/layer", "/etc/passwd", `"odd"`, `"b"`, `"c"`, "negative", `"x"`, "CAP_FLY"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not named in %v", w, err)
		}
	}
	if left, _ := os.ReadDir(d.Dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestNoUserNamespaces runs as the other process of TestRootlessWithoutUserNamespaces.
func TestNoUserNamespaces(t *testing.T) {
	if os.Getenv(rootlessVariable) == "" {
		t.Skip("runs as a part of TestRootlessWithoutUserNamespaces")
	}
	d, m := newDriver(t), newMachine(t)
	// The setting is that of this user namespace, not of the system.
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	oneLine(t, d.Start(within(t), m.ID), kiterr.ErrUnavailable, "user.max_user_namespaces", m.ID)
	nothingLeft(t, d, m.ID)
}

func TestRootlessWithoutUserNamespaces(t *testing.T) {
	out, err := asUser(t, true, "^TestNoUserNamespaces$", 1)
	if err != nil || !strings.Contains(out, "--- PASS: TestNoUserNamespaces ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAKernelWithoutOverlayIsRecognized(t *testing.T) {
	for list, want := range map[string]bool{
		"nodev\tproc\nnodev\toverlay\n\text4\n": true,
		"nodev\tproc\n\text4\n":                 false,
		"nodev\toverlayfs\n":                    false,
		"":                                      false,
	} {
		if got := hasOverlay([]byte(list)); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}
