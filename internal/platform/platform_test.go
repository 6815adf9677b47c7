package platform_test

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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/platform"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const passwd = "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n"

// rootfs is the tar of a small platform base.
func rootfs(t *testing.T, without ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range []struct{ name, text string }{
		{"./", ""}, {"./usr/", ""}, {"./usr/bin/", ""}, {"./usr/bin/bash", "bash"}, {"./usr/bin/sh", "sh"}, {"./usr/bin/curl", "curl"}, {"./usr/bin/git", "git"},
		{"./usr/bin/python3", "py"}, {"./etc/", ""}, {"./etc/ssl/certs/ca-certificates.crt", "pem"}, {"./etc/passwd", passwd}, {"./home/", ""}, {"./home/agent/", ""},
	} {
		if slices.Contains(without, e.name) {
			continue
		}
		h := &tar.Header{Name: e.name, Mode: 0o755, Size: int64(len(e.text)), ModTime: time.Unix(1, 0)}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if e.name == "./home/agent/" {
			h.Uid, h.Gid = 1000, 1000
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, e.text)
	}
	w.Close()
	return b.Bytes()
}

func open(t *testing.T) *layout.Store {
	t.Helper()
	s, err := layout.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// machine is a root directory with the configuration of a Debian machine.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/os-release":                           "ID=debian\nVERSION_CODENAME=bookworm\n",
		"etc/apt/sources.list":                     "# old\ndeb-src http://src.example/debian bookworm main\ndeb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main contrib # here\ndeb http://vendor.example/x stable main\n",
		"etc/apt/sources.list.d/off.list.disabled": "deb http://off.example/debian bookworm main\n",
		"etc/apt/sources.list.d/debian.sources":    "Types: deb deb-src\n# comment\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/d.gpg\n\nTypes: deb\nURIs: http://sec.example/debian-security\nSuites: bookworm-security\nComponents: main\nSigned-By:\n -----BEGIN PGP\n .\n xyz\n\nTypes: deb\nEnabled: no\nURIs: http://no.example/debian\nSuites: bookworm\nComponents: main\n\nTypes: deb\nURIs: http://node.example/x\nSuites: nodistro\nComponents: main\n",
	} {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// fake is a mmdebstrap that runs script after noting its arguments in a file.
func fake(t *testing.T, script string) (program, log string) {
	t.Helper()
	dir := t.TempDir()
	program, log = filepath.Join(dir, "mmdebstrap"), filepath.Join(dir, "log")
	if err := os.WriteFile(filepath.Join(dir, "rootfs.tar"), rootfs(t), 0o644); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\nd=%s\nfor a in \"$@\"; do printf '%%s\\n' \"$a\"; done >> $d/log\necho RUN >> $d/log\n%s\n", dir, script)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, log
}

