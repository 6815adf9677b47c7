package layer_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// inMountNamespace runs f in a process of its own with a private mount
// namespace, so that every mount f makes ends with it, killed or not.
func inMountNamespace(t *testing.T, f func(t *testing.T)) { inNamespaces(t, 0, f) }

// inUserNamespace does so in a user namespace too, where root is another user
// outside, as a rootless kitbox runs.
func inUserNamespace(t *testing.T, f func(t *testing.T)) { inNamespaces(t, syscall.CLONE_NEWUSER, f) }

func inNamespaces(t *testing.T, flags uintptr, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv("LAYER_TEST_INSIDE") == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		f(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), "LAYER_TEST_INSIDE="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | flags, Pdeathsig: syscall.SIGKILL}
	if flags&syscall.CLONE_NEWUSER != 0 {
		// Everything inside belongs to the range outside; /tmp is for all.
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1879048192, Size: 65536}}
		cmd.SysProcAttr.GidMappings = cmd.SysProcAttr.UidMappings
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 0, Gid: 0}
		if exe, err := os.Executable(); err == nil {
			cmd.Path = readableCopy(t, exe)
		}
		cmd.Env = append(cmd.Env, "TMPDIR=/tmp", "HOME=/tmp")
		cmd.Dir = "/"
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("inside: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("inside: %s", out)
	case !strings.Contains(string(out), "--- PASS"):
		t.Fatalf("nothing ran inside:\n%s", out)
	}
}

// readableCopy puts the test binary where another user can run it.
func readableCopy(t *testing.T, exe string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "layertest-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(p, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	return p
}

