package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// OpenKeeper makes the keeper of the sandbox whose state directory is dir, in
// the process that is to be it.
func (e *Engine) OpenKeeper(dir string) (*keeper.Keeper, error) {
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(names, func(n string) bool {
		sb, err := e.state.Sandbox(n)
		return err == nil && sb.Dir() == dir
	})
	if at < 0 {
		return nil, fmt.Errorf("%s is not the directory of a sandbox: %w", dir, kiterr.ErrNotFound)
	}
	sb, err := e.state.Sandbox(names[at])
	if err != nil {
		return nil, err
	}
	b := &box{e: e, sb: sb}
	p, err := b.plan()
	if err != nil {
		return nil, err
	}
	var decisions atomic.Pointer[audit.Log] // of the boundary that was attached last
	k := keeper.New(p)
	k.Dir, k.Driver = dir, e.c.Driver
	k.Guest = keeper.NewGuest(e.c.Driver, p)
	k.Rules = func() ([]plan.EgressRule, error) { return b.rules(p) }
	k.Prepare = e.c.Prepare
	k.Attach = func(ctx context.Context, ns *os.File, phase plan.Phase) (keeper.Boundary, error) {
		rules, err := k.Rules()
		if err != nil {
			return nil, err
		}
		log, err := audit.Open(sb.Path(policyFile))
		if err != nil {
			return nil, durable.Explain(sb.Path(policyFile), err)
		}
		decisions.Store(log)
		bd, err := e.c.Attach(ctx, ns, p, rules, phase, log, dir)
		if err != nil {
			return nil, errors.Join(err, log.Close())
		}
		return loggedBoundary{bd, log}, nil
	}
	k.Unlogged = func() error {
		if log := decisions.Load(); log != nil {
			return durable.Explain(sb.Path(policyFile), log.Failing())
		}
		return nil
	}
	k.Refused = func(ctx context.Context) []sandbox.PolicyEvent {
		if log := decisions.Load(); log != nil {
			log.Flush()
		}
		return b.refused(ctx)
	}
	k.Remove = func(ctx context.Context, keep bool) error { return e.forget(ctx, sb, p, keep) }
	return k, nil
}

// loggedBoundary is a boundary whose log is complete once it is closed.
type loggedBoundary struct {
	keeper.Boundary
	log *audit.Log
}

func (b loggedBoundary) Close() error {
	return errors.Join(b.Boundary.Close(), b.log.Close())
}