func lines(t *testing.T, log string) []string {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

const works = `echo "I: installing essential packages..." >&2; echo noise >&2; cat $d/rootfs.tar`

func TestCreateMakesAnImageOnce(t *testing.T) {
	images := open(t)
	program, log := fake(t, works)
	var told []string
	o := platform.Options{Program: program, Root: machine(t), Progress: func(l string) { told = append(told, l) }}
	d, err := platform.Create(t.Context(), images, o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := platform.Create(t.Context(), images, o)
	if err != nil || again != d {
		t.Errorf("again: %s, %v", again, err)
	}
	args := lines(t, log)
	if n := len(slices.DeleteFunc(slices.Clone(args), func(l string) bool { return l != "RUN" })); n != 1 {
		t.Errorf("ran %d times", n)
	}
	// The machine's own mirrors for its own release, and no other.
	i := slices.Index(args, "bookworm")
	want := []string{
		"bookworm", "-", "deb [signed-by=/k.gpg] http://one.example/debian bookworm main",
		"deb [signed-by=/usr/share/keyrings/d.gpg] http://two.example/debian bookworm main", "deb [signed-by=/usr/share/keyrings/d.gpg] http://two.example/debian bookworm-updates main",
		"deb http://sec.example/debian-security bookworm-security main", "RUN",
	}
	if i < 0 || !slices.Equal(args[i:], want) {
		t.Errorf("arguments %q, want %q at the end", args, want)
	}
	if len(told) != 3 || !strings.Contains(told[0], "installing Debian bookworm from http://one.example/debian and http://two.example/debian") || told[1] != "installing essential packages" || !strings.Contains(told[2], "is ready") {
		t.Errorf("told %q", told)
	}
	desc, err := images.Resolve(t.Context(), platform.Ref)
	if err != nil || desc.Digest != d {
		t.Fatal(desc, err)
	}
	img, err := images.Image(t.Context(), desc, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	c := img.Config.Config
	if c.User != "agent" || c.WorkingDir != "/home/agent" || !slices.Equal(c.Cmd, []string{"bash"}) || len(c.Env) != 1 || !strings.HasPrefix(c.Env[0], "PATH=/usr/local/sbin:") {
		t.Errorf("config %+v", c)
	}
	if os.Geteuid() == 0 { // it unpacks to what went in
		layers, err := layer.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		l := img.Layers()[0]
		if err := layers.Unpack(t.Context(), l.DiffID, func() (io.ReadCloser, error) { return images.Fetch(t.Context(), l.Blob) }); err != nil {
			t.Error(err)
		}
	}
	// The same packages on the same day are the same image.
	o.Force = true
	if third, err := platform.Create(t.Context(), images, o); err != nil || third != d {
		t.Errorf("forced: %s, %v", third, err)
	}
	if es, _ := os.ReadDir(filepath.Join(images.Dir(), "ingest")); len(es) > 0 {
		t.Errorf("%v left behind", es)
	}
}

func TestTwoAtOnceMakeOne(t *testing.T) {
	images := open(t)
	program, log := fake(t, works)
	root := machine(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := platform.Create(t.Context(), images, platform.Options{Program: program, Root: root}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(strings.Join(lines(t, log), "\n"), "RUN"); n != 1 {
		t.Errorf("ran %d times", n)
	}
}

func TestTheOperatorChoosesSuiteAndMirror(t *testing.T) {
	program, log := fake(t, works)
	empty := t.TempDir()
	for _, c := range []struct {
		o    platform.Options
		want []string
	}{
		{platform.Options{Suite: "trixie", Root: machine(t)}, []string{"trixie", "-"}}, // none of the machine's mirrors has it
		{platform.Options{Suite: "trixie", Root: empty}, []string{"trixie", "-"}},
		{platform.Options{Mirror: "http://m.example/debian", Root: machine(t)}, []string{"bookworm", "-", "http://m.example/debian"}},
	} {
		os.Remove(log)
		c.o.Program = program
		if _, err := platform.Create(t.Context(), open(t), c.o); err != nil {
			t.Fatal(err)
		}
		args := lines(t, log)
		if got := args[slices.Index(args, c.want[0]) : len(args)-1]; !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c.o, got)
		}
	}
	for want, o := range map[string]platform.Options{
		"--suite bookworm":    {Root: empty},
		"no name of a Debian": {Suite: "--help", Root: empty},
		"no mirror":           {Suite: "x", Mirror: "--help", Root: empty},
	} {
		o.Program = program
		if _, err := platform.Create(t.Context(), open(t), o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestFailuresLeaveNothing(t *testing.T) {
	for want, script := range map[string]string{
		"Could not resolve 'one.example'": `echo "I: running apt-get update..." >&2; echo "E: Failed to fetch http://one.example: Could not resolve 'one.example'" >&2; echo "E: run_chroot failed: E: mmdebstrap failed to run" >&2; exit 25`,
		"it said nothing":                 `exit 1`,
		"no space left on device":         `echo "tar: x: Cannot write: No space left on device" >&2; exit 2`,
		"is not a tar":                    `echo hello; exit 0`,
		"holds none of what a base needs": `tar cf - --files-from=/dev/null`,
		"the last line":                   `cat $d/rootfs.tar; echo "the last line" >&2; exit 1`, // a whole tar, and yet
	} {
		images := open(t)
		program, _ := fake(t, script)
		_, err := platform.Create(t.Context(), images, platform.Options{Program: program, Root: machine(t)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", want, err)
		}
		if tags, _ := images.Tags(); len(tags) > 0 {
			t.Errorf("%s: tags %v", want, tags)
		}
		for _, d := range []string{"ingest", "blobs/sha256"} {
			if es, _ := os.ReadDir(filepath.Join(images.Dir(), d)); len(es) > 0 {
				t.Errorf("%s: %v left in %s", want, es, d)
			}
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := platform.Create(t.Context(), open(t), platform.Options{Root: machine(t)}); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
		t.Errorf("without mmdebstrap: %v", err)
	}
}

func TestAnInterruptionEndsTheInstallation(t *testing.T) {
	images := open(t)
	program, log := fake(t, `sleep 1000 & c=$!; trap 'echo ended >> $d/log; kill $c; exit 1' TERM; echo "I: waiting" >&2; wait`)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := platform.Create(ctx, images, platform.Options{Program: program, Root: machine(t), Progress: func(l string) {
		if l == "waiting" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v", err)
	}
	if l := lines(t, log); l[len(l)-1] != "ended" {
		t.Errorf("log ends with %q", l[len(l)-1])
	}
	if es, _ := os.ReadDir(filepath.Join(images.Dir(), "ingest")); len(es) > 0 {
		t.Errorf("%v left behind", es)
	}
}

func TestARootFilesystemIsImported(t *testing.T) {
	plain := rootfs(t)
	dir := t.TempDir()
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	zw.Write(plain)
	zw.Close()
	os.WriteFile(filepath.Join(dir, "r.tar"), plain, 0o644)
	os.WriteFile(filepath.Join(dir, "r.tar.gz"), gz.Bytes(), 0o644)
	for _, name := range []string{"r.tar", "r.tar.gz"} {
		images := open(t)
		if _, err := platform.Create(t.Context(), images, platform.Options{Rootfs: filepath.Join(dir, name), Ref: "kitbox.local/mine:2"}); err != nil {
			t.Fatal(err)
		}
		desc, err := images.Resolve(t.Context(), "kitbox.local/mine:2")
		if err != nil {
			t.Fatal(err)
		}
		img, err := images.Image(t.Context(), desc, layout.HostPlatform())
		if err != nil || img.Config.RootFS.DiffIDs[0] != digest.FromBytes(plain) {
			t.Errorf("%s: %v, %v", name, img.Config.RootFS, err)
		}
	}
	if _, err := platform.Create(t.Context(), open(t), platform.Options{Rootfs: filepath.Join(dir, "none")}); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("a missing one: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "bad.tar"), rootfs(t, "./usr/bin/git", "./etc/passwd"), 0o644)
	var told []string
	if _, err := platform.Create(t.Context(), open(t), platform.Options{Rootfs: filepath.Join(dir, "bad.tar"), Progress: func(l string) { told = append(told, l) }}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(told, "\n"); !strings.Contains(text, "no /usr/bin/git") || !strings.Contains(text, "no user agent") || strings.Contains(text, "curl") {
		t.Errorf("told %q", told)
	}
}

// A directory becomes a layer that unpacks to the same directory.
func TestADirectoryIsImported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers keep their owners")
	}
	src, err := layer.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tarball := rootfs(t)
	id := digest.FromBytes(tarball)
	if err := src.Unpack(t.Context(), id, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tarball)), nil }); err != nil {
		t.Fatal(err)
	}
	root := src.Dir(id)
	for _, err := range []error{
		os.Link(filepath.Join(root, "usr/bin/bash"), filepath.Join(root, "usr/bin/rbash")),
		os.Symlink("bash", filepath.Join(root, "usr/bin/sh.distrib")),
		os.Chmod(filepath.Join(root, "usr/bin/git"), 0o4755|os.ModeSetuid),
		os.Mkdir(filepath.Join(root, "proc"), 0o555),
		os.WriteFile(filepath.Join(root, "proc/left"), nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	images := open(t)
	if _, err := platform.Create(t.Context(), images, platform.Options{Rootfs: root}); err != nil {
		t.Fatal(err)
	}
	desc, err := images.Resolve(t.Context(), platform.Ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.Image(t.Context(), desc, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	l := img.Layers()[0]
	if err := src.Unpack(t.Context(), l.DiffID, func() (io.ReadCloser, error) { return images.Fetch(t.Context(), l.Blob) }); err != nil {
		t.Fatal(err)
	}
	inv, err := src.Inventory(l.DiffID)
	if err != nil {
		t.Fatal(err)
	}
	orig, err := src.Inventory(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range orig {
		if e.Path == "usr/bin/git" {
			e.Mode = 0o4755
		}
		if got, ok := inv.Find(e.Path); !ok || !got.Same(e) {
			t.Errorf("%s: %+v, want %+v", e.Path, got, e)
		}
	}
	a, err1 := os.Stat(filepath.Join(src.Dir(l.DiffID), "usr/bin/bash"))
	b, err2 := os.Stat(filepath.Join(src.Dir(l.DiffID), "usr/bin/rbash"))
	if err1 != nil || err2 != nil || !os.SameFile(a, b) {
		t.Errorf("the hard link: %v, %v", err1, err2)
	}
	if _, ok := inv.Find("proc/left"); ok {
		t.Error("the content of /proc came along")
	}
	if e, ok := inv.Find("proc"); !ok || e.Mode != 0o555 {
		t.Errorf("proc is %+v", e)
	}
}

// TestDebian installs a real one. It downloads some 70 MB from the machine's
// mirror and is asked for with KITBOX_TEST_MIRROR=1.
func TestDebian(t *testing.T) {
	if os.Getenv("KITBOX_TEST_MIRROR") == "" {
		t.Skip("needs the machine's package mirror: set KITBOX_TEST_MIRROR=1")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := os.Getenv("KITBOX_TEST_HOME") // to keep the result
	if dir == "" {
		dir = t.TempDir()
	}
	images, err := layout.Open(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := platform.Create(t.Context(), images, platform.Options{Progress: func(l string) {
		if strings.HasPrefix(l, "warning") {
			t.Error(l)
		}
		t.Log(l)
	}}); err != nil {
		t.Fatal(err)
	}
	t.Logf("made in %v", time.Since(start))
	desc, err := images.Resolve(t.Context(), platform.Ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.Image(t.Context(), desc, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	layers, err := layer.Open(filepath.Join(dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	l := img.Layers()[0]
	start = time.Now()
	if err := layers.Unpack(t.Context(), l.DiffID, func() (io.ReadCloser, error) { return images.Fetch(t.Context(), l.Blob) }); err != nil {
		t.Fatal(err)
	}
	m, err := layers.Meta(l.DiffID)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("unpacked in %v: %+v", time.Since(start), m)
	inv, err := layers.Inventory(l.DiffID)
	if err != nil {
		t.Fatal(err)
	}
	for p, owner := range map[string]uint32{"home": 0, "home/agent": 1000, "home/agent/.bashrc": 1000} {
		if e, ok := inv.Find(p); !ok || e.UID != owner {
			t.Errorf("%s: %+v, %v", p, e, ok)
		}
	}
	for _, p := range []string{"etc/hostname", "etc/resolv.conf", "dev/null", "usr/share/man/man1/git.1.gz"} {
		if _, ok := inv.Find(p); ok {
			t.Errorf("%s is in the base", p)
		}
	}
}
