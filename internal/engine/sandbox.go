package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// keeperBound is how long a keeper may take beyond the grace it was told.
const keeperBound = 30 * time.Second

// Start implements [sandbox.Sandbox].
func (b *box) Start(ctx context.Context) error {
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "start")
	if err != nil {
		return err
	}
	defer l.Unlock()
	err = b.start(ctx, nil)
	b.wants(err == nil || startedAnyway(err))
	return err
}

// wants records whether whoever has this handle wants the sandbox up.
func (b *box) wants(up bool) {
	b.mu.Lock()
	b.started = up
	b.mu.Unlock()
}

func (b *box) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

// start brings up a keeper, unless one is there, and through it the machine.
// The caller holds the lock.
func (b *box) start(ctx context.Context, progress func(sandbox.Event)) error {
	if err := b.mend(ctx); err != nil {
		return err
	}
	return b.attended().Start(ctx, b.spawn, progress)
}

// mend cleans up after a creation that was interrupted, which is an error for
// whoever wanted to use the sandbox. The caller holds the lock.
func (b *box) mend(ctx context.Context) error {
	es, err := journal.Read(b.sb.Dir())
	if err != nil {
		return err
	}
	over := journal.Abandoned(es)
	if journal.Whole(es) {
		return b.goOn(ctx, es)
	}
	if _, err := b.keeper().Status(ctx); !errors.Is(err, link.ErrNone) {
		return err // a keeper goes on with it, or does not answer
	}
	if err := b.discard(ctx, true); err != nil {
		return fmt.Errorf("sandbox %s: cleaning up after an interrupted command: %w", b.sb.Name, err)
	}
	if over {
		return fmt.Errorf("sandbox %s: the command it was made for is gone, and so is the sandbox now: %w", b.sb.Name, kiterr.ErrNotFound)
	}
	return fmt.Errorf("sandbox %s: its creation was interrupted and is cleaned up now; create it again: %w", b.sb.Name, kiterr.ErrNotFound)
}

// goOn finishes a recreation that was cut short, or forgets one that had not
// begun to change anything.
func (b *box) goOn(ctx context.Context, es []journal.Entry) error {
	if _, err := os.Stat(b.sb.Path(nextFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := b.keeper().Status(ctx); !errors.Is(err, link.ErrNone) {
		return err
	}
	begun := false
	for _, e := range es {
		switch e.Phase {
		case journal.Recreating:
			begun = true
		case journal.Booting:
			begun = false
		}
	}
	if !begun {
		return durable.Explain(b.sb.Path(nextFile), os.Remove(b.sb.Path(nextFile)))
	}
	return b.replace(ctx)
}

// Stop implements [sandbox.Sandbox].
func (b *box) Stop(ctx context.Context, o sandbox.StopOptions) error {
	b.wants(false)
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	defer l.Unlock()
	grace := attend.Grace(o)
	err = b.askToStop(ctx, link.StopRequest{Grace: grace, IfIdle: o.IfIdle})
	if !errors.Is(err, link.ErrNone) {
		return err
	}
	// Nobody keeps it: the machine may run nevertheless.
	if err := b.mend(ctx); err != nil {
		return err
	}
	p, err := b.plan()
	if err != nil {
		return err
	}
	if o.IfIdle {
		return b.keepOn(ctx, p)
	}
	if err := b.e.c.Driver.Stop(ctx, p.Machine.ID, grace); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		return fmt.Errorf("stopping sandbox %s: %w", b.sb.Name, err)
	}
	es, err := journal.Read(b.sb.Dir())
	if err != nil || journal.Last(es) == journal.Stopped {
		return err
	}
	return journal.Writer{Dir: b.sb.Dir()}.Append(journal.Stopped, "its keeper had died")
}

// keepOn gives a machine without a keeper a new one. Who was about to use it is known
// to nobody, since that died with the keeper before, so it is not idle: the new one
// counts the time from now on, or from the end of what the guest says is under way.
func (b *box) keepOn(ctx context.Context, p *plan.Plan) error {
	machines, err := b.e.machines(ctx)
	if err != nil || !machines[p.Machine.ID].Running {
		return err
	}
	if err := b.start(ctx, nil); err != nil && !startedAnyway(err) {
		return err
	}
	return nil
}

// askToStop asks the keeper and ends one that does not answer. [link.ErrNone]
// means that none is left and the rest is up to the caller.
func (b *box) askToStop(ctx context.Context, r link.StopRequest) error {
	err := b.attended().Stop(ctx, r)
	switch {
	case err == nil, errors.Is(err, link.ErrNone), ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		if err := b.keeper().Kill(ctx); err != nil {
			return err
		}
		return link.ErrNone
	}
	return err
}

// Remove implements [sandbox.Sandbox].
func (b *box) Remove(ctx context.Context) error {
	b.wants(false)
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "rm")
	if err != nil {
		return err
	}
	defer l.Unlock()
	err = b.askToStop(ctx, link.StopRequest{Remove: true})
	b.release()
	if err != nil && !errors.Is(err, link.ErrNone) {
		return err
	}
	// The keeper has done all of it as a rule; this finds what is left.
	return b.discard(ctx, true)
}

// release gives up what the creator holds.
func (b *box) release() {
	b.mu.Lock()
	creator := b.creator
	b.creator = nil
	b.mu.Unlock()
	if creator != nil {
		creator.Release()
	}
}

// reach opens a session with the guest, mending on the way what a killed
// command or keeper left. A sandbox that this handle has started, and that stopped
// since because nobody used it, is started again.
func (b *box) reach(ctx context.Context, early bool) (*link.Session, error) {
	s, err := b.attended().Dial(ctx, early)
	if !errors.Is(err, link.ErrNone) && !(b.wanted() && attend.Stopped(err)) {
		return s, err
	}
	// The slow way: without a keeper the sandbox is stopped, or it runs and
	// has no way out, or it never came to be.
	if err := b.e.privilege(); err != nil {
		return nil, err
	}
	l, err := b.sb.Lock(ctx, "exec")
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	if err := b.mend(ctx); err != nil {
		return nil, err
	}
	machines, err := b.e.machines(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.plan()
	if err != nil {
		return nil, err
	}
	if !machines[p.Machine.ID].Running && !b.wanted() {
		return nil, fmt.Errorf("sandbox %s is stopped; start it with 'kitbox start %s': %w", b.sb.Name, b.sb.Name, kiterr.ErrNotRunning)
	}
	for {
		held, err := b.attended().Up(ctx, b.spawn, nil)
		if err != nil && !startedAnyway(err) {
			return nil, err
		}
		s, err := b.attended().Dial(ctx, early)
		if held != nil {
			held.Release()
			return s, err
		}
		if !attend.Stopped(err) {
			return s, err
		}
		// The one that was there has ended in between. Nobody else starts
		// another, so the next is ours, and stays until there is a session.
	}
}

func (b *box) spawn() (*link.Process, error) { return b.e.spawn(b.sb) }

// named puts the sandbox's name in front of err, unless it says it.
func (b *box) named(err error) error {
	if err == nil || errors.As(err, new(*attend.HungError)) {
		return err
	}
	return fmt.Errorf("sandbox %s: %w", b.sb.Name, err)
}

// startedAnyway reports whether err is of a boot that ended with the sandbox up.
func startedAnyway(err error) bool {
	var h *sandbox.HookError
	return errors.As(err, &h) && h.Phase == "runtime"
}
