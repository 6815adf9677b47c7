package device

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestUsableNamesWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Usable("/dev/full"); err != nil {
		t.Error(err)
	}
	if err := Usable(file); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), file) {
		t.Errorf("a file: %v", err)
	}
	if err := Usable(file + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// A machine has no group of the user's, so that what only a group may open is of no
// use to it.
func TestOpenIsWhatTheWholeMachineMayOpen(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, c := range []struct {
		uid, mode  uint32
		ours, want bool
	}{{me + 1, 0o666, false, true}, {me + 1, 0o660, true, false}, {me + 1, 0o664, true, false}, {me, 0o600, true, true}, {me, 0o400, true, false}, {me, 0o600, false, false}} {
		if got := open(unix.Stat_t{Uid: c.uid, Mode: unix.S_IFCHR | c.mode}, c.ours); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A container around kitbox may not let its root make nodes.
func TestWithoutNodesOfItsOwnAMachineGetsTheHosts(t *testing.T) {
	const private = "DEVICE_TEST_PRIVATE"
	node := os.Getenv(private)
	if node == "" {
		needs.Root(t, "it is about what root may")
		setpriv := needs.Program(t, "setpriv", "apt-get install util-linux")
		node = filepath.Join(t.TempDir(), "node")
		if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(setpriv, "--bounding-set=-mknod", self, "-test.run", "^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), private+"="+node)
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mknod(node+"2", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); !errors.Is(err, unix.EPERM) {
		t.Fatalf("this process may make nodes: %v", err)
	}
	ns, notes, err := Take([]plan.Device{{Source: "/dev/full", Path: "/dev/a", ReadOnly: true}})
	if err != nil || len(ns) != 1 || len(notes) != 1 || !strings.Contains(notes[0], "can be written to") {
		t.Fatalf("%+v, %q, %v", ns, notes, err)
	}
	Close(ns)
	// Root of the host is nobody in the machine.
	if _, _, err := Take([]plan.Device{{Source: node, Path: "/dev/a"}}); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "udev") {
		t.Errorf("%v", err)
	}
}

func TestTakeLeavesNothingBehind(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	ns, notes, err := Take([]plan.Device{{Source: "/dev/full", Path: "/dev/a"}, {Source: "/none", Path: "/dev/b", Optional: true}})
	if err != nil || len(ns) != 1 || ns[0].Major != 1 || ns[0].Minor != 7 {
		t.Fatalf("%+v, %v", ns, err)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "device /dev/b: ") {
		t.Errorf("notes %q", notes)
	}
	// The mount is of the device and of nothing around it.
	var st unix.Stat_t
	if err := unix.Fstat(int(ns[0].Mount.Fd()), &st); err != nil || st.Rdev != unix.Mkdev(1, 7) || st.Mode != unix.S_IFCHR|0o666 {
		t.Errorf("%o %x, %v", st.Mode, st.Rdev, err)
	}
	Close(ns)
	Close(ns)
	// The view of /proc/self is the main thread's, on which a goroutine may run.
	for range 50 {
		some, _, err := Take([]plan.Device{{Source: "/dev/full", Path: "/dev/a"}})
		if err != nil {
			t.Fatal(err)
		}
		Close(some)
	}
	if after, _ := os.ReadFile("/proc/self/mountinfo"); string(after) != string(before) {
		t.Errorf("mounts changed:\n%s", after)
	}
	if _, _, err := Take([]plan.Device{{Source: "/dev/full", Path: "/dev/a"}, {Source: "/none", Path: "/dev/b"}}); err == nil || !strings.Contains(err.Error(), "kitbox recreate") {
		t.Errorf("a required one: %v", err)
	}
}
