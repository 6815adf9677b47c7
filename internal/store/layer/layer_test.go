package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/internal/store/untar"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// needRoot skips where owners cannot be set.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers keep their owners")
	}
}

// makeTar writes entries; content goes by name for regular files.
func makeTar(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		var body []byte
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && !strings.HasPrefix(filepath.Base(h.Name), ".wh.") {
			body = []byte("content of " + h.Name)
			if c, ok := h.PAXRecords["TEST.content"]; ok {
				body = []byte(c)
				h.PAXRecords = nil
			} else if n, err := strconv.Atoi(h.PAXRecords["TEST.size"]); err == nil {
				body = bytes.Repeat([]byte("kitbox "), n/7+1)[:n]
				h.PAXRecords = nil
			}
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name string) tar.Header { return tar.Header{Name: name} }
func dir(name string, mode int64, id int) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: id, Gid: id}
}
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func sized(name string, bytes int) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"TEST.size": strconv.Itoa(bytes)}}
}

func opener(b []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

func unpack(t *testing.T, s *layer.Store, data []byte) digest.Digest {
	t.Helper()
	id := digest.FromBytes(data)
	if err := s.Unpack(t.Context(), id, opener(data)); err != nil {
		t.Fatal(err)
	}
	return id
}

func open(t *testing.T) *layer.Store {
	t.Helper()
	s, err := layer.Open(filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rubbish lists what a store holds besides layers and its lock.
func rubbish(t *testing.T, s *layer.Store) []string {
	t.Helper()
	es, err := os.ReadDir(filepath.Dir(filepath.Dir(s.Dir(digest.FromString("x")))))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		if strings.HasPrefix(e.Name(), durable.TempPrefix) {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestUnpackKeepsWhatTheTarSays(t *testing.T) {
	needRoot(t)
	mtime := time.Date(2020, 2, 3, 4, 5, 6, 789, time.UTC)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_bind_service=ep
	s := open(t)
	id := unpack(t, s, makeTar(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711, ModTime: mtime},
		tar.Header{Name: "./bin/", Typeflag: tar.TypeDir, Mode: 0o1775, Uid: 3, Gid: 4, ModTime: mtime},
		tar.Header{Name: "./bin/su", Mode: 0o4755, Uid: 0, Gid: 5, ModTime: mtime, PAXRecords: map[string]string{"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.security.capability": capability}},
		hard("bin/sudo", "./bin/su"),
		tar.Header{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "/no/such", Uid: 7, Gid: 8, ModTime: mtime},
		tar.Header{Name: "run/pipe", Typeflag: tar.TypeFifo, Mode: 0o622, Uid: 9, Gid: 9},
		tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
	))
	root := s.Dir(id)
	stat := func(p string) syscall.Stat_t {
		var st syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(root, p), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	for _, c := range []struct {
		path     string
		mode     uint32
		uid, gid uint32
		mtime    time.Time
	}{
		{"", unix.S_IFDIR | 0o711, 0, 0, mtime},
		{"bin", unix.S_IFDIR | 0o1775, 3, 4, mtime},
		{"bin/su", unix.S_IFREG | 0o4755, 0, 5, mtime},
		{"bin/sh", unix.S_IFLNK | 0o777, 7, 8, mtime},
		{"run", unix.S_IFDIR | 0o755, 0, 0, time.Unix(0, 0)},
		{"run/pipe", unix.S_IFIFO | 0o622, 9, 9, time.Unix(0, 0)},
	} {
		st := stat(c.path)
		if st.Mode != c.mode || st.Uid != c.uid || st.Gid != c.gid || !time.Unix(st.Mtim.Unix()).Equal(c.mtime) {
			t.Errorf("%s: mode %o owner %d:%d time %v, want %o %d:%d %v", c.path, st.Mode, st.Uid, st.Gid, time.Unix(st.Mtim.Unix()), c.mode, c.uid, c.gid, c.mtime)
		}
	}
	if a, b := stat("bin/su"), stat("bin/sudo"); a.Ino != b.Ino {
		t.Error("the hard link is a copy")
	}
	for name, want := range map[string]string{"user.note": "kept", "security.capability": capability} {
		buf := make([]byte, 64)
		n, err := unix.Getxattr(filepath.Join(root, "bin/sudo"), name, buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%s = %q, %v", name, buf[:max(n, 0)], err)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "dev/null")); err == nil {
		t.Error("a device was made")
	}
	m, err := s.Meta(id)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Implied, []string{"run"}) || !slices.Equal(m.SkippedDevices, []string{"dev/null"}) {
		t.Errorf("meta = %+v", m)
	}
	inv, err := s.Inventory(id)
	if err != nil {
		t.Fatal(err)
	}
	su, _ := inv.Find("bin/su")
	sudo, ok := inv.Find("bin/sudo")
	if !ok || !su.Same(sudo) || su.Mode != 0o4755 || su.Size != int64(len("content of ./bin/su")) {
		t.Errorf("inventory: %+v and %+v", su, sudo)
	}
	if _, ok := inv.Find("dev/null"); ok {
		t.Error("the inventory lists a device that is not there")
	}
}

func TestUnpackReadsEveryCompression(t *testing.T) {
	needRoot(t)
	plain := makeTar(t, file("a"), sized("big", 1_400_000))
	var gz, zs bytes.Buffer
	gw := gzip.NewWriter(&gz)
	gw.Write(plain)
	gw.Close()
	zw, _ := zstd.NewWriter(&zs)
	zw.Write(plain)
	zw.Close()
	for name, blob := range map[string][]byte{"none": plain, "gzip": gz.Bytes(), "zstd": zs.Bytes()} {
		s := open(t)
		id := digest.FromBytes(plain)
		if err := s.Unpack(t.Context(), id, opener(blob)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if st, err := os.Stat(filepath.Join(s.Dir(id), "big")); err != nil || st.Size() != 1_400_000 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		// A blob that is cut off must not pass for a short one.
		cut := open(t)
		if err := cut.Unpack(t.Context(), id, opener(blob[:len(blob)/2])); err == nil {
			t.Errorf("%s: a truncated blob was accepted", name)
		}
		if left := rubbish(t, cut); len(left) > 0 {
			t.Errorf("%s: %q left behind", name, left)
		}
	}
}

func TestUnpackChecksTheDiffID(t *testing.T) {
	needRoot(t)
	s := open(t)
	other := digest.FromString("something else")
	err := s.Unpack(t.Context(), other, opener(makeTar(t, file("a"))))
	if err == nil || !strings.Contains(err.Error(), "has diff id") {
		t.Fatalf("Unpack = %v", err)
	}
	if ok, err := s.Has(t.Context(), other); ok || err != nil {
		t.Errorf("Has = %v, %v after a failed unpack", ok, err)
	}
	for _, id := range []digest.Digest{"", "sha256:../../x", "md5:00", "sha256:abc"} {
		if err := s.Unpack(t.Context(), id, opener(nil)); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Unpack(%q) = %v", id, err)
		}
	}
}

// What follows the end of the tar belongs to the diff id too.
func TestUnpackHashesTrailingData(t *testing.T) {
	needRoot(t)
	s := open(t)
	unpack(t, s, append(makeTar(t, file("a")), bytes.Repeat([]byte{0}, 9000)...))
}

func TestHostileTars(t *testing.T) {
	needRoot(t)
	many := make([]tar.Header, 60)
	for i := range many {
		many[i] = file(fmt.Sprint("f", i))
	}
	flip := make([]tar.Header, 210)
	for i := range flip {
		flip[i] = dir("d", 0o755, 0)
		if i%2 == 1 {
			flip[i] = file("d")
		}
	}
	for _, c := range []struct {
		name    string
		entries []tar.Header
		want    string
	}{
		{"parent", []tar.Header{file("../x")}, "climbs"},
		{"inner parent", []tar.Header{file("a/../../x")}, "climbs"},
		{"harmless parent", []tar.Header{file("a/../x")}, "climbs"},
		{"absolute name", []tar.Header{file("/etc/x")}, `entry "/etc/x" has an absolute name`},
		{"absolute directory", []tar.Header{dir("/etc", 0o755, 0)}, "absolute"},
		{"absolute name with more slashes", []tar.Header{file("//x")}, "absolute"},
		{"absolute whiteout", []tar.Header{file("/etc/.wh.x")}, "absolute"},
		{"absolute device", []tar.Header{{Name: "/dev/null", Typeflag: tar.TypeChar}}, "absolute"},
		{"device beside /dev", []tar.Header{{Name: "devices/null", Typeflag: tar.TypeChar}}, `entry "devices/null" is a device node`},
		{"device by way of /dev", []tar.Header{{Name: "dev/../null", Typeflag: tar.TypeChar}}, "device"},
		{"root as a file", []tar.Header{link("./", "/etc")}, "replaces the root"},
		{"hard link out", []tar.Header{hard("x", "../../etc/passwd")}, "no path inside"},
		{"hard link to the host", []tar.Header{hard("x", "/etc/passwd")}, "does not hold"},
		{"hard link through a symlink", []tar.Header{link("l", "/etc"), hard("x", "l/passwd")}, "does not hold"},
		{"hard link to a directory", []tar.Header{dir("d", 0o755, 0), hard("x", "d")}, "directory"},
		{"hard link to what it replaces", []tar.Header{file("d/f"), hard("d", "d/f")}, "which it replaces"},
		{"block device", []tar.Header{{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}}, "device"},
		{"smuggled whiteout", []tar.Header{{Name: "etc/shadow", Typeflag: tar.TypeChar}}, "device"},
		{"below a file", []tar.Header{file("a"), file("a/b")}, "no directory"},
		{"symlink loop", []tar.Header{link("a", "b"), link("b", "a"), file("a/x")}, "symlinks"},
		{"whiteout of nothing", []tar.Header{file("a/.wh.")}, "whiteout of nothing"},
		{"whiteout of dots", []tar.Header{file("a/.wh...")}, "whiteout of nothing"},
		{"climbing whiteout", []tar.Header{file("../.wh.x")}, "climbs"},
		{"huge owner", []tar.Header{{Name: "a", Uid: 1 << 20}}, "belongs to"},
		{"long name", []tar.Header{file(strings.Repeat("n", 256))}, "component of 256"},
		{"long path", []tar.Header{file(strings.Repeat("n/", 2000) + "n")}, "has a path of"},
		{"too many", many, "one too many"},
		{"too many by replacement", flip, "one too many"},
		{"too many implied", []tar.Header{file(strings.Repeat("d/", 70) + "x")}, "one too many"},
		{"too large", []tar.Header{sized("a", 300_000)}, "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			s.Limits = untar.Limits{Entries: 50, Bytes: 250_000}
			data := makeTar(t, c.entries...)
			err := s.Unpack(t.Context(), digest.FromBytes(data), opener(data))
			if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Unpack = %v, want a refusal with %q", err, c.want)
			}
			if left := rubbish(t, s); len(left) > 0 {
				t.Errorf("%q left behind", left)
			}
		})
	}
}

// A sparse file is as large as it says, however small its tar.
func TestSparseFilesCountInFull(t *testing.T) {
	needRoot(t)
	var b bytes.Buffer
	// PAX sparse 1.0: a map with one empty region, real size 1 TiB.
	w := tar.NewWriter(&b)
	body := "1\n1099511627776\n0\n"
	body += strings.Repeat("\x00", 512-len(body))
	h := &tar.Header{Name: "x", Size: int64(len(body)), Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"VENDOR.placeholder": "1",
	}}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(body))
	w.Close()
	// The writer refuses GNU.sparse keys, so they are put in afterwards.
	rec := func(k, v string) string {
		n := len(k) + len(v) + 3
		for len(fmt.Sprint(n))+len(k)+len(v)+3 != n {
			n = len(fmt.Sprint(n)) + len(k) + len(v) + 3
		}
		return fmt.Sprintf("%d %s=%s\n", n, k, v)
	}
	pax := rec("GNU.sparse.major", "1") + rec("GNU.sparse.minor", "0") + rec("GNU.sparse.name", "bomb") + rec("GNU.sparse.realsize", "1099511627776")
	data := b.Bytes()
	copy(data[512:1024], pax+strings.Repeat("\x00", 512-len(pax)))
	copy(data[124:136], fmt.Sprintf("%011o\x00", len(pax)))
	copy(data[148:156], "        ")
	sum := 0
	for _, c := range data[:512] {
		sum += int(c)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
	s := open(t)
	s.Limits.Bytes = 1 << 30
	err := s.Unpack(t.Context(), digest.FromBytes(data), opener(data))
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "too large") {
		t.Fatalf("Unpack = %v", err)
	}
}

// A symlink in a tar's path leads where it would lead in a machine, never out.
func TestSymlinksAreFollowedInsideTheLayer(t *testing.T) {
	needRoot(t)
	outside := t.TempDir()
	s := open(t)
	id := unpack(t, s, makeTar(t,
		link("lib", "usr/lib"),
		file("lib/one"),
		link("abs", outside),
		file("abs/two"),
		link("up", "../../../../../../../../etc"),
		file("up/three"),
		hard("four", "lib/one"),
		dir("/", 0o711, 0),
		tar.Header{Name: "absolute", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		hard("five", "/lib/one"),
	))
	for _, p := range []string{"usr/lib/one", filepath.Join(outside, "two"), "etc/three", "four", "five"} {
		if st, err := os.Lstat(filepath.Join(s.Dir(id), p)); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v", p, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(s.Dir(id), "absolute")); err != nil || to != "/etc/passwd" {
		t.Errorf("a symlink leads to %q, %v", to, err)
	}
	if st, err := os.Stat(s.Dir(id)); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("the root: %v, %v", st, err)
	}
	if es, err := os.ReadDir(outside); err != nil || len(es) > 0 {
		t.Errorf("outside holds %v, %v", es, err)
	}
}

func TestForeignOverlayAttributesAreLeftOut(t *testing.T) {
	needRoot(t)
	s := open(t)
	h := dir("d", 0o755, 0)
	h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.redirect": "/x"}
	id := unpack(t, s, makeTar(t, h))
	buf := make([]byte, 256)
	if n, err := unix.Llistxattr(filepath.Join(s.Dir(id), "d"), buf); err != nil || strings.Contains(string(buf[:n]), "overlay") {
		t.Errorf("attributes %q, %v", buf[:n], err)
	}
	if m, _ := s.Meta(id); !slices.Equal(m.SkippedAttributes, []string{"trusted.overlay.opaque", "user.overlay.redirect"}) {
		t.Errorf("meta = %+v", m)
	}
}

func TestOneLayerIsUnpackedOnce(t *testing.T) {
	needRoot(t)
	s := open(t)
	data := makeTar(t, file("a"))
	var opened atomic.Int32
	var wg sync.WaitGroup
	home := filepath.Dir(filepath.Dir(s.Dir(digest.FromBytes(data))))
	for range 16 {
		wg.Go(func() {
			s, err := layer.Open(home) // one each, as processes have
			if err != nil {
				t.Error(err)
				return
			}
			err = s.Unpack(t.Context(), digest.FromBytes(data), func() (io.ReadCloser, error) {
				opened.Add(1)
				return io.NopCloser(bytes.NewReader(data)), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n != 1 {
		t.Errorf("unpacked %d times", n)
	}
}

// After the machine went down, a layer counts if it had had the time to reach
// the disk, and is made anew otherwise.
func TestALayerOfAnEarlierBootMustHaveSettled(t *testing.T) {
	needRoot(t)
	s := open(t)
	data := makeTar(t, file("a"))
	id := unpack(t, s, data)
	boot := filepath.Join(filepath.Dir(s.Dir(id)), "boot")
	old := time.Now().Add(-10 * time.Minute)
	if err := os.Chtimes(boot, old, old); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		made string // empty: as it is
		has  bool
	}{{"", true}, {"", true}, {"another boot", false}} {
		if c.made != "" {
			if err := os.WriteFile(boot, []byte(c.made), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if has, err := s.Has(t.Context(), id); has != c.has || err != nil {
			t.Errorf("made in %q: %v, %v", c.made, has, err)
		}
	}
	os.WriteFile(filepath.Join(s.Dir(id), "a"), nil, 0o644) // what a crash leaves
	unpack(t, s, data)
	if got, err := os.ReadFile(filepath.Join(s.Dir(id), "a")); err != nil || string(got) != "content of a" {
		t.Errorf("a is %q, %v", got, err)
	}
	if left := rubbish(t, s); len(left) > 0 {
		t.Errorf("%q left behind", left)
	}
	if made, err := os.ReadFile(boot); err != nil || string(made) == "another boot" {
		t.Errorf("boot is %q, %v", made, err)
	}
}

func TestALayerSettles(t *testing.T) {
	needRoot(t)
	s := open(t)
	id := unpack(t, s, makeTar(t, file("a")))
	boot := filepath.Join(filepath.Dir(s.Dir(id)), "boot")
	old := time.Now().Add(-10 * time.Minute)
	os.Chtimes(boot, old, old)
	if has, err := s.Has(t.Context(), id); !has || err != nil {
		t.Fatal(has, err)
	}
	if made, err := os.ReadFile(boot); err != nil || string(made) != "settled" {
		t.Errorf("boot is %q, %v", made, err)
	}
}

func TestUnpackEndsWithItsContext(t *testing.T) {
	needRoot(t)
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	done := make(chan error)
	go func() {
		done <- s.Unpack(ctx, digest.FromString("x"), func() (io.ReadCloser, error) { return r, nil })
	}()
	w.Write(makeTar(t, file("a"))[:512])
	cancel()
	w.CloseWithError(io.ErrClosedPipe) // what a closed file or connection does
	if err := <-done; err == nil {
		t.Error("Unpack succeeded")
	}
	if left := rubbish(t, s); len(left) > 0 {
		t.Errorf("%q left behind", left)
	}
}

func TestSweepKeepsWhatIsUsed(t *testing.T) {
	needRoot(t)
	s := open(t)
	a := unpack(t, s, makeTar(t, file("a")))
	b := unpack(t, s, makeTar(t, file("b")))
	c := unpack(t, s, makeTar(t, file("c")))
	root := filepath.Dir(filepath.Dir(s.Dir(a)))
	stale := filepath.Join(root, durable.TempPrefix+"stale")
	if err := os.MkdirAll(filepath.Join(stale, "fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, p := range []string{stale, filepath.Dir(s.Dir(a)), filepath.Dir(s.Dir(b))} {
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
	}
	n, _, err := s.Sweep(t.Context(), func(dir string, id digest.Digest) bool { return id == a }, time.Hour)
	if err != nil || n != 2 {
		t.Fatalf("Sweep = %d, %v", n, err)
	}
	for id, want := range map[digest.Digest]bool{a: true, b: false, c: true} { // kept, unused, fresh
		if got, err := s.Has(t.Context(), id); got != want || err != nil {
			t.Errorf("Has(%s) = %v, %v, want %v", id.Encoded()[:8], got, err, want)
		}
	}
	if left := rubbish(t, s); len(left) > 0 {
		t.Errorf("%q left behind", left)
	}
}

func TestAFullDiskIsNamed(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		mnt := t.TempDir()
		if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=256k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(mnt, unix.MNT_DETACH) })
		s, err := layer.Open(mnt)
		if err != nil {
			t.Fatal(err)
		}
		data := makeTar(t, sized("a", 1<<20))
		err = s.Unpack(t.Context(), digest.FromBytes(data), opener(data))
		if !errors.Is(err, kiterr.ErrUnavailable) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), mnt) || !strings.Contains(err.Error(), "KITBOX_HOME") {
			t.Errorf("Unpack = %v", err)
		}
		if left := rubbish(t, s); len(left) > 0 {
			t.Errorf("%q left behind", left)
		}
	})
}
