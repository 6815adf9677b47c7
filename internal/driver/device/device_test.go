package device

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
		uid, mode uint32
		want      bool
	}{{me + 1, 0o666, true}, {me + 1, 0o660, false}, {me + 1, 0o664, false}, {me, 0o600, true}, {me, 0o400, false}} {
		if got := open(unix.Stat_t{Uid: c.uid, Mode: unix.S_IFCHR | c.mode}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
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
	if after, _ := os.ReadFile("/proc/self/mountinfo"); string(after) != string(before) {
		t.Errorf("mounts changed:\n%s", after)
	}
	if _, _, err := Take([]plan.Device{{Source: "/dev/full", Path: "/dev/a"}, {Source: "/none", Path: "/dev/b"}}); err == nil || !strings.Contains(err.Error(), "kitbox recreate") {
		t.Errorf("a required one: %v", err)
	}
}
