package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestLaunchFollowsTheFormat(t *testing.T) {
	for _, c := range []struct {
		what     string
		l        plan.Launch
		args     []string
		terminal bool
		want     string
	}{
		{"headless is entrypoint and command", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, nil, false, "e c"},
		{"args are appended", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, []string{"a"}, false, "e c a"},
		{"a terminal alone changes nothing", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}}, nil, true, "e c"},
		{"a stated tail replaces the command", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, Interactive: []string{"t"}, InteractiveStated: true}, nil, true, "e t"},
		{"a stated empty tail is the entrypoint alone", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, InteractiveStated: true}, []string{"a"}, true, "e a"},
		{"a tail is nothing without a terminal", plan.Launch{Argv: []string{"e", "c"}, Entrypoint: []string{"e"}, Interactive: []string{"t"}, InteractiveStated: true}, nil, false, "e c"},
		{"bash", plan.Launch{Argv: []string{"e", "c"}, Bash: true}, []string{"a b"}, false, `/bin/bash -c exec "$@" bash e c a b`},
	} {
		before := strings.Join(c.l.Argv, " ")
		if got := strings.Join(launchArgs(c.l, c.args, c.terminal), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if strings.Join(c.l.Argv, " ") != before {
			t.Errorf("%s: the plan was changed", c.what)
		}
	}
}

func TestCommandEnvIsTheContainersAndWhatTheCallerMaySet(t *testing.T) {
	l := plan.Launch{Env: []string{"A=1", "HOME=/home/agent", "SANDBOX_NAME=t"}, Owned: []string{"SANDBOX_NAME", "WORKSPACE_DIR"}, User: plan.Identity{UID: 1000, Home: "/home/agent"}}
	got := commandEnv(l, l.User, []string{"A=2", "SANDBOX_NAME=forged", "WORKSPACE_DIR=/x", "B="})
	if s := strings.Join(got, " "); s != "A=2 HOME=/home/agent SANDBOX_NAME=t B=" {
		t.Errorf("env: %s", s)
	}
	if got := commandEnv(l, plan.Identity{Home: "/root"}, nil); !slices.Contains(got, "HOME=/root") {
		t.Errorf("another user's home: %v", got)
	}
	l.Env[1] = "HOME=/chosen"
	if got := commandEnv(l, plan.Identity{Home: "/root"}, nil); !slices.Contains(got, "HOME=/chosen") {
		t.Errorf("a home that the image states: %v", got)
	}
	if strings.Join(l.Env, " ") != "A=1 HOME=/chosen SANDBOX_NAME=t" {
		t.Errorf("the plan was changed: %v", l.Env)
	}
}

func TestTheContainerEnvironmentIsLaidOverInOrder(t *testing.T) {
	config := ocispec.ImageConfig{Env: []string{"A=image", "B=image", "C=image", "PATH=/p"}}
	kits := []loadedKit{{exports: map[string]string{"B": "arg", "C": "arg"}}}
	env := containerEnv(config, plan.Identity{Home: "/home/agent"}, kits, map[string]string{"C": ""})
	for name, want := range map[string]string{"A": "image", "B": "arg", "C": "", "PATH": "/p", "HOME": "/home/agent"} {
		if got, ok := env[name]; !ok || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, ok, want)
		}
	}
	if env := containerEnv(ocispec.ImageConfig{}, plan.Identity{}, nil, nil); env["PATH"] != defaultPath || env["HOME"] != "/" {
		t.Errorf("of an image that states nothing: %v", env)
	}
}

func TestNamesAreMadeUpFromTheWorkload(t *testing.T) {
	for ref, prefix := range map[string]string{
		"./examples/hello": "hello-", "./examples/hello/": "hello-", "registry.example:5000/a/My_Kit:1.2": "my-kit-",
		"x@sha256:" + strings.Repeat("0", 64): "x-", "./a.yaml": "a-", ".": "sandbox-", "/": "sandbox-",
		strings.Repeat("long", 30): strings.Repeat("long", 10) + "-",
	} {
		name := nameOf(sandbox.CreateOptions{Kits: []string{ref}})
		if !strings.HasPrefix(name, prefix) || state.ValidName(name) != nil || hostname(name) != name {
			t.Errorf("%s: %s, want %s…", ref, name, prefix)
		}
	}
	if nameOf(sandbox.CreateOptions{Name: "n", Kits: []string{"x"}}) != "n" {
		t.Error("the name that is asked for is not used")
	}
	for name, want := range map[string]string{"a.b_C": "a-b-c", "...": "sandbox"} {
		if got := hostname(name); got != want {
			t.Errorf("hostname(%q) = %q, want %q", name, got, want)
		}
	}
}

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
			t.Skipf("extended attributes do not work in %s: %v", dir, err)
		}
	}
	r := rootfs{low, mid, top}
	for name, want := range map[string]string{
		"/etc/passwd": "mid", "etc/only-low": "low", "/bin/tool": "low", "/abs": "mid", "/usr/up": "low", "/../../etc/passwd": "mid",
		"/opt/dir/y": "top", "/opt/dir/x": "", "/gone": "", "/missing": "", "/outside/low/etc/passwd": "",
	} {
		if got, err := r.text(name); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	if _, _, err := r.find("/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("/loop: %v", err)
	}
	if _, _, err := r.find("/etc/passwd/x"); !errors.Is(err, unix.ENOTDIR) {
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
	r := rootfs{dir}
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
		if err := r.executable(c.name, c.id); (err == nil) != c.ok {
			t.Errorf("%s for %d: %v", c.name, c.id.UID, err)
		}
	}
}

func TestAHomeThatIsNotThereListsNothing(t *testing.T) {
	home := filepath.Join(t.TempDir(), "none")
	e := New(Config{Home: home})
	if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := e.Open(t.Context(), "x"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Open = %v", err)
	}
	if ims, err := e.Images(t.Context()); err != nil || len(ims) != 0 {
		t.Errorf("Images = %v, %v", ims, err)
	}
	if _, err := os.Stat(home); err == nil {
		t.Error("looking made a home")
	}
}