// mountOverlay overlays dirs, lowest first, read-only, by the interface that
// takes one directory at a time and so has no limit on their names.
func mountOverlay(t *testing.T, dirs []string, options ...string) string {
	t.Helper()
	at := t.TempDir()
	if err := overlay(at, dirs, options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

func overlay(at string, dirs []string, options ...string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range options {
		if err := unix.FsconfigSetFlag(fd, o); err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
	}
	if len(dirs) == 1 { // without an upper directory overlayfs wants two
		empty := filepath.Join(filepath.Dir(at), "empty")
		if err := os.MkdirAll(empty, 0o755); err != nil {
			return err
		}
		dirs = append([]string{empty}, dirs...)
	}
	for _, d := range slices.Backward(dirs) {
		if err := unix.FsconfigSetString(fd, "lowerdir+", d); err != nil {
			return fmt.Errorf("lowerdir+ %s: %w", d, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("creating the overlay: %w", err)
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(m)
	return unix.MoveMount(m, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// tree describes what is at root: path → type, mode, owner and content.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("%v %o %d:%d", d.Type(), st.Mode&0o7777, st.Uid, st.Gid)
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(data)
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			text += " → " + to
		}
		out[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func has(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%s is %q, want %q", p, got[p], w)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[p]; !ok {
			t.Errorf("%s should not be there (%s)", p, got[p])
		}
	}
}

// whiteoutLayers is a composition that deletes in every way there is.
func whiteoutLayers(t *testing.T, s *layer.Store) []digest.Digest {
	return []digest.Digest{
		unpack(t, s, makeTar(t,
			tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
			dir("etc", 0o755, 0), file("etc/keep"), file("etc/gone"),
			dir("opaque", 0o755, 0), file("opaque/old"),
			dir("rebuilt", 0o755, 0), file("rebuilt/old"),
			dir("whole", 0o755, 0), file("whole/a"), file("whole/b"),
		)),
		unpack(t, s, makeTar(t,
			file("etc/.wh.gone"),
			dir("opaque", 0o700, 1), file("opaque/.wh..wh..opq"), file("opaque/new"),
			dir("rebuilt", 0o755, 2), file("rebuilt/new"), file(".wh.rebuilt"),
			file(".wh.whole"), file(".wh..wh.plnk"),
		)),
	}
}

var whiteoutTree = map[string]string{
	".": "d--------- 755 0:0", "etc": "d--------- 755 0:0", "etc/keep": "---------- 644 0:0 content of etc/keep",
	"opaque": "d--------- 700 1:1", "opaque/new": "---------- 644 0:0 content of opaque/new",
	"rebuilt": "d--------- 755 2:2", "rebuilt/new": "---------- 644 0:0 content of rebuilt/new",
}

// whiteoutsHold mounts the composed layers with options and looks at what is there.
func whiteoutsHold(t *testing.T, options ...string) {
	t.Helper()
	s := open(t)
	dirs, err := s.Compose(t.Context(), whiteoutLayers(t, s))
	if err != nil {
		t.Fatal(err)
	}
	has(t, tree(t, mountOverlay(t, dirs, options...)), whiteoutTree)
}

func TestWhiteoutsHoldInARootMount(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) { whiteoutsHold(t) })
}

func TestWhiteoutsHoldInAUserNamespaceMount(t *testing.T) {
	needRoot(t)
	inUserNamespace(t, func(t *testing.T) { whiteoutsHold(t, "userxattr") })
}

// Layers that root unpacked are read by a mount made in a user namespace.
func TestRootsLayersAreReadableWithUserXattr(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) { whiteoutsHold(t, "userxattr") })
}

func TestImpliedDirectoriesKeepTheBasesOwnerAndMode(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		s := open(t)
		base := unpack(t, s, makeTar(t,
			tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o751},
			dir("home", 0o755, 0), dir("home/agent", 0o700, 1000), file("home/agent/.bashrc"),
			dir("srv", 0o2775, 33), dir("tmp", 0o1777, 0),
		))
		// States home with another mode and nothing below it.
		middle := unpack(t, s, makeTar(t, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o751}, dir("home", 0o711, 0)))
		kit := unpack(t, s, makeTar(t, file("home/agent/.tool/conf"), file("tmp/x"), file("srv/a/b/c"), file("opt/new/y")))
		another := unpack(t, s, makeTar(t, file("home/agent/.other"), dir("srv", 0o750, 34), file("srv/z")))

		dirs, err := s.Compose(t.Context(), []digest.Digest{base, middle, kit, another})
		if err != nil {
			t.Fatal(err)
		}
		got := tree(t, mountOverlay(t, dirs))
		for p, want := range map[string]string{
			".":                "d--------- 751 0:0",
			"home":             "d--------- 711 0:0",       // middle's, although the skeleton has it
			"home/agent":       "d--------- 700 1000:1000", // base's, although two layers imply it
			"home/agent/.tool": "d--------- 755 0:0",       // nobody states it
			"tmp":              "d--------- 1777 0:0",
			"srv":              "d--------- 750 34:34", // another's own statement
			"srv/a":            "d--------- 755 0:0",
			"opt/new":          "d--------- 755 0:0",
		} {
			if got[p] != want {
				t.Errorf("%s is %q, want %q", p, got[p], want)
			}
		}
		for _, p := range []string{"home/agent/.bashrc", "home/agent/.tool/conf", "home/agent/.other", "srv/a/b/c", "srv/z"} {
			if got[p] == "" {
				t.Errorf("%s is missing", p)
			}
		}
		// The skeleton is made once and holds no file.
		again, err := s.Compose(t.Context(), []digest.Digest{base, middle, kit, another})
		if err != nil || !slices.Equal(dirs, again) {
			t.Errorf("second Compose = %q, %v", again, err)
		}
		for p, what := range tree(t, dirs[len(dirs)-1]) {
			if !strings.HasPrefix(what, "d") {
				t.Errorf("the skeleton holds %s: %s", p, what)
			}
		}
	})
}

func TestADeletedDirectoryComesBackFresh(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		s := open(t)
		root := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
		dirs, err := s.Compose(t.Context(), []digest.Digest{
			unpack(t, s, makeTar(t, root, dir("data", 0o700, 5), file("data/old"))),
			unpack(t, s, makeTar(t, root, file(".wh.data"))),
			unpack(t, s, makeTar(t, root, file("data/new"))),
		})
		if err != nil {
			t.Fatal(err)
		}
		has(t, tree(t, mountOverlay(t, dirs)), map[string]string{
			".": "d--------- 755 0:0", "data": "d--------- 755 0:0", "data/new": "---------- 644 0:0 content of data/new",
		})
	})
}

