package loopfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

func usable(t *testing.T) {
	t.Helper()
	if err := Unusable(); err != nil {
		needs.Lacks(t, "%v", err)
	}
}

// devices lists the loop devices of files below dir, also of deleted ones.
func devices(t *testing.T, dir string) (out []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), dir+"/") {
			out = append(out, f)
		}
	}
	return out
}

// noneLeft waits for what the kernel does after the last close.
func noneLeft(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); len(devices(t, dir)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left: %v", devices(t, dir))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Error("a mount is left")
	}
}

func TestAFilesystemHoldsItsSizeAndNoMore(t *testing.T) {
	usable(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "fs")
	if err := Make(t.Context(), file, 8<<20, Root{UID: 70000, GID: 70001, Mode: 0o1750}); err != nil {
		t.Fatal(err)
	}
	if used, err := Used(file); err != nil || used > 4<<20 {
		t.Errorf("an empty one takes %d, %v", used, err)
	}
	m, err := Mount(file)
	if err != nil {
		t.Fatal(err)
	}
	in := fmt.Sprintf("/proc/self/fd/%d", m.Fd())
	var st unix.Stat_t
	if err := unix.Stat(in, &st); err != nil || st.Uid != 70000 || st.Gid != 70001 || st.Mode&0o7777 != 0o1750 {
		t.Errorf("root %d:%d %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	if es, err := os.ReadDir(in + "/."); err != nil || len(es) > 0 {
		t.Errorf("it is not empty: %v, %v", es, err)
	}
	if err := os.WriteFile(in+"/big", make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("16 MiB in 8: %v", err)
	}
	flush := func() {
		t.Helper()
		f, err := os.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Syncfs(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	full, err := Used(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(in+"/big"), os.WriteFile(in+"/f", []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	flush()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if used, err := Used(file); err == nil && used < full/2 {
			break
		} else if time.Now().After(end) {
			t.Errorf("full it takes %d, and %d, %v, when that is deleted", full, used, err)
			break
		}
	}
	// A second mount is of the same filesystem on the same device.
	n, err := Mount(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/f", n.Fd())); err != nil || string(b) != "kept" {
		t.Errorf("through the second mount: %q, %v", b, err)
	}
	if ds := devices(t, dir); len(ds) != 1 {
		t.Errorf("devices: %v", ds)
	}
	n.Close()
	m.Close()
	noneLeft(t, dir)
	if m, err = Mount(file); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/f", m.Fd())); err != nil || string(b) != "kept" {
		t.Errorf("mounted again: %q, %v", b, err)
	}
	m.Close()
	noneLeft(t, dir)
}

func TestWhatIsAskedTooSmallOrIsThereAlready(t *testing.T) {
	usable(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "fs")
	if err := Make(t.Context(), file, 1, Root{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), file, 1<<20, Root{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("made over another: %v", err)
	}
	if st, err := os.Stat(file); err != nil || st.Size() != MinBytes {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := Mount(dir); err == nil {
		t.Error("a directory was mounted")
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Mount(garbage); err == nil || !strings.Contains(err.Error(), garbage) {
		t.Errorf("garbage: %v", err)
	}
	noneLeft(t, dir)
}

// TestMain lets the test be the process that is killed while it makes and mounts.
func TestMain(m *testing.M) {
	file := os.Getenv("LOOPFS_TEST_VICTIM")
	if file == "" {
		os.Exit(m.Run())
	}
	for {
		if f, err := Mount(file); err == nil {
			f.Close()
		}
		if f, err := Mount(file); err == nil {
			_ = os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/g", f.Fd()), []byte("x"), 0o600)
			fmt.Println("mounted")
		}
	}
}

func TestAKillLeavesNoDevice(t *testing.T) {
	usable(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "fs")
	if err := Make(t.Context(), file, 4<<20, Root{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "LOOPFS_TEST_VICTIM="+file)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it is in the middle of something from here on
			t.Error(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // some point of its loop; none of them has a name
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		noneLeft(t, dir)
	}
	m, err := Mount(file)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	noneLeft(t, dir)
}
