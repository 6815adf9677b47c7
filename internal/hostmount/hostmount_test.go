package hostmount

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestADirectoryIsMadeOnceAndGoesWhenNobodyUsesIt(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "mounts")}
	var using map[string][]string
	users := func() (map[string][]string, error) { return using, nil }
	if list, err := s.List(users); err != nil || len(list) != 0 {
		t.Fatalf("%v, %v", list, err)
	}
	handle, dir := s.Place("repository hub.example/kit", "/cache")
	p := &plan.Plan{Launch: plan.Launch{User: plan.Identity{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}},
		HostMounts: []plan.HostMount{{Handle: handle, Identity: "repository hub.example/kit", Path: "/cache", Source: dir}}}
	if err := s.Prepare(p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(p); err != nil {
		t.Fatal(err)
	}
	f, err := s.Open(handle, "kept")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Open(handle, "out"); err == nil {
		t.Errorf("a link led out: %v", f.Close())
	}
	using = map[string][]string{dir: {"b", "a"}}
	if list, err := s.List(users); err != nil || len(list) != 1 || list[0].Path != "/cache" || len(list[0].Sandboxes) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.Remove(handle, users); err == nil || !strings.Contains(err.Error(), "used by a, b") {
		t.Errorf("removing what is used: %v", err)
	}
	using = nil
	if err := s.Remove(handle, users); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(handle, users); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
}
