package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/gitrepo"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Clones keeps the workspaces that were cloned, one directory for each sandbox
// id: they outlive a recreation and end with the sandbox.
type Clones struct{ Dir string }

// At is where the clone of sandbox id is, or would be.
func (c Clones) At(id string) string       { return filepath.Join(c.Dir, id, "workspace") }
func (c Clones) metaFile(id string) string { return filepath.Join(c.Dir, id, "clone.json") }

// Read returns what the clone of id is of. Without one it is [fs.ErrNotExist].
func (c Clones) Read(id string) (*plan.Clone, error) {
	b, err := os.ReadFile(c.metaFile(id))
	if err != nil {
		return nil, err
	}
	k := new(plan.Clone)
	return k, json.Unmarshal(b, k)
}

// Prepare makes the clone that p needs, unless it is there. The record is written
// last: a clone without one is what a kill left.
func (c Clones) Prepare(ctx context.Context, p *plan.Plan) error {
	if p.Clone == nil {
		return nil
	}
	at := c.At(p.ID)
	if _, err := c.Read(p.ID); err == nil {
		return chownTree(at, p)
	}
	if err := c.Remove(p.ID); err != nil {
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
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid == uid && sys.Gid == gid {
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

// Remove deletes the clone of id, if there is one.
func (c Clones) Remove(id string) error {
	dir := filepath.Dir(c.At(id))
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return durable.Explain(dir, durable.RemoveTree(dir))
}

// Open opens the repository of id's clone.
func (c Clones) Open(id string) (*gitrepo.Repo, error) {
	at := c.At(id)
	// A link in place of one of these would lead git out of the clone.
	for _, name := range []string{".git", ".git/objects"} {
		st, err := os.Lstat(filepath.Join(at, name))
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			return nil, fmt.Errorf("its %s is no directory any more: %w", name, kiterr.ErrUnavailable)
		}
	}
	return gitrepo.Bare(filepath.Join(at, ".git"), at)
}
