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

// kept reports whether a keeper may have the sandbox in hand.
func (b *box) kept() bool {
	ctx, cancel := context.WithTimeout(context.Background(), listBound)
	defer cancel()
	_, err := b.keeper().Status(ctx)
	return !errors.Is(err, link.ErrNone)
}
