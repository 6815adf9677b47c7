package engine

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// reclaimAge is how long a sandbox's directory is left alone before it counts as
// the remains of a killed command: longer than the instant between taking a name
// and locking it, on a machine that is very busy.
const reclaimAge = 10 * time.Second

// reclaim removes what interrupted creations left under any name, and sandboxes
// that outlived the command they were made for: a name that was made up is one
// that nobody asks for again. It is done on the way of a
// creation, so what cannot be removed now is left for the next one. It returns how
// many it removed.
func (e *Engine) reclaim(ctx context.Context) (removed int) {
	names, err := e.state.List()
	if err != nil {
		return 0
	}
	for _, name := range names {
		sb, err := e.state.Sandbox(name)
		if err != nil {
			continue // removed since
		}
		es, err := journal.Read(sb.Dir())
		if err != nil {
			continue
		}
		switch {
		case journal.Abandoned(es):
		case journal.Installed(es) && journal.Last(es) != journal.Removing:
			continue
		default:
			st, err := os.Stat(sb.Dir())
			if err != nil || time.Since(st.ModTime()) < reclaimAge {
				continue
			}
		}
		b := &box{e: e, sb: sb}
		if b.busy() || b.kept() {
			continue
		}
		l, err := sb.Lock(ctx, "create")
		if err != nil {
			continue
		}
		// It looks again, at the keeper too, now that nobody else does.
		if err := b.mend(ctx); errors.Is(err, kiterr.ErrNotFound) {
			removed++
		}
		l.Unlock()
	}
	return removed
}

// strays removes machines that no sandbox has, and what else is kept by their ids. The
// records of a sandbox that ends with its command do not wait for the disk: a power cut
// can take from them what the machine was called, while all that was written in it is
// there. It returns how many it removed.
func (e *Engine) strays(ctx context.Context) (removed int, err error) {
	// First the machines: each was named before it was made, and is removed before
	// its name is.
	machines, err := e.c.Driver.List(ctx)
	if err != nil || len(machines) == 0 {
		return 0, err
	}
	names, err := e.state.List()
	if err != nil {
		return 0, err
	}
	had := map[string]bool{}
	for _, name := range names {
		sb, err := e.state.Sandbox(name)
		if err != nil {
			continue // removed since
		}
		p, err := (&box{e: e, sb: sb}).plan()
		if err == nil {
			had[p.Machine.ID] = true
		}
		es, jerr := journal.Read(sb.Dir())
		if jerr == nil && len(es) > 0 && es[0].Note != "" {
			had[es[0].Note] = true
			continue
		}
		if _, serr := os.Stat(sb.Dir()); err != nil && serr == nil {
			return 0, nil // any of them can be its
		}
	}
	for _, m := range machines {
		if had[m.ID] || m.Running {
			continue
		}
		if err := e.c.Driver.Remove(ctx, m.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return removed, err
		}
		if err := e.files.Clones.Remove(m.ID); err != nil {
			return removed, err
		}
		if !e.c.Rootless {
			if err := e.state.ReleaseIDs(ctx, m.ID); err != nil {
				return removed, err
			}
		}
		removed++
	}
	return removed, nil
}

// kept reports whether a keeper may have the sandbox in hand.
func (b *box) kept() bool {
	ctx, cancel := context.WithTimeout(context.Background(), listBound)
	defer cancel()
	_, err := b.keeper().Status(ctx)
	return !errors.Is(err, link.ErrNone)
}
