package engine

import (
	"context"
	"errors"
	"syscall"

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
	early, ready := unlessAsked(ctx, c.Signals)
	s, err := b.reach(early, !c.Workload)
	if err == nil {
		defer s.Close()
	}
	if err := errors.Join(err, ready()); err != nil {
		return nil, err
	}
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

// unlessAsked returns a context that the first signal ends which asks for an end:
// there is no command yet that it could go on to. It does so until ready is called,
// which returns the error of the context.
func unlessAsked(ctx context.Context, signals <-chan int) (inner context.Context, ready func() error) {
	inner, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case n, ok := <-signals: // nil: never
				if !ok {
					return
				}
				switch syscall.Signal(n) {
				case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP:
					cancel()
				}
			}
		}
	}()
	return inner, func() error {
		close(done)
		<-ended
		err := inner.Err()
		cancel()
		return err
	}
}
