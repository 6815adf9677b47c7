package attend

import (
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
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