func TestComposeRepeatsAndDropsLayersAsOverlayfsNeeds(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		s := open(t)
		root := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
		with := func(name, content string) tar.Header {
			return tar.Header{Name: name, PAXRecords: map[string]string{"TEST.content": content}}
		}
		a := unpack(t, s, makeTar(t, root, with("f", "a")))
		b := unpack(t, s, makeTar(t, root, with("f", "b"), with("g", "b")))
		dirs, err := s.Compose(t.Context(), []digest.Digest{a, b, a})
		if err != nil {
			t.Fatal(err)
		}
		has(t, tree(t, mountOverlay(t, dirs)), map[string]string{".": "d--------- 755 0:0", "f": "---------- 644 0:0 a", "g": "---------- 644 0:0 b"})

		wipe := unpack(t, s, makeTar(t, root, file(".wh..wh..opq"), with("h", "c")))
		dirs, err = s.Compose(t.Context(), []digest.Digest{a, b, wipe})
		if err != nil {
			t.Fatal(err)
		}
		has(t, tree(t, mountOverlay(t, dirs)), map[string]string{".": "d--------- 755 0:0", "h": "---------- 644 0:0 c"})
	})
}

// A tar that does not state the directories it uses means those that are there,
// through symlinks too.
func TestFilesBelowASymlinkOfTheBaseGoWhereItLeads(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		s := open(t)
		root := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
		base := unpack(t, s, makeTar(t, root,
			dir("usr", 0o755, 0), dir("usr/lib", 0o2755, 5), file("usr/lib/libc.so"), file("usr/lib/old.so"),
			link("lib", "usr/lib"), link("lib64", "/lib"), link("srv", "var/srv"), dir("var", 0o755, 0),
		))
		app := unpack(t, s, makeTar(t, root,
			file("lib/tool.so"), dir("lib/sub", 0o700, 9), file("lib/sub/x"), file("lib/sub/deep/y"), file("lib/.wh.old.so"),
			file("lib64/more.so"), file("srv/www/page"), file("etc/conf"),
		))
		fix := unpack(t, s, makeTar(t, root, file("usr/lib/new.so"))) // another layer implies the real path
		dirs, err := s.Compose(t.Context(), []digest.Digest{base, app, fix})
		if err != nil {
			t.Fatal(err)
		}
		has(t, tree(t, mountOverlay(t, dirs)), map[string]string{
			".": "d--------- 755 0:0", "usr": "d--------- 755 0:0", "var": "d--------- 755 0:0", "etc": "d--------- 755 0:0",
			"usr/lib": "d--------- 2755 5:5", "usr/lib/libc.so": "---------- 644 0:0 content of usr/lib/libc.so",
			"usr/lib/tool.so": "---------- 644 0:0 content of lib/tool.so", "usr/lib/more.so": "---------- 644 0:0 content of lib64/more.so",
			"usr/lib/new.so": "---------- 644 0:0 content of usr/lib/new.so",
			"usr/lib/sub":    "d--------- 700 9:9", "usr/lib/sub/x": "---------- 644 0:0 content of lib/sub/x",
			"usr/lib/sub/deep": "d--------- 755 0:0", "usr/lib/sub/deep/y": "---------- 644 0:0 content of lib/sub/deep/y",
			"lib": "L--------- 777 0:0 → usr/lib", "lib64": "L--------- 777 0:0 → /lib", "srv": "L--------- 777 0:0 → var/srv",
			"var/srv": "d--------- 755 0:0", "var/srv/www": "d--------- 755 0:0", "var/srv/www/page": "---------- 644 0:0 content of srv/www/page",
			"etc/conf": "---------- 644 0:0 content of etc/conf",
		})
		again, err := s.Compose(t.Context(), []digest.Digest{base, app, fix})
		if err != nil || !slices.Equal(again, dirs) {
			t.Errorf("again: %q, %v", again, err)
		}
		a, err1 := os.Stat(filepath.Join(s.Dir(app), "lib/tool.so"))
		b, err2 := os.Stat(filepath.Join(dirs[1], "usr/lib/tool.so"))
		if err1 != nil || err2 != nil || !os.SameFile(a, b) {
			t.Errorf("content was copied: %v, %v", err1, err2)
		}
	})
}

