package tarball

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"
)

// entries makes a tar of headers; the content of a file is its name.
func entries(t testing.TB, hs ...tar.Header) *bytes.Buffer {
	t.Helper()
	b := new(bytes.Buffer)
	w := tar.NewWriter(b)
	for _, h := range hs {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(h.Name))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(h.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func sym(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}
func file(name string) tar.Header { return tar.Header{Name: name} }

// arena is a directory with another beside it that nothing may reach.
func arena(t testing.TB) (in, outside string) {
	t.Helper()
	top := t.TempDir()
	in, outside = filepath.Join(top, "in"), filepath.Join(top, "outside")
	for _, d := range []string{in, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("whole"), 0o600); err != nil {
		t.Fatal(err)
	}
	return in, outside
}

// untouched checks that nothing beside in was changed.
func untouched(t testing.TB, in, outside string) {
	t.Helper()
	for d, want := range map[string]string{filepath.Dir(in): "in outside", outside: "victim"} {
		es, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range es {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s holds %q", d, got)
		}
	}
	b, err := os.ReadFile(filepath.Join(outside, "victim"))
	if err != nil || string(b) != "whole" {
		t.Errorf("the victim is %q, %v", b, err)
	}
}

func TestNothingIsWrittenOutside(t *testing.T) {
	for name, hs := range map[string][]tar.Header{
		"up":                 {file("../evil")},
		"up inside":          {file("a/../../evil")},
		"absolute":           {file("/evil")},
		"through a link":     {sym("l", "../outside"), file("l/evil")},
		"over a link":        {sym("l", "../outside/victim"), file("l")},
		"through two links":  {dir("x/y"), sym("x/y/s", "../.."), sym("l", "x/y/s/../outside"), file("l/evil")},
		"link below a link":  {dir("q"), sym("q/p", ".."), sym("q/p/l", "../outside"), file("l/evil")},
		"hard link up":       {hard("l", "../outside/victim"), file("l")},
		"hard link absolute": {hard("l", "/etc/passwd")},
		"hard link by link":  {sym("s", "../outside"), hard("l", "s/victim")},
		"directory over":     {sym("d", "../outside"), dir("d"), file("d/evil")},
		"device":             {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
		"pipe":               {{Typeflag: tar.TypeFifo, Name: "pipe"}},
	} {
		for _, o := range []UnpackOptions{{}, {Links: true}} {
			in, outside := arena(t)
			err := Unpack(entries(t, hs...), in, o)
			untouched(t, in, outside)
			_ = filepath.WalkDir(in, func(p string, d fs.DirEntry, _ error) error {
				if d.Type()&(fs.ModeDevice|fs.ModeNamedPipe) != 0 {
					t.Errorf("%s: %s is a device or a pipe", name, p)
				}
				if d.Type()&fs.ModeSymlink != 0 && !o.Links {
					real, err := filepath.EvalSymlinks(p)
					if err == nil && !strings.HasPrefix(real+"/", in+"/") {
						t.Errorf("%s: %s leads to %s", name, p, real)
					}
				}
				return nil
			})
			_ = err // refusing and leaving out are both right
		}
	}
}

func TestOnlyWhatWasAskedForIsTaken(t *testing.T) {
	in, _ := arena(t)
	if err := os.WriteFile(filepath.Join(in, "mine"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(entries(t, dir("a"), file("a/f"), file("mine")), in, UnpackOptions{Base: "a"}); err == nil || !strings.Contains(err.Error(), "mine") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(in, "mine")); err != nil || string(b) != "mine" {
		t.Errorf("it is %q, %v", b, err)
	}
}

func TestBombsAreBounded(t *testing.T) {
	in, _ := arena(t)
	// A file that says it has a terabyte, and does not.
	b := new(bytes.Buffer)
	w := tar.NewWriter(b)
	if err := w.WriteHeader(&tar.Header{Name: "big", Size: 1 << 40, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(b, in, UnpackOptions{MaxBytes: 1 << 20}); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got %v", err)
	}
	if err := Unpack(entries(t, file("a"), file("b"), file("c")), in, UnpackOptions{MaxEntries: 2}); err == nil || !strings.Contains(err.Error(), "entries") {
		t.Errorf("got %v", err)
	}
	if err := Unpack(strings.NewReader("no tar at all, of at least one block"+strings.Repeat("x", 600)), in, UnpackOptions{}); err == nil {
		t.Error("garbage is taken")
	}
}

func TestATreeComesBackAsItWas(t *testing.T) {
	src := t.TempDir()
	old := time.Unix(1_500_000_000, 0)
	for name, mode := range map[string]fs.FileMode{"a/f": 0o640, "a/b/x": 0o755, "ro/f": 0o444, "empty": 0o600} {
		p := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(strings.Repeat(name, 50_000*len(name)%7)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a/f", filepath.Join(src, "l")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(src, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(src, "a/f"), filepath.Join(src, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(src, "ro"), 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(src, "ro"), 0o755) })
	b := new(bytes.Buffer)
	if err := Pack(b, src, PackOptions{Name: "."}); err != nil {
		t.Fatal(err)
	}
	in, _ := arena(t)
	var left []string
	if err := Unpack(b, in, UnpackOptions{Left: func(s string) { left = append(left, s) }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(in, "ro"), 0o755) })
	if got, want := listing(t, in), strings.Replace(listing(t, src), "out L /etc/passwd\n", "", 1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if len(left) != 1 || !strings.Contains(left[0], "/etc/passwd") {
		t.Errorf("left out %q", left)
	}
	one, err := os.Stat(filepath.Join(in, "hard"))
	two, err2 := os.Stat(filepath.Join(in, "a/f"))
	if err != nil || err2 != nil || !os.SameFile(one, two) {
		t.Error("a hard link became a copy")
	}
}

// listing describes a tree, one line each.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			lines = append(lines, rel+" L "+to)
			return err
		case d.IsDir():
			lines = append(lines, rel+" "+st.Mode().String())
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			lines = append(lines, rel+" "+st.Mode().String()+" "+st.ModTime().UTC().String()+" "+string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n"
}

func FuzzUnpackStaysInside(f *testing.F) {
	f.Add(entries(f, file("a"), sym("l", "../outside"), file("l/x"), hard("h", "a")).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		in, outside := arena(t)
		_ = Unpack(bytes.NewReader(b), in, UnpackOptions{MaxBytes: 1 << 20, MaxEntries: 100, Links: true})
		untouched(t, in, outside)
	})
}

func TestRunsOfZerosTakeNoRoom(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	name := filepath.Join(src, "disk")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	// Data at the beginning, across a border of runs, and a hole at the end.
	for _, at := range []int64{0, 5<<20 - 3, 9 << 20} {
		if _, err := f.WriteAt([]byte("content"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(40<<20+5), f.Close()); err != nil {
		t.Fatal(err)
	}
	b := new(bytes.Buffer)
	if err := Pack(b, name, PackOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(b, dst, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dst, "disk"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy has %d bytes, %v, and differs", len(got), err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dst, "disk"), &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 1<<20 {
		t.Errorf("it takes %d bytes of the disk", used)
	}
}

func TestWhatIsNoFileIsTold(t *testing.T) {
	src := t.TempDir()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600), os.WriteFile(filepath.Join(src, "f"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var left []string
	b := new(bytes.Buffer)
	if err := Pack(b, src, PackOptions{Name: "d", Left: func(s string) { left = append(left, s) }}); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !strings.HasPrefix(left[0], "d/pipe is") {
		t.Errorf("left out: %q", left)
	}
	if strings.Contains(b.String(), "d/pipe") {
		t.Error("it is packed nevertheless")
	}
}
