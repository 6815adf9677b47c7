package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inside is the working directory of the image.
const inside = "/work"

func sum(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

func TestFilesAreCopiedBothWays(t *testing.T) {
	create(t, "cp", "-q", probe)
	dir := write(t, map[string]string{"small": "text\n", "tree/a": "a\n", "tree/sub/b": "b\n"})
	big := filepath.Join(dir, "big")
	content := make([]byte, 100<<20)
	r := rand.NewChaCha8([32]byte{1})
	if _, err := r.Read(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(big, content, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "tree/a"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file: into a directory, under a new name, over another.
	ok(t, "cp", big, "cp:")
	ok(t, "cp", filepath.Join(dir, "small"), "cp:"+inside+"/renamed")
	ok(t, "cp", filepath.Join(dir, "small"), "cp:renamed")
	if o := sh(t, "cp", "", "sha256sum big; stat -c '%u %a' big renamed; cat renamed"); o.Stdout != sum(t, big)+"  big\n1000 640\n1000 644\ntext\n" {
		t.Errorf("inside: %+v", o)
	}
	back := filepath.Join(dir, "back")
	ok(t, "cp", "cp:"+inside+"/big", back)
	if sum(t, back) != sum(t, big) || ownerOf(t, back) != 0 {
		t.Error("what came back is another file")
	}
	// A directory: becomes one, goes into one, its contents alone.
	for _, c := range []struct{ src, dst, want string }{
		{filepath.Join(dir, "tree"), "cp:new", "new/a new/sub/b"},
		{filepath.Join(dir, "tree"), "cp:new", "new/a new/sub/b new/tree/a new/tree/sub/b"},
		{filepath.Join(dir, "tree") + "/.", "cp:/work", "a big new/a new/sub/b new/tree/a new/tree/sub/b renamed sub/b"},
	} {
		ok(t, "cp", c.src, c.dst)
		root := strings.TrimPrefix(strings.TrimPrefix(c.dst, "cp:"), "/work")
		o := sh(t, "cp", "", "find "+orDot(root)+" -type f | sed 's,^\\./,,' | sort | tr '\\n' ' '")
		if strings.TrimSpace(o.Stdout) != c.want {
			t.Errorf("%s to %s: %q, want %q", c.src, c.dst, o.Stdout, c.want)
		}
	}
	out := filepath.Join(dir, "out")
	ok(t, "cp", "cp:new", out)
	ok(t, "cp", "cp:new/sub/.", out)
	for _, p := range []string{"a", "sub/b", "tree/a", "b"} {
		if _, err := os.Stat(filepath.Join(out, p)); err != nil {
			t.Error(err)
		}
	}
	// Streams.
	o := kitbox(t, "cp", "cp:"+inside+"/new", "-")
	names := ""
	for tr := tar.NewReader(strings.NewReader(o.Stdout)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names += h.Name + " "
	}
	if !strings.Contains(names, "new/sub/b") {
		t.Errorf("the stream has %q", names)
	}
	if o := kitboxIn(t, []byte(o.Stdout), "cp", "-", "cp:/tmp"); o.Code != 0 {
		t.Errorf("%+v", o)
	}
	if out := ok(t, "exec", "cp", "--", "cat", "/tmp/new/sub/b"); out != "b\n" {
		t.Errorf("%q", out)
	}
	// Rights: the image's user cannot write there, root can; owners with -a.
	if o := kitbox(t, "cp", filepath.Join(dir, "small"), "cp:/etc/small"); o.Code != 1 || !strings.Contains(o.Stderr, "denied") {
		t.Errorf("as the user: %+v", o)
	}
	ok(t, "cp", "-u", "0", filepath.Join(dir, "small"), "cp:/etc/small")
	own(t, filepath.Join(dir, "small"), 1234)
	ok(t, "cp", "-a", filepath.Join(dir, "small"), "cp:/etc/kept")
	if out := ok(t, "exec", "cp", "--", "stat", "-c", "%u", "/etc/small", "/etc/kept"); out != "0\n1234\n" {
		t.Errorf("owners %q", out)
	}
	for _, c := range [][]string{{"cp:nothing", out}, {"nothing", "cp:"}, {dir, "cp:renamed"}, {"cp:new", big}, {"cp:a", "cp:b"}, {"a", "b"}, {big, "cp:nowhere/"}, {"cp:big", dir + "/none/x"}, {"nosuch:/x", "x"}} {
		if o := kitbox(t, "cp", c[0], c[1]); o.Code == 0 || !strings.HasPrefix(o.Stderr, "kitbox: ") || strings.Count(o.Stderr, "\n") != 1 {
			t.Errorf("cp %v: %+v", c, o)
		}
	}
	ok(t, "stop", "cp")
	if o := kitbox(t, "cp", "cp:"+inside+"/big", "-"); o.Code == 0 || !strings.Contains(o.Stderr, "stopped") {
		t.Errorf("of a stopped one: %+v", o)
	}
}

func orDot(s string) string {
	if s == "" {
		return "."
	}
	return s
}

// TestACopyOutLeadsNowhereElse has a directory that was made to lead astray.
func TestACopyOutLeadsNowhereElse(t *testing.T) {
	create(t, "trap", "-q", probe)
	dir := write(t, map[string]string{"victim": "whole\n"})
	if o := sh(t, "trap", "", "mkdir t; cd t; ln -s "+dir+" l; ln -s ../../victim up; ln -s f in; echo x >f; mkfifo pipe; mkdir d; ln -s ../f d/ok"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	if err := os.Mkdir(filepath.Join(dir, "dst"), 0o755); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(dir, "dst")
	o := kitbox(t, "cp", "trap:t", dst)
	for _, left := range []string{"t/l ", "t/up ", "t/pipe "} {
		if !strings.Contains(o.Stderr, "left out: "+left) {
			t.Errorf("%s: %+v", left, o)
		}
	}
	for _, p := range []string{"t/in", "t/d/ok", "t/f"} {
		if b, err := os.ReadFile(filepath.Join(dst, p)); err != nil || string(b) != "x\n" {
			t.Errorf("%s is %q, %v", p, b, err)
		}
	}
	// With the links there, a second copy writes through none of them.
	if o := kitbox(t, "cp", "-a", "trap:t", dst); o.Code != 0 {
		t.Errorf("%+v", o)
	}
	sh(t, "trap", "", "cd t; rm l; mkdir l; echo evil >l/victim")
	if o := kitbox(t, "cp", "trap:t", dst); o.Code == 0 {
		t.Errorf("over a link: %+v", o)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "victim")); err != nil || string(b) != "whole\n" {
		t.Errorf("the victim is %q, %v", b, err)
	}
	if o := kitbox(t, "cp", "--max-size", "1k", "trap:/bin/bash", filepath.Join(dst, "big")); o.Code == 0 || !strings.Contains(o.Stderr, "--max-size") {
		t.Errorf("%+v", o)
	}
	if _, err := os.Stat(filepath.Join(dst, "big")); err == nil {
		t.Error("half a file is left")
	}
	// A hostile stream from this side is judged inside.
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "../../etc/evil", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if o := kitboxIn(t, b.Bytes(), "cp", "-u", "0", "-", "trap:/work"); o.Code == 0 || !strings.Contains(o.Stderr, "leads out") {
		t.Errorf("%+v", o)
	}
}

func TestWhatIsMaskedOrProtectedIsNotCopiedOver(t *testing.T) {
	dir := repository(t, 1000, map[string]string{"tracked": "x\n", ".env": "secret\n"})
	create(t, "covered", "-q", "--mask", ".env", probe, dir)
	from := write(t, map[string]string{"f": "new\n", "tree/.env": "new\n"})
	for _, c := range [][]string{{from + "/f", "covered:.env"}, {from + "/f", "covered:.git/config"}, {from + "/tree/.", "covered:."}} {
		o := kitbox(t, "cp", c[0], c[1])
		if o.Code != 1 || !strings.Contains(o.Stderr, "it is masked, protected, or mounted by itself, and cannot be replaced") {
			t.Errorf("cp %v: %+v", c, o)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".env")); err != nil || string(b) != "secret\n" {
		t.Errorf(".env is %q, %v", b, err)
	}
	// What is no file is not copied without a word.
	if o := kitbox(t, "cp", "/dev/null", "covered:null"); o.Code != 1 || !strings.Contains(o.Stderr, "left out: null is a device") || !strings.Contains(o.Stderr, "kitbox: nothing was copied") {
		t.Errorf("a device in: %+v", o)
	}
	if o := kitbox(t, "cp", "covered:/dev/null", t.TempDir()); o.Code != 1 || !strings.Contains(o.Stderr, "kitbox: nothing was copied") {
		t.Errorf("a device out: %+v", o)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".kitbox-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
