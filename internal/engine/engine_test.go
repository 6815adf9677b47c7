package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

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
