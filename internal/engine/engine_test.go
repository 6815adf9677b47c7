package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
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
