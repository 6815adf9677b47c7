package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// storage is the block storage of all sandboxes: one directory for each pair of
// a sandbox name and a path, holding the data and the terms it was made on. It
// outlives the sandbox that made it. It implements the volume handler's Storage.
type storage struct{ dir string }

// termsFile is beside the data of each piece of storage.
const termsFile = "volume.json"

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

func (s storage) at(name, path string) string {
	return filepath.Join(s.dir, name, url.PathEscape(path))
}

// Dir implements the volume handler's Storage.
func (s storage) Dir(name, path string) string { return filepath.Join(s.at(name, path), "data") }

// Retained implements the volume handler's Storage.
func (s storage) Retained(name, path string) (plan.Volume, bool, error) {
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

// prepare makes the storage that p needs and that does not exist. Storage that
// does is left exactly as it is, its owner and mode included.
func (s storage) prepare(p *plan.Plan) error {
	for _, m := range p.Machine.Mounts {
		v := volumeOf(p, m)
		if v == nil || v.Tmpfs {
			continue
		}
		dir := s.at(p.Name, v.Path)
		if t, err := readTerms(dir); err == nil {
			if err := s.reown(dir, t, p.Machine.IDMap.Swap); err != nil {
				return err
			}
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := durable.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		// A data directory without terms is what a kill between the two
		// left; nothing was mounted from it.
		data := s.Dir(p.Name, v.Path)
		if err := durable.RemoveTree(data); err != nil {
			return durable.Explain(data, err)
		}
		if err := os.Mkdir(data, 0o700); err != nil {
			return durable.Explain(data, err)
		}
		// The owner first: it clears the set-id bits that a mode may have.
		uid, gid := p.Machine.IDMap.Stored(m.UID, m.GID)
		if err := os.Chown(data, int(uid), int(gid)); err != nil {
			return durable.Explain(data, err)
		}
		if err := os.Chmod(data, chmodBits(m.Mode)); err != nil {
			return durable.Explain(data, err)
		}
		if err := writeTerms(dir, terms{Volume: *v, Pending: p.ID, Swap: p.Machine.IDMap.Swap}); err != nil {
			return err
		}
	}
	return nil
}

// reown changes how the owners of data are stored: a sandbox of an ordinary user
// that is given a directory of his stores them differently. No machine runs with
// it. After a kill in between, owners of some files are wrong, and the files are
// there; it happens at no other time than when a sandbox is made anew.
func (s storage) reown(dir string, t terms, to plan.Swap) error {
	if t.Swap == to {
		return nil
	}
	from, then := plan.IDMap{Swap: t.Swap}, plan.IDMap{Swap: to}
	err := filepath.WalkDir(filepath.Join(dir, "data"), func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*unixStat)
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

// chmodBits turns the twelve permission bits of Unix into Go's.
func chmodBits(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, f := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= f
		}
	}
	return m
}

// of lists the storage of sandboxes named name.
func (s storage) of(name string) ([]plan.Volume, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, name))
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

// settle is called when sandbox p goes: storage that it was the first to use is
// kept when it had been installed, and otherwise goes as well. Doing it again
// does nothing.
func (s storage) settle(p *plan.Plan, installed bool) error {
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
		// Terms last: until they go, the next settling finds the storage.
		if err := durable.RemoveTree(s.Dir(p.Name, p.Volumes[i].Path)); err != nil {
			return durable.Explain(dir, err)
		}
		if err := durable.RemoveTree(dir); err != nil {
			return durable.Explain(dir, err)
		}
		os.Remove(filepath.Dir(dir)) // unless other storage of that name is there
	}
	return nil
}
