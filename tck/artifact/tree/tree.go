// Package tree is the file system that layers make, as a judge needs it: names,
// kinds, owners and modes of everything, and the content of the few files that
// were asked for. Nothing is written anywhere.
//
// It is an implementation of its own of how layers stack, apart from the one
// that unpacks Kits, so that the two can disagree.
package tree

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// A Kind is what stands at a path.
type Kind byte

// The kinds.
const (
	File    Kind = 'f'
	Dir     Kind = 'd'
	Symlink Kind = 'l'
	Other   Kind = 'o' // device, FIFO or socket
)

// An Entry is what stands at a path.
type Entry struct {
	Kind   Kind
	Stated bool   // false for a directory that no layer states
	Mode   uint32 // permission bits
	UID    int
	GID    int
	Link   string // target of a symlink, as written
	Size   int64
	Sum    [32]byte // of the content, if the tree hashes
	Data   []byte   // if the tree keeps it
	Layer  int      // the layer that wrote it, from 0
}

// Executable reports whether a process with these ids may execute e. The
// superuser may as soon as anybody may.
func (e Entry) Executable(uid, gid uint32) bool {
	switch {
	case e.Kind != File:
		return false
	case uid == 0:
		return e.Mode&0o111 != 0
	case e.UID >= 0 && uint32(e.UID) == uid:
		return e.Mode&0o100 != 0
	case e.GID >= 0 && uint32(e.GID) == gid:
		return e.Mode&0o010 != 0
	}
	return e.Mode&0o001 != 0
}

// An Overwrite is a file that a later layer replaced by something else.
type Overwrite struct {
	Path         string
	Below, Above int // layers, from 0
}

// A Tree is built by [Tree.Add], layer by layer. The zero value is empty and
// keeps no content. It is not safe for concurrent use.
type Tree struct {
	// Keep says of which files the content is kept, by their absolute paths.
	Keep func(path string) bool

	// Hash makes the tree compute sums and record overwrites.
	Hash bool

	Overwrites []Overwrite // in the order in which they happened
	Faults     []string    // entries that no layer may hold, one line each

	root   node
	layer  int   // that is being added
	count  int   // nodes
	visits int64 // of nodes, for whiteouts
	kept   int64 // bytes of content
}

// A node is an entry with what is below it.
type node struct {
	Entry
	below map[string]*node
}

const (
	// maxKept bounds the content of one file that is kept, and maxAllKept of
	// all of them, in bytes.
	maxKept    = 64 << 20
	maxAllKept = 256 << 20

	// maxEntries bounds a tree, and with it the memory; maxVisits bounds the
	// time that whiteouts can take.
	maxEntries = 5_000_000
	maxVisits  = 20_000_000

	// maxName bounds a path, in bytes, as Linux does.
	maxName = 4096

	// maxLinks bounds how many symlinks one path follows.
	maxLinks = 40

	// maxOverwrites bounds how many are recorded.
	maxOverwrites = 1000

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// ErrTooLarge means that layers hold more than can be judged.
var ErrTooLarge = errors.New("the layers hold more entries or larger files than can be judged")

// Add lays one layer, an uncompressed tar, over the tree.
func (t *Tree) Add(ctx context.Context, layer io.Reader) error {
	t.root.Kind, t.root.Mode = Dir, 0o755
	defer func() { t.layer++ }()
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if t.count > maxEntries || t.visits > maxVisits || t.kept > maxAllKept {
			return ErrTooLarge
		}
		name, ok := local(h.Name)
		if !ok {
			t.fault("%q leads out of the layer", h.Name)
			continue
		}
		if len(name) > maxName {
			t.fault("%.40q… is longer than a path can be", h.Name)
			continue
		}
		if name == "/" {
			continue
		}
		dir, base := path.Split(name)
		dir = t.parent(path.Clean(dir))
		switch {
		case base == opaque:
			if d := t.at(dir); d != nil {
				t.clear(d)
			}
			continue
		case strings.HasPrefix(base, whiteout):
			t.remove(dir, base[len(whiteout):])
			continue
		}
		e, err := t.read(h, r, path.Join(dir, base))
		if err != nil {
			return err
		}
		if e != nil {
			e.Layer = t.layer
			t.put(dir, base, *e)
		}
	}
}

// local returns the absolute path that a name in a tar stands for, and whether
// it stays inside.
func local(name string) (string, bool) {
	for e := range strings.SplitSeq(name, "/") {
		if e == ".." {
			return "", false
		}
	}
	return path.Clean("/" + name), true
}

func (t *Tree) fault(format string, args ...any) {
	const enough = 20
	if len(t.Faults) < enough {
		t.Faults = append(t.Faults, fmt.Sprintf(format, args...))
	}
}

