package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/kitbox-dev/kitbox/internal/gitrepo"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

var _ sandbox.Cloner = (*box)(nil)

// cloned opens the repository of a sandbox's clone; nil when it has none. It needs
// no plan: one that cannot be read must not keep the sandbox from being removed.
func (b *box) cloned() (*gitrepo.Repo, *plan.Clone, error) {
	es, err := journal.Read(b.sb.Dir())
	if err != nil || len(es) == 0 {
		return nil, nil, err
	}
	id := es[0].Note // see make
	k, err := b.e.files.Clones.Read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err == nil {
		err = b.e.privilege()
	}
	if err != nil {
		return nil, nil, err
	}
	r, err := b.e.files.Clones.Open(id)
	if err != nil {
		return nil, nil, fmt.Errorf("sandbox %s: reading its clone: %w", b.sb.Name, err)
	}
	return r, k, nil
}

// Unsaved implements [sandbox.Cloner].
func (b *box) Unsaved(ctx context.Context) (*sandbox.Unsaved, error) {
	r, k, err := b.cloned()
	if err != nil {
		return nil, err
	}
	if r == nil {
		return &sandbox.Unsaved{}, nil
	}
	source, err := gitrepo.Open(k.Source)
	if err != nil {
		source = nil // gone, or something else now: nothing was fetched into it
	}
	u, err := r.Unsaved(ctx, k.Known, source)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: looking for what only its clone has: %w", b.sb.Name, err)
	}
	out := &sandbox.Unsaved{More: u.More, Files: u.Files}
	for _, c := range u.Commits {
		out.Commits = append(out.Commits, sandbox.Commit(c))
	}
	return out, nil
}

// Bundle implements [sandbox.Cloner].
func (b *box) Bundle(ctx context.Context, w io.Writer) error {
	r, _, err := b.cloned()
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("sandbox %s has no cloned workspace: %w", b.sb.Name, kiterr.ErrNotFound)
	}
	return r.Bundle(ctx, w)
}
