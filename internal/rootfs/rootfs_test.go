package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestARootfsIsReadAsOverlayfsShowsIt(t *testing.T) {
	dir := t.TempDir()
	low, mid, top := filepath.Join(dir, "low"), filepath.Join(dir, "mid"), filepath.Join(dir, "top")
	write := func(layer, name, content string) {
		t.Helper()
		p := filepath.Join(layer, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(layer, name, target string) {
		t.Helper()
		p := filepath.Join(layer, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.Symlink(target, p); err != nil {
			t.Fatal(err)
		}
	}
	write(low, "etc/passwd", "low")
	write(low, "etc/only-low", "low")
	write(low, "usr/bin/tool", "low")
	write(low, "opt/dir/x", "low")
	write(low, "gone", "low")
	link(low, "bin", "usr/bin")
	link(low, "abs", "/etc/passwd")
	link(low, "loop", "loop")
	link(low, "usr/up", "../../../etc/../etc/only-low")
	link(low, "outside", dir)
	write(mid, "etc/passwd", "mid")
	write(top, "opt/dir/y", "top")
	for _, x := range []struct{ p, attr string }{{filepath.Join(top, "opt/dir"), "user.overlay.opaque"}, {filepath.Join(top, "gone"), "user.overlay.whiteout"}} {
		if filepath.Base(x.p) == "gone" {
			write(top, "gone", "")
		}
		if err := unix.Setxattr(x.p, x.attr, []byte("y"), 0); err != nil {
			needs.Lacks(t, "extended attributes do not work in %s: %v", dir, err)
		}
	}
	r := View{low, mid, top}
	for name, want := range map[string]string{
		"/etc/passwd": "mid", "etc/only-low": "low", "/bin/tool": "low", "/abs": "mid", "/usr/up": "low", "/../../etc/passwd": "mid",
		"/opt/dir/y": "top", "/opt/dir/x": "", "/gone": "", "/missing": "", "/outside/low/etc/passwd": "",
	} {
		if got, err := r.Text(name); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	if _, _, err := r.Find("/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("/loop: %v", err)
	}
	if _, _, err := r.Find("/etc/passwd/x"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

func TestExecutableAsksForTheUsersOwnBit(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"all": 0o755, "owner": 0o700, "others": 0o601, "none": 0o644} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, nil, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	r := View{dir}
	me := plan.Identity{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	stranger := plan.Identity{UID: me.UID + 12345, GID: me.GID + 12345}
	for _, c := range []struct {
		name string
		id   plan.Identity
		ok   bool
	}{
		{"/all", me, true}, {"/all", stranger, true}, {"/owner", me, true}, {"/owner", stranger, false},
		{"/others", stranger, true}, {"/none", me, false}, {"/none", plan.Identity{}, false}, {"/", me, false}, {"/missing", me, false},
	} {
		if err := r.Executable(c.name, c.id); (err == nil) != c.ok {
			t.Errorf("%s for %d: %v", c.name, c.id.UID, err)
		}
	}
}
