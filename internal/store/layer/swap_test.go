package layer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestASwappedLayerDiffersInItsOwnersOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing owners takes root")
	}
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(s.dir, "layer", "fs")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(from, "home/agent"), 0o755))
	must(os.WriteFile(filepath.Join(from, "su"), []byte("su"), 0o755))
	must(os.Chmod(filepath.Join(from, "su"), 0o755|os.ModeSetuid))
	must(os.Link(filepath.Join(from, "su"), filepath.Join(from, "su2")))
	must(os.Symlink("su", filepath.Join(from, "link")))
	must(os.WriteFile(filepath.Join(from, "other"), nil, 0o600))
	must(unix.Mknod(filepath.Join(from, "gone"), unix.S_IFCHR, 0))
	must(unix.Setxattr(filepath.Join(from, "home"), "user.overlay.opaque", []byte("y"), 0))
	must(os.Lchown(filepath.Join(from, "home/agent"), 1000, 1001))
	must(os.Lchown(filepath.Join(from, "other"), 42, 43))
	must(os.Chtimes(filepath.Join(from, "su"), time.Unix(1_600_000_000, 5), time.Unix(1_600_000_000, 5)))

	begun := 0
	dir, err := s.Swapped(t.Context(), from, 1000, 1001, func() { begun++ })
	must(err)
	again, err := s.Swapped(t.Context(), from, 1000, 1001, func() { begun++ })
	must(err)
	if dir != again || begun != 1 {
		t.Errorf("made %d times: %s, %s", begun, dir, again)
	}
	for name, owner := range map[string][2]uint32{".": {1000, 1001}, "home": {1000, 1001}, "home/agent": {0, 0}, "su": {1000, 1001}, "link": {1000, 1001}, "other": {42, 43}} {
		var a, b unix.Stat_t
		must(unix.Lstat(filepath.Join(from, name), &a))
		must(unix.Lstat(filepath.Join(dir, name), &b))
		if [2]uint32{b.Uid, b.Gid} != owner || a.Mode != b.Mode || a.Size != b.Size && a.Mode&unix.S_IFMT != unix.S_IFDIR || a.Mtim != b.Mtim {
			t.Errorf("%s: %+v became %+v", name, a, b)
		}
	}
	one, err := os.Stat(filepath.Join(dir, "su"))
	must(err)
	two, err := os.Stat(filepath.Join(dir, "su2"))
	must(err)
	if !os.SameFile(one, two) {
		t.Error("a hard link became a copy")
	}
	if !isOpaque(filepath.Join(dir, "home")) {
		t.Error("a directory is not opaque any more")
	}
	var st unix.Stat_t
	must(unix.Lstat(filepath.Join(dir, "gone"), &st))
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Error("a whiteout is none any more")
	}
	if _, err := s.Swapped(t.Context(), "/etc", 1, 1, func() {}); err == nil {
		t.Error("a directory that is no layer is copied")
	}
}