func TestALayerCannotLeadTheNextOneAstray(t *testing.T) {
	needRoot(t)
	s := open(t)
	outside := t.TempDir()
	root := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
	loop := unpack(t, s, makeTar(t, root, link("a", "b"), link("b", "a"), file("c")))
	if _, err := s.Compose(t.Context(), []digest.Digest{loop, unpack(t, s, makeTar(t, root, file("a/x")))}); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a loop: %v", err)
	}
	if _, err := s.Compose(t.Context(), []digest.Digest{loop, unpack(t, s, makeTar(t, root, file("c/x")))}); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "files below /c") {
		t.Errorf("below a file: %v", err)
	}
	out := unpack(t, s, makeTar(t, root, link("a", outside), link("up", "../../../../../../..")))
	dirs, err := s.Compose(t.Context(), []digest.Digest{out, unpack(t, s, makeTar(t, root, file("a/x"), file("up/y")))})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{filepath.Join(outside, "x"), "y"} {
		if _, err := os.Lstat(filepath.Join(dirs[1], p)); err != nil {
			t.Error(err)
		}
	}
	if es, _ := os.ReadDir(outside); len(es) > 0 {
		t.Errorf("outside holds %v", es)
	}
}

func TestComposeNamesAMissingLayer(t *testing.T) {
	s := open(t)
	if _, err := s.Compose(t.Context(), []digest.Digest{digest.FromString("x")}); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Compose = %v", err)
	}
	if _, err := s.Compose(t.Context(), nil); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("Compose of nothing = %v", err)
	}
}

func TestManyLayersMount(t *testing.T) {
	needRoot(t)
	inMountNamespace(t, func(t *testing.T) {
		s := open(t)
		root := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}
		ids := []digest.Digest{unpack(t, s, makeTar(t, root, dir("home", 0o700, 7)))}
		for i := range layer.MaxLayers - 1 {
			ids = append(ids, unpack(t, s, makeTar(t, root, file(fmt.Sprint("home/f", i)))))
		}
		dirs, err := s.Compose(t.Context(), ids)
		if err != nil {
			t.Fatal(err)
		}
		if len(dirs) != layer.MaxLayers+1 {
			t.Errorf("%d directories, want the layers and a skeleton", len(dirs))
		}
		got := tree(t, mountOverlay(t, dirs))
		if len(got) != layer.MaxLayers+1 || got["home"] != "d--------- 700 7:7" {
			t.Errorf("%d paths, home is %q", len(got), got["home"])
		}
		ids = append(ids, unpack(t, s, makeTar(t, root, file("one-more"))))
		if _, err := s.Compose(t.Context(), ids); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Compose of %d layers = %v", len(ids), err)
		}
	})
}

// BenchmarkComposeTen is the composition of ten Kits, each with a layer whose
// tar leaves its parent directories out, over a base of many files.
func BenchmarkComposeTen(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: layers keep their owners")
	}
	s, err := layer.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	t := &testing.T{}
	entries := []tar.Header{{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, dir("home", 0o755, 0), dir("home/agent", 0o700, 1000), dir("usr", 0o755, 0)}
	for i := range 8000 {
		entries = append(entries, file(fmt.Sprint("usr/f", i)))
	}
	var ids []digest.Digest
	add := func(data []byte) {
		id := digest.FromBytes(data)
		if err := s.Unpack(b.Context(), id, opener(data)); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
	}
	add(makeTar(t, entries...))
	for k := range 10 {
		var es []tar.Header
		for i := range 20 {
			es = append(es, file(fmt.Sprintf("home/agent/kit%d/f%d", k, i)))
		}
		add(makeTar(t, es...))
	}
	b.ResetTimer()
	for b.Loop() {
		if _, err := s.Compose(b.Context(), ids); err != nil {
			b.Fatal(err)
		}
	}
}
