package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/gitrepo"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// clones keeps the workspaces that were cloned, one directory for each sandbox
// id: they outlive a recreation and end with the sandbox.
type clones struct{ dir string }

func (c clones) at(id string) string       { return filepath.Join(c.dir, id, "workspace") }
func (c clones) metaFile(id string) string { return filepath.Join(c.dir, id, "clone.json") }

// read returns what the clone of id is of.
func (c clones) read(id string) (*plan.Clone, error) {
	b, err := os.ReadFile(c.metaFile(id))
	if err != nil {
		return nil, err
	}
	k := new(plan.Clone)
	return k, json.Unmarshal(b, k)
}

// prepare makes the clone that p needs, unless it is there. The record is written
// last: a clone without one is what a kill left.
func (c clones) prepare(ctx context.Context, p *plan.Plan) error {
	if p.Clone == nil {
		return nil
	}
	at := c.at(p.ID)
	if _, err := c.read(p.ID); err == nil {
		return chownTree(at, p)
	}
	if err := c.remove(p.ID); err != nil {
		return err
	}
	if err := durable.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	r, err := gitrepo.Open(p.Clone.Source)
	if err != nil {
		return err
	}
	if err := r.Clone(ctx, at); err != nil {
		return err
	}
	if err := chownTree(at, p); err != nil {
		return err
	}
	b, err := json.MarshalIndent(p.Clone, "", "\t")
	if err != nil {
		return err
	}
	return durable.WriteFile(c.metaFile(p.ID), append(b, '\n'), 0o600)
}

// chownTree gives a tree that no sandbox has mounted to the image's user.
func chownTree(dir string, pl *plan.Plan) error {
	uid, gid := pl.Machine.IDMap.Stored(pl.Launch.User.UID, pl.Launch.User.GID)
	if st, err := os.Stat(dir); err == nil {
		if sys, ok := st.Sys().(*unixStat); ok && sys.Uid == uid && sys.Gid == gid {
			return nil // all of it, since the top is done last
		}
	}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		return os.Lchown(p, int(uid), int(gid))
	})
	if err == nil {
		err = os.Lchown(dir, int(uid), int(gid))
	}
	return durable.Explain(dir, err)
}

func (c clones) remove(id string) error {
	dir := filepath.Dir(c.at(id))
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return durable.Explain(dir, durable.RemoveTree(dir))
}

// cloned opens the repository of a sandbox's clone; nil when it has none.
func (b *box) cloned() (*gitrepo.Repo, *plan.Plan, error) {
	p, err := b.plan()
	if err != nil || p.Clone == nil {
		return nil, p, err
	}
	if err := b.e.privilege(); err != nil {
		return nil, nil, err
	}
	at := b.e.clones.at(p.ID)
	// A link in place of the repository would lead git out of the clone.
	st, err := os.Lstat(filepath.Join(at, ".git"))
	if err == nil && !st.IsDir() {
		err = fmt.Errorf("its .git is no directory any more: %w", kiterr.ErrUnavailable)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("sandbox %s: reading its clone: %w", b.sb.Name, err)
	}
	r, err := gitrepo.Bare(filepath.Join(at, ".git"), at)
	if err != nil {
		return nil, nil, fmt.Errorf("sandbox %s: reading its clone: %w", b.sb.Name, err)
	}
	return r, p, nil
}

// Unsaved implements [sandbox.Cloner].
func (b *box) Unsaved(ctx context.Context) (*sandbox.Unsaved, error) {
	r, p, err := b.cloned()
	switch {
	case errors.Is(err, kiterr.ErrNotFound):
		return &sandbox.Unsaved{}, nil // never came to be
	case err != nil:
		return nil, err
	case r == nil:
		return &sandbox.Unsaved{}, nil
	}
	source, err := gitrepo.Open(p.Clone.Source)
	if err != nil {
		source = nil // gone, or something else now: nothing was fetched into it
	}
	u, err := r.Unsaved(ctx, p.Clone.Known, source)
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
