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
	Sum    [32]byte // of the content and the extended attributes, if the tree hashes
	Data   []byte   // if the tree keeps it
	Layer  int      // the layer that wrote it, from 0
}

// Executable reports whether a process with these ids may execute e. The
// superuser may as soon as anybody may.
func (e Entry) Executable(uid, gid uint32) bool {
	return e.Kind == File && e.mayExecute(uid, gid)
}

// Enterable reports whether a process with these ids, which are not the superuser's,
// reaches what is in a directory.
func (e Entry) Enterable(uid, gid uint32) bool { return e.Kind == Dir && e.mayExecute(uid, gid) }

func (e Entry) mayExecute(uid, gid uint32) bool {
	switch {
	case uid == 0:
		return e.Mode&0o111 != 0
	case e.UID >= 0 && uint32(e.UID) == uid:
		return e.Mode&0o100 != 0
	case e.GID >= 0 && uint32(e.GID) == gid:
		return e.Mode&0o010 != 0
	}
	return e.Mode&0o001 != 0
}

// An Overwrite is a file that a later layer replaced by something else, with
// another owner or mode included, or removed.
type Overwrite struct {
	Path         string
	Below, Above int // layers, from 0
	Removed      bool
}

// A Tree is built by [Tree.Add], layer by layer. The zero value is empty and
// keeps no content. It is not safe for concurrent use.
type Tree struct {
	// Keep says of which files the content is kept, by their absolute paths.
	Keep func(path string) bool

	// Hash makes the tree compute sums and record overwrites.
	Hash bool

	// Overwrites are in the order in which they happened, a few of each pair of
	// layers.
	Overwrites []Overwrite
	Faults     []string // entries that no layer may hold, one line each

	root    node
	layer   int   // that is being added
	count   int   // nodes
	visits  int64 // of nodes, for whiteouts
	steps   int64 // on ways to entries that are deep or lead through symlinks
	kept    int64 // bytes of content
	content int64 // bytes of all files, holes included

	pairs map[[2]int]int // how many overwrites are recorded of two layers
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
	// time that whiteouts can take, and maxSteps that of ways to entries, which
	// can be of two thousand directories each, or lead through forty symlinks of as
	// many. A directory of one that is deeper than usualDepth costs deepCost steps:
	// a compressed layer holds any number of those.
	maxEntries = 5_000_000
	maxVisits  = 20_000_000
	maxSteps   = 64_000_000
	usualDepth = 128
	deepCost   = 16

	// maxName bounds a path, in bytes: what Linux allows, without what the
	// place takes where a layer is unpacked. maxTarget is its bound for a
	// symlink's target.
	maxName   = 4096 - 256
	maxTarget = 4096

	// maxLinks bounds how many symlinks one path follows.
	maxLinks = 40

	// maxElement bounds a name in a directory, in bytes, as Linux does.
	maxElement = 255

	// maxOverwrites bounds how many are recorded of two layers. All together
	// would let a Kit that updates many of its own files hide what it does to
	// another's.
	maxOverwrites = 6

	// maxContent bounds all files, in bytes. A hole costs no byte of a tar.
	maxContent = 64 << 30

	// maxID is the largest user or group that a machine has to have.
	maxID = 65535

	// devices is where every machine has its own, whatever a layer says.
	devices = "/dev/"

	xattrs = "SCHILY.xattr." // begins the names of extended attributes

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
		if t.count > maxEntries || t.visits > maxVisits || t.steps > maxSteps || t.kept > maxAllKept || t.content > maxContent {
			return ErrTooLarge
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, ok := local(h.Name)
		if !ok {
			t.fault("%q leads out of the layer", h.Name)
			continue
		}
		if !fits(name) {
			t.fault("%.40q… is longer than a path can be", h.Name)
			continue
		}
		if name == "/" {
			if h.Typeflag != tar.TypeDir {
				t.fault("%q puts something in the place of the root", h.Name)
			}
			continue
		}
		if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
			t.fault("%q belongs to %d:%d; a machine has the ids 0 to %d", h.Name, h.Uid, h.Gid, maxID)
			continue
		}
		dir, base := path.Split(name)
		dir = t.parent(path.Clean(dir))
		if depth := strings.Count(name, "/"); depth > usualDepth {
			t.steps += deepCost * int64(depth)
		}
		if !fits(path.Join(dir, base)) {
			t.fault("%.40q… leads to a path that is longer than one can be", h.Name)
			continue
		}
		switch {
		case base == opaque:
			if d := t.at(dir); d != nil {
				t.clear(dir, d)
			}
			continue
		case base == whiteout, base == whiteout+".", base == whiteout+"..":
			// To some programs the last one is the directory above.
			t.fault("%q is a whiteout of nothing", h.Name)
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

// fits reports whether Linux has room for an absolute path.
func fits(name string) bool {
	if len(name) > maxName {
		return false
	}
	for e := range strings.SplitSeq(name, "/") {
		if len(e) > maxElement {
			return false
		}
	}
	return true
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
	case tar.TypeReg, tar.TypeGNUSparse:
		e.Kind, e.Size = File, h.Size
		if t.content += max(h.Size, 0); h.Size > maxContent || t.content > maxContent {
			return nil, ErrTooLarge
		}
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
			break
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
		if h.Linkname == "" || len(h.Linkname) >= maxTarget || strings.ContainsRune(h.Linkname, 0) {
			t.fault("%q is a symlink without a usable target", h.Name)
			return nil, nil
		}
		// The mode of a symlink means nothing.
		e.Kind, e.Link, e.Mode, e.Sum = Symlink, h.Linkname, 0o777, sha256.Sum256([]byte(h.Linkname))
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
		if to.Layer != t.layer {
			// A layer is unpacked by itself, and kept for all Kits that have it.
			t.fault("%q is a hard link to %q, which is in a layer below", h.Name, h.Linkname)
			return nil, nil
		}
		again := to.Entry
		return &again, nil
	case tar.TypeFifo:
		e.Kind = Other
	case tar.TypeChar, tar.TypeBlock:
		if stated, _ := local(h.Name); !strings.HasPrefix(stated, devices) {
			t.fault("%q is a device node", h.Name)
		}
		return nil, nil
	default:
		t.fault("%q has the unknown type %q", h.Name, h.Typeflag)
		return nil, nil
	}
	e.Sum = t.attributed(e.Sum, h)
	return e, nil
}

// attributed mixes the extended attributes of an entry into its sum.
func (t *Tree) attributed(sum [32]byte, h *tar.Header) [32]byte {
	if !t.Hash || len(h.PAXRecords) == 0 {
		return sum
	}
	all, any := sha256.New(), false
	all.Write(sum[:])
	for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if strings.HasPrefix(k, xattrs) {
			any = true
			fmt.Fprintf(all, "%q %q", k, h.PAXRecords[k])
		}
	}
	if any {
		all.Sum(sum[:0])
	}
	return sum
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

// parent returns where a directory of a layer's names really is: symlinks are
// followed, as unpacking does. One of this layer is followed to where there is
// nothing yet, too; one of a layer below gives way to a directory then.
func (t *Tree) parent(dir string) string {
	n := &t.root
	for elem := range strings.SplitSeq(strings.TrimPrefix(dir, "/"), "/") {
		if n = n.below[elem]; n == nil || n.Kind == Symlink {
			break
		}
	}
	if n == nil || n.Kind != Symlink {
		return dir
	}
	at, rest := "/", dir
	for links := 0; rest != ""; {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		t.steps += 1 + int64(strings.Count(at, "/"))
		switch elem {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, elem)
		n := t.at(at)
		if n == nil || n.Kind != Symlink {
			continue
		}
		if n.Layer != t.layer {
			if _, e, ok := Resolve(t, at); !ok || e.Kind != Dir {
				continue
			}
		}
		if links++; links > maxLinks || len(n.Link)+len(rest) > 2*maxTarget {
			t.fault("%q goes through too many symlinks", dir)
			return dir
		}
		if at = path.Dir(at); path.IsAbs(n.Link) {
			at = "/"
		}
		rest = n.Link + "/" + rest
	}
	return at
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
			if next.Kind != 0 && next.Kind != Symlink && next.Layer == t.layer {
				t.fault("%q lies below %q, which is no directory", path.Join(dir, base), name)
			}
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
			t.drop(path.Join(dir, base), n)
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
	if n.Kind == Dir && e.Kind == Dir {
		return
	}
	if n.Kind != e.Kind || n.Sum != e.Sum || n.Mode != e.Mode || n.UID != e.UID || n.GID != e.GID {
		t.note(name, n, false)
	}
}

// note records what the layer that is being added does to n of a layer below.
func (t *Tree) note(name string, n *node, removed bool) {
	pair := [2]int{n.Layer, t.layer}
	if !t.Hash || n.Kind == 0 || n.Layer == t.layer || t.pairs[pair] == maxOverwrites {
		return
	}
	if t.pairs == nil {
		t.pairs = map[[2]int]int{}
	}
	t.pairs[pair]++
	t.Overwrites = append(t.Overwrites, Overwrite{name, n.Layer, t.layer, removed})
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
	t.clear(path.Join(dir, base), n)
	if n.Layer != t.layer && len(n.below) == 0 {
		t.gone(path.Join(dir, base), n)
		delete(d.below, base)
		t.count--
	}
}

// clear removes what layers below wrote in a directory. A directory that this
// layer wrote something in stays as one that nobody states.
func (t *Tree) clear(dir string, n *node) {
	var names []string // in order, so that a report is the same every time
	for name, k := range n.below {
		if t.visits++; k.Layer != t.layer || k.below != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		k, at := n.below[name], path.Join(dir, name)
		t.clear(at, k)
		switch {
		case k.Layer == t.layer:
		case len(k.below) == 0:
			t.gone(at, k)
			delete(n.below, name)
			t.count--
		default:
			k.Entry = Entry{Kind: Dir, Mode: 0o755, Layer: t.layer}
		}
	}
}

// gone notes that n is removed. A directory is nothing by itself.
func (t *Tree) gone(name string, n *node) {
	if n.Kind != Dir {
		t.note(name, n, true)
	}
}

// drop removes all that is below n, in whose place something else is put.
func (t *Tree) drop(dir string, n *node) {
	for _, name := range slices.Sorted(maps.Keys(n.below)) {
		k, at := n.below[name], path.Join(dir, name)
		t.visits++
		t.gone(at, k)
		t.drop(at, k)
		t.count--
	}
	n.below = nil
}
