package workspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// listen has a socket at the path p, whose directories are made.
func listen(t *testing.T, p string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(p)) // the whole path may be longer than that of a socket can be
	l, err := net.Listen("unix", filepath.Base(p))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// judged is what is said to dir as a workspace and as a mount.
func judged(h Host, dir string) [2]error {
	_, w := h.Judge(context.Background(), sandbox.CreateOptions{Workspace: dir}, "id")
	_, m := h.Judge(context.Background(), sandbox.CreateOptions{Mounts: []sandbox.Mount{{Source: dir, Path: "/x", ReadOnly: true}}}, "id")
	return [2]error{w, m}
}

func TestSocketsOfEnginesAreFoundByTheirNames(t *testing.T) {
	for _, c := range []struct {
		at      string
		refused bool
	}{
		{"docker.sock", true}, {"podman.sock", true}, {"containerd.sock", true}, {"crio.sock", true}, {"buildkitd.sock", true},
		{"run/docker.sock", true}, {".hidden/podman.sock", true},
		{"a/b/docker.sock", false}, {"mine.sock", false},
	} {
		h, dir := host(t)
		listen(t, filepath.Join(dir, c.at))
		for _, err := range judged(h, dir) {
			if c.refused && (!errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), filepath.Join(dir, c.at))) || !c.refused && err != nil {
				t.Errorf("%s: %v", c.at, err)
			}
		}
	}
}

func TestWhatOnlyHasTheNameOfASocketIsGiven(t *testing.T) {
	h, dir := host(t)
	beside, _ := host(t)
	listen(t, filepath.Join(filepath.Dir(beside.Home), "docker.sock"))
	if err := os.WriteFile(filepath.Join(dir, "podman.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(filepath.Dir(beside.Home), "docker.sock"), filepath.Join(dir, "docker.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(beside.Home), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, err := range judged(h, dir) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestSocketsOfTheUsersEnginesAreFoundAtAnyDepth(t *testing.T) {
	for _, at := range []string{"me/.docker/run/docker.sock", "me/.docker/desktop/docker.sock", "rt/podman/podman.sock", "rt/bus"} {
		h, dir := host(t)
		t.Setenv("HOME", filepath.Join(dir, "deep", "me"))
		t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "deep", "rt"))
		listen(t, filepath.Join(dir, "deep", at))
		for _, err := range judged(h, dir) {
			if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), at) {
				t.Errorf("%s: %v", at, err)
			}
		}
	}
}

func TestADirectoryIsLookedThroughWithinABound(t *testing.T) {
	h, dir := host(t)
	for i := range lookedThrough + 300 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range judged(h, dir) {
		if err != nil {
			t.Error(err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	below, err := d.Readdirnames(lookedThrough)
	if err != nil {
		t.Fatal(err)
	}
	listen(t, filepath.Join(dir, below[len(below)-1], "crio.sock"))
	for _, err := range judged(h, dir) {
		if !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("one among the first %d: %v", lookedThrough, err)
		}
	}
}
