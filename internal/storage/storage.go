// Package storage keeps the block storage of sandboxes: one piece for each pair
// of a sandbox name and a path, holding the data and the terms it was made on.
// It outlives the sandbox that made it.
//
// Storage with a size is a filesystem of that size in a file, where this process
// can mount one; otherwise it is a directory, and its size is advice.
package storage

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Store is the storage below Dir. It implements the volume handler's Storage.
// Its methods can be called concurrently, by several processes.
type Store struct {
	Dir string

	// Unusable says why no filesystem in a file can be made or mounted; nil
	// asks [loopfs.Unusable].
	Unusable func() error
}

// termsFile is beside the data of each piece of storage.
const termsFile = "volume.json"

// The data of a piece of storage is one of these.
const (
	dataDir   = "data"      // a directory
	imageFile = "data.ext4" // a file with a filesystem
)

// terms are what a later sandbox of the same name has to ask for again.
type terms struct {
	Version int         `json:"version"`
	Volume  plan.Volume `json:"volume"`

	// Pending is the id of the sandbox that was being made when the storage
	// was: if that was never installed, the storage never was either.
	Pending string `json:"pending,omitempty"`

	// Swap says how the owners of the data are stored.
	Swap plan.Swap `json:"swap,omitzero"`
}

const termsVersion = 1

func (s Store) at(name, path string) string {
	return filepath.Join(s.Dir, name, url.PathEscape(path))
}

// Place implements the volume handler's Storage.
func (s Store) Place(name, path string, bounded bool) string {
	if bounded {
		return filepath.Join(s.at(name, path), imageFile)
	}
	return filepath.Join(s.at(name, path), dataDir)
}

// Bound implements the volume handler's Storage.
func (s Store) Bound() error {
	if s.Unusable != nil {
		return s.Unusable()
	}
	return loopfs.Unusable()
}

// Retained implements the volume handler's Storage.
func (s Store) Retained(name, path string) (plan.Volume, bool, error) {
	t, err := readTerms(s.at(name, path))
	if errors.Is(err, fs.ErrNotExist) {
		return plan.Volume{}, false, nil
	}
	return t.Volume, err == nil, err
}

func readTerms(dir string) (terms, error) {
	var t terms
	b, err := os.ReadFile(filepath.Join(dir, termsFile))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, fmt.Errorf("%s: %w", filepath.Join(dir, termsFile), err)
	}
	if t.Version != termsVersion {
		return t, fmt.Errorf("%s has version %d, this kitbox reads version %d", filepath.Join(dir, termsFile), t.Version, termsVersion)
	}
	return t, nil
}

func writeTerms(dir string, t terms) error {
	t.Version = termsVersion
	b, err := json.MarshalIndent(t, "", "\t")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, termsFile), append(b, '\n'), 0o600)
}

// hold keeps others from making or deleting storage of that name until the lock
// is given back.
func (s Store) hold(ctx context.Context, name string) (*durable.Lock, error) {
	if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(name))
	return durable.AcquireSlot(ctx, filepath.Join(s.Dir, lockFile), binary.BigEndian.Uint64(sum[:8])>>2, durable.Exclusive)
}

// lockFile has a slot for each name.
const lockFile = ".lock"

// Prepare makes the storage that p needs and that does not exist. Storage that
// does is left exactly as it is, its owner and mode included. The caller has
// recorded p, so that [Store.Remove] leaves alone what p uses.
func (s Store) Prepare(ctx context.Context, p *plan.Plan) error {
	if !slices.ContainsFunc(p.Volumes, func(v plan.Volume) bool { return !v.Tmpfs }) {
		return nil
	}
	l, err := s.hold(ctx, p.Name)
	if err != nil {
		return err
	}
	defer l.Unlock()
	for _, m := range p.Machine.Mounts {
		v := volumeOf(p, m)
		if v == nil || v.Tmpfs {
			continue
		}
		if err := s.prepare(ctx, p, *v, m); err != nil {
			return err
		}
	}
	return nil
}

