package engine

import (
	"context"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// Run implements [sandbox.Sandbox].
func (b *box) Run(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
	return b.run(ctx, c, nil)
}

// run is Run; started is called once the command runs, unless it is nil.
func (b *box) run(ctx context.Context, c *sandbox.Cmd, started func()) (*sandbox.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	launch, err := b.attended().Launch()
	if err != nil {
		if err := b.broken(ctx); err != nil {
			return nil, err
		}
		return nil, err
	}
	// The workload waits for startup hooks however long they take; a command
	// comes in early rather than be shut out by a hook that hangs.
	s, err := b.reach(ctx, !c.Workload)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if !b.volatile {
		b.release() // from here on sessions keep it
	}
	return b.attended().Run(ctx, s, launch, c, started)
}

// broken explains a sandbox without a plan, and cleans it up unless somebody is
// just making it.
func (b *box) broken(ctx context.Context) error {
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "exec")
	if err != nil {
		return err
	}
	defer l.Unlock()
	return b.mend(ctx)
}
