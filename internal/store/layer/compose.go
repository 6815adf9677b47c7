package layer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// MaxLayers is the most layers that one overlay mount takes (the kernel's
// OVL_MAX_STACK), less one for a skeleton.
const MaxLayers = 499

// skeletonPrefix starts the directory name of a skeleton in the store.
const skeletonPrefix = "skeleton-"

// Compose returns the directories whose overlay, lowest first, is the root
// filesystem made of layers ids, lowest first. All must be unpacked. It copies
// no content and reads none.
//
// A layer may stand in the list several times; overlayfs takes a directory
// once, and the highest alone gives the same files.
//
// Overlayfs takes a directory's owner and mode from the highest layer that has
// it, stated or not: a layer that only adds home/agent/x would give /home/agent
// to root. Where that would happen the last directory returned is a skeleton,
// which holds just such directories with the attributes they should have. It
// is shared by all compositions that need the same. In the same way a directory
// that is only implied does not hide a symlink of the layers below: what is in it
// goes where the symlink leads, as in any container runtime.
func (s *Store) Compose(ctx context.Context, ids []digest.Digest) ([]string, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("a root filesystem needs at least one layer: %w", kiterr.ErrRefused)
	}
	var stack []stacked // lowest first
	for i, id := range ids {
		if slices.Contains(ids[i+1:], id) {
			continue
		}
		if ok, err := s.Has(ctx, id); err != nil {
			return nil, err
		} else if !ok {
			return nil, fmt.Errorf("layer %s: %w: it is not unpacked", id, kiterr.ErrNotFound)
		}
		m, err := s.Meta(id)
		if err != nil {
			return nil, err
		}
		if m.OpaqueRoot {
			stack = nil // overlayfs merges roots whatever they say
		}
		l, err := s.relocate(ctx, stack, m)
		if err != nil {
			return nil, err
		}
		stack = append(stack, l)
	}
	if len(stack) > MaxLayers {
		return nil, fmt.Errorf("the composition has %d layers, one mount takes %d: build the Kits with fewer instructions: %w", len(stack), MaxLayers, kiterr.ErrRefused)
	}
	dirs := make([]string, len(stack))
	for i, l := range stack {
		dirs[i] = l.dir
	}
	corrections, err := s.corrections(stack)
	if err != nil || len(corrections) == 0 {
		return dirs, err
	}
	skeleton, err := s.skeleton(ctx, corrections)
	if err != nil {
		return nil, err
	}
	return append(dirs, skeleton), nil
}

// A correction is a directory whose highest layer merely implies it.
type correction struct {
	Path   string            `json:"path"` // "." is the root
	Mode   uint32            `json:"mode"`
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Mtime  int64             `json:"mtime"` // nanoseconds
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
}