func (s Store) prepare(ctx context.Context, p *plan.Plan, v plan.Volume, m plan.Mount) error {
	dir := s.at(p.Name, v.Path)
	if t, err := readTerms(dir); err == nil {
		return s.reown(dir, t, p.Machine.IDMap.Swap)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A directory without terms is what a kill between the two left; nothing
	// was mounted from it.
	if err := durable.RemoveTree(dir); err != nil {
		return durable.Explain(dir, err)
	}
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data := s.Place(p.Name, v.Path, v.Bounded)
	if v.Bounded {
		if err := loopfs.Make(ctx, data, *v.SizeBytes, loopfs.Root{UID: int(m.UID), GID: int(m.GID), Mode: m.Mode}); err != nil {
			return err
		}
	} else {
		if err := os.Mkdir(data, 0o700); err != nil {
			return durable.Explain(data, err)
		}
		// The owner first: it clears the set-id bits that a mode may have.
		uid, gid := p.Machine.IDMap.Stored(m.UID, m.GID)
		if err := os.Chown(data, int(uid), int(gid)); err != nil {
			return durable.Explain(data, err)
		}
		if err := os.Chmod(data, Mode(m.Mode)); err != nil {
			return durable.Explain(data, err)
		}
	}
	return writeTerms(dir, terms{Volume: v, Pending: p.ID, Swap: p.Machine.IDMap.Swap})
}

// reown changes how the owners of data are stored: a sandbox of an ordinary user
// that is given a directory of his stores them differently. No machine runs with
// it. After a kill in between, owners of some files are wrong, and the files are
// there; it happens at no other time than when a sandbox is made anew.
func (s Store) reown(dir string, t terms, to plan.Swap) error {
	if t.Swap == to {
		return nil
	}
	if t.Volume.Bounded {
		return fmt.Errorf("%s is a filesystem whose owners cannot be stored in another way: %w", dir, kiterr.ErrUnsupported) // only root has those
	}
	from, then := plan.IDMap{Swap: t.Swap}, plan.IDMap{Swap: to}
	err := filepath.WalkDir(filepath.Join(dir, dataDir), func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		uid, gid := then.Stored(from.Stored(sys.Uid, sys.Gid))
		if uid == sys.Uid && gid == sys.Gid {
			return nil
		}
		if err := os.Lchown(p, int(uid), int(gid)); err != nil {
			return err
		}
		if st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && st.Mode()&fs.ModeSymlink == 0 {
			return os.Chmod(p, st.Mode()) // the kernel takes them with the owner
		}
		return nil
	})
	if err != nil {
		return durable.Explain(dir, err)
	}
	t.Swap = to
	return writeTerms(dir, t)
}

func volumeOf(p *plan.Plan, m plan.Mount) *plan.Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Path == m.Path {
			return &p.Volumes[i]
		}
	}
	return nil
}

// Mode turns the twelve permission bits of Unix into Go's.
func Mode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, f := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= f
		}
	}
	return m
}

// Of lists the storage of sandboxes named name.
func (s Store) Of(name string) ([]plan.Volume, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var vs []plan.Volume
	for _, e := range entries {
		if path, err := url.PathUnescape(e.Name()); err == nil {
			vs = append(vs, plan.Volume{Path: path})
		}
	}
	return vs, nil
}

// Settle is called when sandbox p goes: storage that it was the first to use is
// kept when it had been installed, and otherwise goes as well. Doing it again
// does nothing.
func (s Store) Settle(ctx context.Context, p *plan.Plan, installed bool) error {
	if !slices.ContainsFunc(p.Volumes, func(v plan.Volume) bool { return !v.Tmpfs }) {
		return nil
	}
	l, err := s.hold(ctx, p.Name)
	if err != nil {
		return err
	}
	defer l.Unlock()
	for i := range p.Volumes {
		if p.Volumes[i].Tmpfs {
			continue
		}
		dir := s.at(p.Name, p.Volumes[i].Path)
		t, err := readTerms(dir)
		if errors.Is(err, fs.ErrNotExist) && !installed {
			// A kill before the terms were written: nothing was mounted
			// from it, and the next of the name would clear it too.
			if err := durable.RemoveTree(dir); err != nil {
				return durable.Explain(dir, err)
			}
			os.Remove(filepath.Dir(dir))
			continue
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && t.Pending != p.ID {
			continue
		}
		if err != nil {
			return err
		}
		if installed && !t.Volume.Transient {
			t.Pending = ""
			if err := writeTerms(dir, t); err != nil {
				return err
			}
			continue
		}
		if err := s.delete(p.Name, p.Volumes[i].Path); err != nil {
			return err
		}
	}
	return nil
}

// delete removes one piece of storage. The caller holds its name.
func (s Store) delete(name, path string) error {
	dir := s.at(name, path)
	// Terms last: until they go, it is listed and can be deleted.
	for _, bounded := range []bool{false, true} {
		data := s.Place(name, path, bounded)
		if err := durable.RemoveTree(data); err != nil {
			return durable.Explain(data, err)
		}
	}
	if err := durable.RemoveTree(dir); err != nil {
		return durable.Explain(dir, err)
	}
	os.Remove(filepath.Dir(dir)) // unless other storage of that name is there
	return nil
}
