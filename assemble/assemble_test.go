package assemble_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/kiterr"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestDeltaIsWhatTheRecipeStated(t *testing.T) {
	base := ocispec.ImageConfig{
		Env: []string{"PATH=/bin:/usr/bin", "A=1", "B=2"}, Labels: map[string]string{"k": "v", "m": "1"}, User: "root", WorkingDir: "/",
		Entrypoint: []string{"sh"}, ExposedPorts: map[string]struct{}{"1/tcp": {}},
	}
	result := ocispec.ImageConfig{
		Env: []string{"PATH=/opt/x:/usr/bin:/bin:/opt/x:/opt/y", "A=1", "B=3", "C=4", "NOVALUE"}, Labels: map[string]string{"k": "v", "m": "2", "n": ""}, User: "root",
		WorkingDir: "/w", Entrypoint: []string{"l"}, Cmd: []string{"c"}, ExposedPorts: map[string]struct{}{"1/tcp": {}, "2/udp": {}}, Volumes: map[string]struct{}{"/v": {}},
	}
	want := ocispec.ImageConfig{
		Env: []string{"PATH=/opt/x:/opt/y", "B=3", "C=4", "NOVALUE"}, Labels: map[string]string{"m": "2", "n": ""}, WorkingDir: "/w",
		Entrypoint: []string{"l"}, Cmd: []string{"c"}, ExposedPorts: map[string]struct{}{"2/udp": {}}, Volumes: map[string]struct{}{"/v": {}},
	}
	if got := assemble.Delta(base, result); !reflect.DeepEqual(got, want) {
		t.Errorf("Delta = %+v, want %+v", got, want)
	}
	base.Env[0], result.Env = "PATH=/usr/bin:/bin", []string{"PATH=/bin:/usr/bin"}
	if got := assemble.Delta(base, result); len(got.Env) > 0 {
		t.Errorf("another order of PATH is a delta: %q", got.Env)
	}
}

func TestConfig(t *testing.T) {
	w := assemble.Part{Kit: "w", Config: ocispec.ImageConfig{Env: []string{"PATH=/bin", "A=1"}, User: "agent", Labels: map[string]string{"k": "w"}}}
	m := assemble.Part{Kit: "m", Config: ocispec.ImageConfig{
		Env: []string{"PATH=/x:/bin:/x", "A=1", "M=1"}, User: "root", Entrypoint: []string{"m"}, Labels: map[string]string{"k": "m", "l": "m"}, Volumes: map[string]struct{}{"/v": {}},
	}}
	n := assemble.Part{Kit: "n", Config: ocispec.ImageConfig{Env: []string{"PATH=/y:/x"}, Labels: map[string]string{"l": "n"}}}
	got, err := assemble.Config(w, []assemble.Part{m, n})
	want := ocispec.ImageConfig{
		Env: []string{"PATH=/bin:/x:/y", "A=1", "M=1"}, User: "agent", Labels: map[string]string{"k": "w", "l": "m"}, Volumes: map[string]struct{}{"/v": {}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Config = %+v, %v; want %+v", got, err, want)
	}
	if w.Config.Env[0] != "PATH=/bin" || len(w.Config.Labels) != 1 {
		t.Error("Config changed its input")
	}
	n.Config.Env = []string{"M=secret"}
	_, err = assemble.Config(w, []assemble.Part{m, n})
	var ce *assemble.EnvConflictError
	if !errors.As(err, &ce) || ce.Variable != "M" || ce.Kits != [2]string{"m", "n"} || !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a conflict gives %v", err)
	}
}

func TestCollisions(t *testing.T) {
	got := assemble.Collisions([]assemble.Inventory{
		{Kit: "a", Files: []assemble.File{{Path: "etc/x"}, {Path: "etc/x"}, {Path: "etc/"}, {Path: "same", Digest: "1"}, {Path: "both", Digest: "0"}, {Path: "both", Digest: "1"}}},
		{Kit: "b", Files: []assemble.File{{Path: "/etc/./x"}, {Path: "etc/"}, {Path: "same", Digest: "1"}, {Path: "both", Digest: "1"}}},
		{Kit: "c", Files: []assemble.File{{Path: "same", Digest: "2"}}},
	})
	want := []assemble.Collision{{Path: "/etc/x", Kits: []string{"a", "b"}}, {Path: "/same", Kits: []string{"a", "b", "c"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Collisions = %+v, want %+v", got, want)
	}
}

func TestOverlayHome(t *testing.T) {
	if got := assemble.OverlayHome(map[string]int{"/home": 0, "home/agent/": 1000, "/opt": 5}); len(got) > 0 {
		t.Errorf("the platform's layout: %q", got)
	}
	if got := assemble.OverlayHome(map[string]int{"/home/": 1000, "/home/agent": 0}); !slices.Equal(got, []string{"/home", "/home/agent"}) {
		t.Errorf("another owner: %q", got)
	}
}
