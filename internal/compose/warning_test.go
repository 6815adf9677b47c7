package compose

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestSlipsAreWarnedOf(t *testing.T) {
	p := &plan.Plan{Workspace: "/home/me/src", Launch: plan.Launch{Dir: "/project", Owned: []string{"SANDBOX_NAME", "WORKSPACE_DIR"}}}
	p.Files = []plan.File{{Kit: "w", Path: "/project/.conf"}, {Kit: "w", Path: "/projects/x"}, {Kit: "w", Path: "/project/../etc/x"}}
	p.Egress.Rules = []plan.EgressRule{{Pattern: "api.example.com:443", Allow: true, Phase: plan.Install}, {Pattern: "*.wild.example", Allow: true}, {Pattern: "denied.example"}}
	for _, name := range []string{"api.example.com", "a.wild.example", "a.b.wild.example", "api.exmple.com", "wild.example", "denied.example", "other.test"} {
		p.Egress.Routes = append(p.Egress.Routes, plan.Route{Name: name})
	}
	want := []string{
		"route api.exmple.com: no Kit allows api.exmple.com, so it stays refused; did you mean api.example.com?",
		"route wild.example: no Kit allows wild.example, so it stays refused",
		"route denied.example: no Kit allows denied.example, so it stays refused",
		"route other.test: no Kit allows other.test, so it stays refused",
		"variable SANDBOX_NAME: the host sets it, so --env has no effect on it",
		"file /project/.conf of w: is written into the workspace, which is /home/me/src of this machine",
	}
	if got := Warnings(p, map[string]string{"SANDBOX_NAME": "x", "MINE": "y"}); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	p.Workspace, p.Egress.Rules = "", append(p.Egress.Rules, plan.EgressRule{Pattern: "**", Allow: true})
	if got := Warnings(p, nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
