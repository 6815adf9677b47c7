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
	"maps"
	"path"
	"slices"
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

	entries map[string]*Entry // by absolute path, without the root
	layers  int
}

const (
	// maxKept bounds the content of one file that is kept, in bytes.
	maxKept = 64 << 20

	// maxEntries bounds a tree, and with it the memory.
	maxEntries = 5_000_000

	// maxLinks bounds how many symlinks one path follows.
	maxLinks = 40

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// ErrTooLarge means that layers hold more than can be judged.
var ErrTooLarge = errors.New("the layers hold more entries or larger files than can be judged")

// Add lays one layer, an uncompressed tar, over the tree.
func (t *Tree) Add(ctx context.Context, layer io.Reader) error {
	if t.entries == nil {
		t.entries = map[string]*Entry{}
	}
	own := map[string]bool{} // written by this layer: its whiteouts spare them
	n := t.layers
	t.layers++
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
		if len(t.entries) > maxEntries {
			return ErrTooLarge
		}
		name, ok := local(h.Name)
		if !ok {
			t.fault("%q leads out of the layer", h.Name)
			continue
		}
		if name == "/" {
			continue
		}
		dir, base := path.Split(name)
		dir = t.parent(path.Clean(dir), own)
		switch {
		case base == opaque:
			t.removeBelow(dir, own)
			continue
		case strings.HasPrefix(base, whiteout):
			gone := path.Join(dir, base[len(whiteout):])
			t.removeBelow(gone, own)
			if !own[gone] {
				delete(t.entries, gone)
			}
			continue
		}
		e, err := t.read(h, r, path.Join(dir, base))
		if err != nil {
			return err
		}
		if e != nil {
			e.Layer = n
			t.put(dir, base, e, own)
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
		to := t.entries[path.Join(t.parent(path.Dir(target), nil), path.Base(target))]
		if to == nil || to.Kind == Dir {
			t.fault("%q is a hard link to %q, which is not there", h.Name, h.Linkname)
			return nil, nil
		}
		again := *to
		return &again, nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.Kind = Other
	default: // headers of the format itself
		return nil, nil
	}
	return e, nil
}

// parent returns where a directory of a layer's names really is: a symlink of
// the layers below is followed, as unpacking does.
func (t *Tree) parent(dir string, own map[string]bool) string {
	if dir == "/" {
		return dir
	}
	e := t.entries[dir]
	if e != nil && e.Kind == Dir {
		return dir
	}
	if real, _, ok := t.Resolve(dir); ok && !own[dir] {
		return real
	}
	return path.Join(t.parent(path.Dir(dir), own), path.Base(dir))
}

func (t *Tree) put(dir, base string, e *Entry, own map[string]bool) {
	for d := dir; d != "/"; d = path.Dir(d) {
		if old := t.entries[d]; old != nil && old.Kind == Dir {
			break
		}
		t.entries[d] = &Entry{Kind: Dir, Mode: 0o755, Layer: e.Layer}
		own[d] = true
	}
	name := path.Join(dir, base)
	if old := t.entries[name]; old != nil {
		if old.Kind == Dir && e.Kind != Dir {
			t.removeBelow(name, nil)
		}
		if t.Hash && old.Layer != e.Layer && (old.Kind != Dir || e.Kind != Dir) && (old.Kind != e.Kind || old.Sum != e.Sum) {
			t.Overwrites = append(t.Overwrites, Overwrite{name, old.Layer, e.Layer})
		}
	}
	t.entries[name] = e
	own[name] = true
}

// removeBelow removes what is below dir, but for what spare holds.
func (t *Tree) removeBelow(dir string, spare map[string]bool) {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	maps.DeleteFunc(t.entries, func(p string, _ *Entry) bool { return strings.HasPrefix(p, prefix) && !spare[p] })
}

// At returns the entry at an absolute path, following no symlink.
func (t *Tree) At(name string) (Entry, bool) {
	e := t.entries[path.Clean("/"+name)]
	if e == nil {
		return Entry{}, false
	}
	return *e, true
}

// Resolve follows name, symlinks included, within the tree, and returns where it
// leads. It is false if it leads nowhere.
func (t *Tree) Resolve(name string) (string, Entry, bool) {
	at, rest := "/", strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, elem)
		e := t.entries[next]
		switch {
		case e == nil:
			return "", Entry{}, false
		case e.Kind == Symlink:
			if links++; links > maxLinks {
				return "", Entry{}, false
			}
			if path.IsAbs(e.Link) {
				at = "/"
			}
			rest = append(strings.Split(e.Link, "/"), rest...)
			continue
		case e.Kind != Dir && len(rest) > 0:
			return "", Entry{}, false
		}
		at = next
	}
	if at == "/" {
		return at, Entry{Kind: Dir, Mode: 0o755}, true
	}
	return at, *t.entries[at], true
}

// Paths returns all paths of one kind, sorted.
func (t *Tree) Paths(k Kind) []string {
	var out []string
	for p, e := range t.entries {
		if e.Kind == k {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// Text returns the kept content of the file that name leads to, and whether
// there is such a file.
func (t *Tree) Text(name string) (string, bool) {
	_, e, ok := t.Resolve(name)
	if !ok || e.Kind != File {
		return "", false
	}
	return string(e.Data), true
}