// corrections finds the directories that would get the wrong attributes, and
// adds their parents as they should be: in a skeleton they are the highest too.
func (s *Store) corrections(stack []stacked) ([]correction, error) {
	v := view{stack: stack, implied: make([]map[string]bool, len(stack)), known: map[string]*correction{}}
	for i, m := range stack {
		v.implied[i] = make(map[string]bool, len(m.Implied))
		for _, p := range m.Implied {
			v.implied[i][p] = true
		}
	}
	wanted := map[string]correction{}
	for _, m := range stack {
		for _, p := range m.Implied {
			c, wrong, err := v.effective(p)
			if err != nil {
				return nil, err
			}
			if !wrong {
				continue
			}
			wanted[p] = *c
			for p != "." {
				p = path.Dir(p)
				if c, _, err := v.effective(p); err != nil {
					return nil, err
				} else if c != nil {
					wanted[p] = *c
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(wanted), func(a, b correction) int { return strings.Compare(a.Path, b.Path) }), nil
}

// A view is a stack of layers seen as one tree.
type view struct {
	stack   []stacked
	implied []map[string]bool
	known   map[string]*correction // nil: not a directory
	wrong   map[string]bool
}

// effective returns the attributes that directory p should have: those of the
// highest layer that states it, or the default where none does. wrong means
// that overlayfs would show others. It returns nil if p is no directory.
func (v *view) effective(p string) (c *correction, wrong bool, err error) {
	if c, ok := v.known[p]; ok {
		return c, v.wrong[p], nil
	}
	top := -1 // the highest layer that has p, if it only implies it
search:
	for j := len(v.stack) - 1; j >= 0; j-- {
		what, _, err := look(v.stack[j].dir, p)
		if err != nil {
			return nil, false, err
		}
		switch what {
		case absent:
		case hidden:
			break search
		case other:
			if top >= 0 {
				return nil, false, clash(v.stack[top], v.stack[j], p)
			}
			v.known[p] = nil
			return nil, false, nil
		case directory, opaque:
			if !v.implied[j][p] {
				if c, err = attributesOf(v.stack[j].dir, p); err != nil {
					return nil, false, err
				}
				break search
			}
			if top < 0 {
				top = j
			}
			if what == opaque {
				break search
			}
		}
	}
	if c == nil {
		c = &correction{Path: p, Mode: 0o755}
	}
	wrong = top >= 0 && !(c.Mode == 0o755 && c.UID == 0 && c.GID == 0 && c.Xattrs == nil)
	if v.wrong == nil {
		v.wrong = map[string]bool{}
	}
	v.known[p], v.wrong[p] = c, wrong
	return c, wrong, nil
}

// clash explains a directory that is needed where a lower layer has a file.
func clash(above, below stacked, p string) error {
	return fmt.Errorf("layer %s has files below /%s, which is not a directory in layer %s: %w", above.DiffID, p, below.DiffID, kiterr.ErrRefused)
}

// A finding is what one layer has to say about a path.
type finding int

const (
	absent    finding = iota // nothing
	directory                // a directory that merges with those below
	opaque                   // one that does not
	other                    // anything else, or a symlink or file on the way to it
	hidden                   // a whiteout here or above
)

// look asks the unpacked layer at dir about p, component by component: a symlink
// on the way must not lead the look-up somewhere else. at is the path that
// settled it.
func look(dir, p string) (what finding, at string, err error) {
	if p == "." {
		return directory, p, nil
	}
	sealed := false
	for rest := p; rest != ""; {
		part, tail, _ := strings.Cut(rest, "/")
		rest = tail
		at = path.Join(at, part)
		full := dir + "/" + at
		var st unix.Stat_t
		if err := unix.Lstat(full, &st); errors.Is(err, unix.ENOENT) {
			if sealed {
				return hidden, at, nil
			}
			return absent, at, nil
		} else if err != nil {
			return absent, at, durable.Explain(full, err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if isOpaque(full) {
				sealed = true
			}
		case unix.S_IFCHR:
			return hidden, at, nil // the only devices in a layer are whiteouts
		default:
			return other, at, nil
		}
	}
	if sealed {
		return opaque, at, nil
	}
	return directory, at, nil
}

func isOpaque(dir string) bool {
	var b [2]byte
	n, err := unix.Lgetxattr(dir, "user.overlay.opaque", b[:])
	return err == nil && n == 1 && b[0] == 'y'
}

// attributesOf takes the attributes of directory p of the layer at root.
func attributesOf(root, p string) (*correction, error) {
	dir := filepath.Join(root, p)
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, durable.Explain(dir, err)
	}
	c := &correction{Path: p, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano()}
	var err error
	if c.Xattrs, err = readXattrs(dir); err != nil {
		return nil, err
	}
	return c, nil
}

// readXattrs returns the attributes of dir but overlayfs's.
func readXattrs(dir string) (map[string][]byte, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(dir, buf)
	if err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			return nil, nil
		}
		return nil, durable.Explain(dir, err)
	}
	var out map[string][]byte
	for _, name := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "user.overlay.") || strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "security.") {
			continue
		}
		v := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(dir, name, v)
		if err != nil {
			return nil, durable.Explain(dir, err)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[name] = v[:k]
	}
	return out, nil
}

// skeleton returns the directory that holds the corrections cs, making it if
// no composition has needed it before.
func (s *Store) skeleton(ctx context.Context, cs []correction) (string, error) {
	text, err := json.Marshal(cs)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	name := skeletonPrefix + hex.EncodeToString(sum[:])
	dir := filepath.Join(s.dir, name, "fs")
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(name), durable.Exclusive)
	if err != nil {
		return "", err
	}
	defer l.Unlock()
	if s.whole(name) {
		return dir, nil
	}
	if err := s.discard(name); err != nil {
		return "", err
	}
	return dir, s.publish(name, func(tmp string) error {
		return fillSkeleton(filepath.Join(tmp, "fs"), cs)
	})
}

// fillSkeleton makes the directories of cs, parents included, below root.
func fillSkeleton(root string, cs []correction) error {
	for _, c := range cs {
		if err := os.MkdirAll(filepath.Join(root, c.Path), 0o755); err != nil {
			return durable.Explain(root, err)
		}
	}
	for _, c := range slices.Backward(cs) { // children first: times of parents stay
		if err := c.apply(filepath.Join(root, c.Path)); err != nil {
			return err
		}
	}
	return nil
}

// apply gives the directory at p the attributes of c.
func (c *correction) apply(p string) error {
	if err := unix.Lchown(p, int(c.UID), int(c.GID)); err != nil {
		return durable.Explain(p, err)
	}
	if err := unix.Chmod(p, c.Mode); err != nil {
		return durable.Explain(p, err)
	}
	for k, v := range c.Xattrs {
		if err := unix.Lsetxattr(p, k, v, 0); err != nil {
			return durable.Explain(p, err)
		}
	}
	ts := unix.NsecToTimespec(c.Mtime)
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return durable.Explain(p, err)
	}
	return nil
}
