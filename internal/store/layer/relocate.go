package layer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// movedPrefix starts the directory name of a relocated layer in the store.
const movedPrefix = "moved-"

// maxHops is the kernel's own bound on symlinks in one path.
const maxHops = 40

// A stacked layer is one of a composition. Dir is not always the layer's own.
type stacked struct {
	Meta
	dir string
}

// relocate returns layer m as it lies on the layers below. A tar with lib/x and
// no lib means the lib that is there, and where that is a symlink to usr/lib, x
// belongs into usr/lib; overlayfs would let the directory of the layer hide the
// symlink, and with it the system's libraries. Such a layer is laid out once
// more, with hard links in place of its files: no content is copied.
func (s *Store) relocate(ctx context.Context, below []stacked, m Meta) (stacked, error) {
	plain := stacked{m, s.Dir(m.DiffID)}
	// A directory moves because one that the tar only implies is a symlink
	// below; as long as none is, the parents of all of them are where they say.
	moves := false
	for _, p := range m.Implied {
		if p == "." || moves {
			continue
		}
		to, err := s.follow(below, m, p)
		if err != nil {
			return plain, err
		}
		moves = to != p
	}
	if !moves {
		return plain, nil
	}
	inv, err := s.Inventory(m.DiffID)
	if err != nil {
		return plain, err
	}
	r := relocation{from: plain.dir, where: map[string]string{".": "."}, stated: map[string]string{}, made: map[string]bool{".": true}}
	if err := r.plan(inv, func(p string) (string, error) { return s.follow(below, m, p) }); err != nil {
		return plain, err
	}
	key := sha256.New()
	fmt.Fprintln(key, m.DiffID)
	for _, p := range slices.Sorted(maps.Keys(r.where)) {
		fmt.Fprintf(key, "%q %q\n", p, r.where[p])
	}
	name := movedPrefix + hex.EncodeToString(key.Sum(nil))
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(name), durable.Exclusive)
	if err != nil {
		return plain, err
	}
	defer l.Unlock()
	moved := stacked{m, filepath.Join(s.dir, name, "fs")}
	moved.Implied = r.implied(slices.Contains(m.Implied, "."))
	if s.whole(name) {
		return moved, nil
	}
	if err := s.discard(name); err != nil {
		return plain, err
	}
	return moved, s.publish(name, func(tmp string) error { return r.lay(inv, filepath.Join(tmp, "fs")) })
}

// follow returns the directory that p is on the layers below, where the parent
// of p is no symlink: p itself, unless there is one.
func (s *Store) follow(below []stacked, m Meta, p string) (string, error) {
	at, rest, hops := path.Dir(p), path.Base(p), 0
	for rest != "" {
		part, tail, _ := strings.Cut(rest, "/")
		rest = tail
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at) // of the root it is the root
			continue
		}
		next := path.Join(at, part)
		target, err := s.symlink(below, m, next)
		switch {
		case err != nil:
			return "", err
		case target == "":
			at = next
			continue
		}
		if hops++; hops > maxHops {
			return "", fmt.Errorf("layer %s: /%s goes through more than %d symlinks: %w", m.DiffID, p, maxHops, kiterr.ErrRefused)
		}
		if strings.HasPrefix(target, "/") {
			at = "."
		}
		rest = target + "/" + rest
	}
	return at, nil
}

// symlink returns the target of the symlink that the layers below have at p, or
// empty if there is a directory or nothing. Anything else is in the way of m.
func (s *Store) symlink(below []stacked, m Meta, p string) (string, error) {
	for _, b := range slices.Backward(below) {
		what, at, err := look(b.dir, p)
		if err != nil {
			return "", err
		}
		switch {
		case what == absent:
			continue
		case what == hidden, what == directory, what == opaque, at != p:
			return "", nil
		}
		target, err := os.Readlink(filepath.Join(b.dir, p))
		if err != nil {
			return "", fmt.Errorf("layer %s has files below /%s, which is not a directory in layer %s: %w", m.DiffID, p, b.DiffID, kiterr.ErrRefused)
		}
		return target, nil
	}
	return "", nil
}

// A relocation lays a layer out with some of its directories elsewhere.
type relocation struct {
	from   string
	where  map[string]string // directory of the layer → its place
	stated map[string]string // place → the directory of the layer that states it
	made   map[string]bool   // places that are directories
}

// place is where the entry at p goes, in the place of its directory.
func (r *relocation) place(p string) string {
	return path.Join(r.where[path.Dir(p)], path.Base(p))
}

// plan decides about all directories of inv, in which parents come first. An
// implied one goes where follow says; a stated one replaces what is there.
func (r *relocation) plan(inv inventory.List, follow func(string) (string, error)) error {
	for _, e := range inv {
		if e.Kind != inventory.Dir {
			continue
		}
		to := r.place(e.Path)
		if e.Implied {
			var err error
			if to, err = follow(to); err != nil {
				return err
			}
		} else {
			r.stated[to] = e.Path
		}
		r.where[e.Path] = to
		for at := to; at != "."; at = path.Dir(at) {
			r.made[at] = true
		}
	}
	return nil
}

// implied lists the places that nothing states, parents first.
func (r *relocation) implied(root bool) []string {
	var out []string
	for p := range r.made {
		if _, ok := r.stated[p]; !ok && (p != "." || root) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// lay makes the directories and links everything else.
func (r *relocation) lay(inv inventory.List, root string) error {
	for _, p := range slices.Sorted(maps.Keys(r.made)) {
		if err := os.Mkdir(filepath.Join(root, p), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return durable.Explain(root, err)
		}
	}
	for _, e := range inv {
		if e.Kind == inventory.Dir {
			continue
		}
		to := r.place(e.Path)
		if r.made[to] {
			return fmt.Errorf("/%s is a directory and something else in one layer: %w", to, kiterr.ErrRefused)
		}
		dst := filepath.Join(root, to)
		err := os.Link(filepath.Join(r.from, e.Path), dst)
		if errors.Is(err, fs.ErrExist) {
			// The layer has both lib/x and usr/lib/x: the later one in the
			// tar is not known any more, so it is the one named plainly.
			if to != e.Path {
				continue
			}
			err = errors.Join(os.Remove(dst), os.Link(filepath.Join(r.from, e.Path), dst))
		}
		if err != nil {
			return durable.Explain(root, err)
		}
	}
	// Children first: making them would change the times of their parents.
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(r.made))) {
		c := &correction{Path: p, Mode: 0o755}
		if from, ok := r.stated[p]; ok {
			var err error
			if c, err = attributesOf(r.from, from); err != nil {
				return err
			}
			if isOpaque(filepath.Join(r.from, from)) {
				for _, name := range []string{"user.overlay.opaque", "trusted.overlay.opaque"} {
					if err := unix.Lsetxattr(filepath.Join(root, p), name, []byte("y"), 0); err != nil && !errors.Is(err, unix.EPERM) {
						return durable.Explain(root, err)
					}
				}
			}
		}
		if p == "." {
			var err error
			if c, err = attributesOf(r.from, "."); err != nil {
				return err
			}
		}
		if err := c.apply(filepath.Join(root, p)); err != nil {
			return err
		}
	}
	return nil
}
