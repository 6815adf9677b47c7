package compose

import (
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/sandbox"
)

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
		name := Name(sandbox.CreateOptions{Kits: []string{ref}})
		if !strings.HasPrefix(name, prefix) || state.ValidName(name) != nil || hostname(name) != name {
			t.Errorf("%s: %s, want %s…", ref, name, prefix)
		}
	}
	if Name(sandbox.CreateOptions{Name: "n", Kits: []string{"x"}}) != "n" {
		t.Error("the name that is asked for is not used")
	}
	for name, want := range map[string]string{"a.b_C": "a-b-c", "...": "sandbox"} {
		if got := hostname(name); got != want {
			t.Errorf("hostname(%q) = %q, want %q", name, got, want)
		}
	}
}