// read makes an entry of a header and its content; nil if it is none.
func (t *Tree) read(h *tar.Header, content io.Reader, name string) (*Entry, error) {
	e := &Entry{Stated: true, Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Kind, e.Size = File, h.Size
		if t.Keep != nil && t.Keep(name) {
			if h.Size > maxKept {
				return nil, ErrTooLarge
			}
			var err error
			if e.Data, err = io.ReadAll(content); err != nil {
				return nil, err
			}
			t.kept += int64(len(e.Data))
			e.Sum = sha256.Sum256(e.Data)
			return e, nil
		}
		if t.Hash {
			sum := sha256.New()
			if _, err := io.Copy(sum, content); err != nil {
				return nil, err
			}
			sum.Sum(e.Sum[:0])
		}
	case tar.TypeDir:
		e.Kind = Dir
	case tar.TypeSymlink:
		e.Kind, e.Link, e.Sum = Symlink, h.Linkname, sha256.Sum256([]byte(h.Linkname))
	case tar.TypeLink:
		target, ok := local(h.Linkname)
		if !ok {
			t.fault("%q is a hard link that leads out of the layer", h.Name)
			return nil, nil
		}
		to := t.at(path.Join(t.parent(path.Dir(target)), path.Base(target)))
		if to == nil || to.Kind == Dir {
			t.fault("%q is a hard link to %q, which is not there", h.Name, h.Linkname)
			return nil, nil
		}
		again := to.Entry
		return &again, nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.Kind = Other
	default: // headers of the format itself
		return nil, nil
	}
	return e, nil
}

// at returns the node at an absolute path, or nil.
func (t *Tree) at(name string) *node {
	n := &t.root
	for elem := range strings.SplitSeq(strings.TrimPrefix(path.Clean("/"+name), "/"), "/") {
		if elem == "" {
			continue
		}
		if n = n.below[elem]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns where a directory of a layer's names really is: a symlink of
// the layers below is followed, as unpacking does.
func (t *Tree) parent(dir string) string {
	if dir == "/" {
		return dir
	}
	n := t.at(dir)
	if n != nil && n.Kind == Dir {
		return dir
	}
	if n == nil || n.Layer != t.layer {
		if real, _, ok := Resolve(t, dir); ok {
			return real
		}
	}
	return path.Join(t.parent(path.Dir(dir)), path.Base(dir))
}

// put writes an entry, and the directories above it that there are not.
func (t *Tree) put(dir, base string, e Entry) {
	at, name := &t.root, ""
	for elem := range strings.SplitSeq(strings.TrimPrefix(dir, "/"), "/") {
		if elem == "" {
			continue
		}
		name += "/" + elem
		next := at.below[elem]
		if next == nil {
			next = t.hang(at, elem)
		}
		if next.Kind != Dir {
			t.overwrite(name, next, Entry{Kind: Dir, Layer: e.Layer})
			next.Entry = Entry{Kind: Dir, Mode: 0o755, Layer: e.Layer}
		}
		at = next
	}
	n := at.below[base]
	if n == nil {
		n = t.hang(at, base)
	} else {
		t.overwrite(path.Join(dir, base), n, e)
		if e.Kind != Dir {
			t.drop(n)
		}
	}
	n.Entry = e
}

func (t *Tree) hang(at *node, name string) *node {
	n := &node{}
	if at.below == nil {
		at.below = map[string]*node{}
	}
	at.below[name] = n
	t.count++
	return n
}

// overwrite notes that e replaces what is at n, if that is another thing.
func (t *Tree) overwrite(name string, n *node, e Entry) {
	if !t.Hash || n.Kind == 0 || n.Layer == e.Layer || len(t.Overwrites) == maxOverwrites {
		return
	}
	if (n.Kind != Dir || e.Kind != Dir) && (n.Kind != e.Kind || n.Sum != e.Sum) {
		t.Overwrites = append(t.Overwrites, Overwrite{name, n.Layer, e.Layer})
	}
}

// remove removes a name that layers below wrote: what the layer itself wrote
// stays, whatever the order of its entries.
func (t *Tree) remove(dir, base string) {
	d := t.at(dir)
	if d == nil {
		return
	}
	n := d.below[base]
	if n == nil || base == "" {
		return
	}
	t.clear(n)
	if n.Layer != t.layer && len(n.below) == 0 {
		delete(d.below, base)
		t.count--
	}
}

// clear removes what layers below wrote in a directory. A directory that this
// layer wrote something in stays as one that nobody states.
func (t *Tree) clear(n *node) {
	for name, k := range n.below {
		t.visits++
		t.clear(k)
		switch {
		case k.Layer == t.layer:
		case len(k.below) == 0:
			delete(n.below, name)
			t.count--
		default:
			k.Entry = Entry{Kind: Dir, Mode: 0o755, Layer: t.layer}
		}
	}
}

// drop removes all that is below n.
func (t *Tree) drop(n *node) {
	for _, k := range n.below {
		t.visits++
		t.drop(k)
		t.count--
	}
	n.below = nil
}
