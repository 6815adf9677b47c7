package tree

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// A View is a file system to look at: that of layers, or one that a builder is
// about to export.
type View interface {
	// At returns what stands at an absolute path whose directory holds no
	// symlink. It follows none itself.
	At(name string) (Entry, bool)

	// Names returns what a directory holds, sorted. It follows no symlink.
	Names(dir string) []string

	// Read returns the content of a file, as far as the view has it. It
	// follows no symlink.
	Read(name string) ([]byte, bool)
}

// A Bounded is a View of which only so much can be asked, because every directory
// costs a question to somebody else.
type Bounded interface {
	View

	// Spare returns how many directories can be looked at for what should be.
	// Looking at more is still possible, for what has to be.
	Spare() int
}

// At implements [View].
func (t *Tree) At(name string) (Entry, bool) {
	n := t.at(name)
	if n == nil {
		return Entry{}, false
	}
	return n.Entry, true
}

// Names implements [View].
func (t *Tree) Names(dir string) []string {
	n := t.at(dir)
	if n == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(n.below))
}

// Read implements [View]. Of files that the tree does not keep, nothing is there.
func (t *Tree) Read(name string) ([]byte, bool) {
	n := t.at(name)
	if n == nil || n.Kind != File {
		return nil, false
	}
	return n.Data, true
}

// Resolve follows name, symlinks included, within a view, and returns where it
// leads. It is false if it leads nowhere.
func Resolve(v View, name string) (string, Entry, bool) {
	at, last := "/", Entry{Kind: Dir, Mode: 0o755}
	rest := strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			last = Entry{Kind: Dir, Mode: 0o755}
			if at != "/" {
				last, _ = v.At(at)
			}
			continue
		}
		next := path.Join(at, elem)
		e, ok := v.At(next)
		switch {
		case !ok:
			return "", Entry{}, false
		case e.Kind == Symlink:
			if links++; links > maxLinks {
				return "", Entry{}, false
			}
			if path.IsAbs(e.Link) {
				at, last = "/", Entry{Kind: Dir, Mode: 0o755}
			}
			rest = append(strings.Split(e.Link, "/"), rest...)
			continue
		case e.Kind != Dir && len(rest) > 0:
			return "", Entry{}, false
		}
		at, last = next, e
	}
	return at, last, true
}

// Text returns the content of the file that name leads to, and whether there is
// such a file.
func Text(v View, name string) (string, bool) {
	at, e, ok := Resolve(v, name)
	if !ok || e.Kind != File {
		return "", false
	}
	b, ok := v.Read(at)
	return string(b), ok
}

// Walk calls see for dir's entries and all below, in the order of their paths,
// until it returns false. It follows no symlink.
func Walk(v View, dir string, see func(name string, e Entry) bool) bool {
	for _, n := range v.Names(dir) {
		name := path.Join(dir, n)
		e, ok := v.At(name)
		if !ok {
			continue
		}
		if !see(name, e) || e.Kind == Dir && !Walk(v, name, see) {
			return false
		}
	}
	return true
}
