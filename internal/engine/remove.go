package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// forget deletes what is kept of a sandbox whose machine is gone: storage that
// must not stay, its range of ids, and at last its directory, which is what the
// next command would find it by. keep is whether storage made for it outlives it
// if it ever was installed.
func (e *Engine) forget(ctx context.Context, sb *state.Sandbox, p *plan.Plan, keep bool) error {
	es, err := journal.Read(sb.Dir())
	if err != nil {
		return err
	}
	id := ""
	if len(es) > 0 {
		id = es[0].Note
	}
	if p != nil {
		id = p.ID
		if err := e.storage.Settle(ctx, p, keep && journal.Installed(es)); err != nil {
			return err
		}
	}
	// Secrets of its own go with a sandbox that was. One that did not come to
	// be is about to be tried again.
	if keep && journal.Installed(es) {
		if err := e.secrets.RemoveScope(ctx, vault.Scope{Kind: vault.Sandbox, Name: sb.Name}); err != nil {
			return err
		}
	}
	if id != "" {
		if err := e.files.Clones.Remove(id); err != nil {
			return err
		}
	}
	if id != "" && !e.c.Rootless {
		if err := e.state.ReleaseIDs(ctx, id); err != nil {
			return err
		}
	}
	if _, volatile := journal.Volatile(es); volatile {
		return sb.RemoveVolatile()
	}
	return sb.Remove()
}

// discard removes a sandbox without a keeper, in whatever state it is; keep is
// as for forget. The caller holds its lock.
func (b *box) discard(ctx context.Context, keep bool) error {
	// Once begun it is ended by whoever comes next: a machine that is gone
	// must not be made anew for a sandbox that was to be removed.
	switch es, err := journal.Read(b.sb.Dir()); {
	case err != nil:
		return err
	case journal.Installed(es) && journal.Last(es) != journal.Removing:
		if err := b.noReturn(es); err != nil {
			return err
		}
	}
	p, err := b.plan()
	switch {
	case err == nil:
		if err := b.e.c.Driver.Remove(ctx, p.Machine.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return err
		}
	case errors.Is(err, kiterr.ErrNotFound):
		p = nil // killed before anything else was made
	case errors.Is(err, kiterr.ErrUnsupported):
		return err // of another kitbox, which knows what to do
	default:
		// Cut short by a full disk or a crash. What must go is known
		// without it.
		if p, err = b.e.remains(b.sb); err != nil {
			return err
		}
		if err := b.e.c.Driver.Remove(ctx, p.Machine.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return err
		}
	}
	if _, err := os.Stat(b.sb.Dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.e.forget(ctx, b.sb, p, keep)
}

// noReturn records that the sandbox is being removed. On a disk that is full its logs
// make room for that, since they are the first to go; and if even that does not help, it
// goes without: what is removed may be what the disk is full of.
func (b *box) noReturn(es []journal.Entry) error {
	_, volatile := journal.Volatile(es)
	w := journal.Writer{Dir: b.sb.Dir(), Volatile: volatile}
	err := w.Append(journal.Removing, "")
	if !durable.Full(err) {
		return err
	}
	for _, log := range []string{link.LogName, link.LogName + ".1", keeper.HookLogName} {
		if err := os.Remove(b.sb.Path(log)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := w.Append(journal.Removing, ""); !durable.Full(err) {
		return err
	}
	return nil
}

// remains is as much of a plan that cannot be read as it takes to remove what was
// made of it.
func (e *Engine) remains(sb *state.Sandbox) (*plan.Plan, error) {
	es, err := journal.Read(sb.Dir())
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Name: sb.Name}
	if len(es) > 0 {
		p.ID = es[0].Note // see make
	}
	p.Machine.ID = p.ID
	p.Volumes, err = e.storage.Of(sb.Name)
	return p, err
}
