package engine

import (
	"context"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/oversight"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// globalRules is the book of the rules for every sandbox.
func (e *Engine) globalRules() string { return filepath.Join(e.c.Home, "policy.json") }

// overseen finds a sandbox for the operator's rules.
func (e *Engine) overseen(name string) (oversight.Subject, error) {
	b, err := e.openName(name)
	if err != nil {
		return nil, err
	}
	return subject{b}, nil
}

// names lists the sandboxes. The home is open.
func (e *Engine) names() ([]string, error) { return e.state.List() }

// A subject is a box as the operator's rules see it.
type subject struct{ b *box }

func (s subject) Plan() (*plan.Plan, error) { return s.b.plan() }

// Logins implements [oversight.Subject].
func (s subject) Logins(p *plan.Plan, host string, port uint16) ([]string, error) {
	if s.b.e.c.Logins == nil || len(p.DockerAuth) == 0 {
		return nil, nil
	}
	return s.b.e.c.Logins(p, s.b.sb.Dir(), host, port)
}
func (s subject) Book() string { return s.b.sb.Path(rulesFile) }

// Reload implements [oversight.Subject]. A keeper that hangs is told from one that is
// busy.
func (s subject) Reload(ctx context.Context) error {
	return s.b.attended().Answering(ctx, s.b.keeper().Reload)
}

// rules is everything that p's sandbox is judged by, as it is recorded now.
func (b *box) rules(p *plan.Plan) ([]plan.EgressRule, error) {
	return oversight.Of(p, b.e.globalRules(), b.sb.Path(rulesFile))
}
