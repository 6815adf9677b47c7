package store_test

import (
	"archive/tar"
	"bytes"
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

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestDefaultDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"KITBOX_HOME": "/k/", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/k"},
		{map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/kitbox"},
		{map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/kitbox"},
		{map[string]string{"HOME": "/h"}, "/h/.local/state/kitbox"},
		{map[string]string{"KITBOX_HOME": "relative"}, ""},
		{nil, ""},
	} {
		got, err := store.DefaultDir(func(k string) string { return c.env[k] })
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%v: %q, %v", c.env, got, err)
		}
	}
}

func TestOpenMakesAPrivateHome(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		h, err := store.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if h.Dir() != dir {
			t.Errorf("Dir = %s", h.Dir())
		}
	}
	if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
}

func oneLine(t *testing.T, err error, dir string, cause error) {
	t.Helper()
	if !errors.Is(err, kiterr.ErrUnavailable) || cause != nil && !errors.Is(err, cause) ||
		!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "KITBOX_HOME") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v", err)
	}
}

func TestOpenExplainsWhatIsWrong(t *testing.T) {
	f := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(filepath.Join(f, "home"))
	oneLine(t, err, f, unix.ENOTDIR)
	_, err = store.Open("relative")
	oneLine(t, err, "relative", nil)
}

// Open of a home on a read-only and on a full file system.
func TestOpenOnBadDisks(t *testing.T) {
	if os.Getenv("STORE_TEST_INSIDE") == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root: mounts a file system in a namespace of its own")
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "STORE_TEST_INSIDE=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("inside: %v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	mnt := t.TempDir()
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=1m,nr_inodes=20"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mnt, unix.MNT_DETACH) })
	home := filepath.Join(mnt, "home")
	h, err := store.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", mnt, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(home)
	oneLine(t, err, home, unix.EROFS)
	_, err = store.Open(filepath.Join(mnt, "new"))
	oneLine(t, err, filepath.Join(mnt, "new"), unix.EROFS)
	if err := unix.Mount("", mnt, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	for i := 0; os.WriteFile(filepath.Join(mnt, fmt.Sprint("f", i)), nil, 0o600) == nil; i++ {
	}
	_, err = h.Images()
	oneLine(t, err, home, unix.ENOSPC)
	_, err = store.Open(filepath.Join(mnt, "new"))
	oneLine(t, err, filepath.Join(mnt, "new"), unix.ENOSPC)
}

func TestSweepFollowsPlansAndBuildRecords(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers keep their owners")
	}
	h, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	layers, err := h.Layers()
	if err != nil {
		t.Fatal(err)
	}
	unpack := func(name string) digest.Digest {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o644})
		w.Close()
		id := digest.FromBytes(b.Bytes())
		if err := layers.Unpack(t.Context(), id, func() (io.ReadCloser, error) { return io.NopCloser(&b), nil }); err != nil {
			t.Fatal(err)
		}
		return id
	}
	planned, machine, loose := unpack("planned"), unpack("machine"), unpack("loose")
	write := func(path, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(h.SandboxesDir(), "t", "plan.json"), fmt.Sprintf(`{"version":99,"layers":[%q]}`, layers.Dir(planned)))
	write(filepath.Join(h.MachinesDir(), "m", "machine.json"), fmt.Sprintf(`{"lower":"%s:/x"}`, layers.Dir(machine)))
	images, err := h.Images()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := images.PushBytes(t.Context(), "application/vnd.oci.image.manifest.v1+json", []byte(`{"mediaType":"application/vnd.oci.image.manifest.v1+json"}`))
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(h.BuildsDir(), "k.json"), fmt.Sprintf(`{"digest":%q}`, blob.Digest))
	old := time.Now().Add(-time.Hour)
	filepath.WalkDir(h.Dir(), func(p string, d os.DirEntry, err error) error { return os.Chtimes(p, old, old) })

	forgotten := filepath.Join(h.BuildsDir(), "old.json")
	write(forgotten, `{}`)
	month := time.Now().Add(-31 * 24 * time.Hour)
	os.Chtimes(forgotten, month, month)

	swept, err := h.Sweep(t.Context(), time.Minute)
	if _, err := os.Stat(forgotten); err == nil {
		t.Error("a build that nobody asked for in a month is remembered")
	}
	if err != nil || swept.Layers != 1 || swept.Blobs != 0 {
		t.Fatalf("Sweep = %+v, %v", swept, err)
	}
	for id, want := range map[digest.Digest]bool{planned: true, machine: true, loose: false} {
		if got, err := layers.Has(t.Context(), id); got != want || err != nil {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	}
}

// Whoever can change a home decides what sandboxes are given of the host.
func TestOpenRefusesAHomeThatOthersCanChange(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	if _, err := store.Open(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(dir); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("a directory that all can write: %v", err)
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(dir); err != nil {
		t.Errorf("a directory of our own group: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	if err := os.Chown(dir, 0, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(dir); !errors.Is(err, kiterr.ErrUnavailable) {
		t.Errorf("a directory of another group: %v", err)
	}
	if err := os.Chown(dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(dir); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "12345") {
		t.Errorf("a directory of another user: %v", err)
	}
}
