package inventory

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// A Stack is the layers of one Kit, lowest first, without those that it shares
// with a Kit below it.
type Stack struct {
	Name   string
	Layers []List
}

// A Clash is a path for which two Kits bring different things.
type Clash struct {
	Path  string // absolute
	Names [2]string
	What  [2]string // what each brings, e.g. "a file", "the removal of it"
}

// Clashes returns the paths, sorted, that the stacks do not agree on, where
// stacks[0] is at the bottom of the composition. Directories agree with each
// other, and so do entries that are equal but for their times. A removal clashes
// with whatever another Kit has at the path or below it; the bottom's own
// removals concern nobody. Each path is reported once, for the first two Kits.
func Clashes(stacks []Stack) []Clash {
	if len(stacks) < 2 {
		return nil
	}
	type holder struct {
		stack int
		entry Entry
	}
	// The bottom is large and the others are small: only what those bring is
	// looked up in it.
	held := map[string]holder{}
	out := map[string]Clash{}
	clash := func(p string, a, b holder) {
		if _, ok := out[p]; !ok {
			out[p] = Clash{
				Path:  "/" + p,
				Names: [2]string{stacks[a.stack].Name, stacks[b.stack].Name},
				What:  [2]string{what(a.entry), what(b.entry)},
			}
		}
	}
	var removals []holder
	for i, s := range stacks[1:] {
		for _, e := range merged(s.Layers) {
			h := holder{i + 1, e}
			if e.Kind == Whiteout || e.Opaque {
				removals = append(removals, h)
			}
			first, ok := held[e.Path]
			if !ok {
				below, found := lookUp(stacks[0].Layers, e.Path)
				if !found {
					held[e.Path] = h
					continue
				}
				first = holder{0, below}
				held[e.Path] = first
			}
			// An opaque directory hides what is below it, not itself.
			a, b := first.entry, e
			a.Opaque, b.Opaque = false, false
			if !a.Same(b) {
				clash(e.Path, first, h)
			}
		}
	}
	// Removals of a path that only a parent of others' files is.
	for _, r := range removals {
		for p, h := range held {
			if h.stack != r.stack && strings.HasPrefix(p, r.entry.Path+"/") && h.entry.Kind != Dir && h.entry.Kind != Whiteout {
				clash(p, h, r)
			}
		}
		for _, inv := range stacks[0].Layers {
			if e, ok := firstBelow(stacks[0].Layers, inv, r.entry.Path); ok {
				clash(e.Path, holder{0, e}, r)
			}
		}
	}
	return slices.SortedFunc(maps.Values(out), func(a, b Clash) int { return strings.Compare(a.Path, b.Path) })
}

func what(e Entry) string {
	switch {
	case e.Kind == Whiteout, e.Kind == Dir && e.Opaque:
		return "the removal of it"
	case e.Kind == Dir:
		return "a directory"
	case e.Kind == Symlink:
		return "a symlink"
	case e.Kind == Fifo:
		return "a fifo"
	}
	return "a file"
}

// merged returns what a stack brings in the end, in no particular order.
func merged(layers []List) []Entry {
	if len(layers) == 1 {
		return layers[0]
	}
	final := map[string]Entry{}
	for _, inv := range layers {
		for _, e := range inv {
			if old, ok := final[e.Path]; ok && old.Kind == Dir && (e.Kind != Dir || e.Opaque) || e.Kind == Whiteout {
				for p := range final { // only removals come here, and they are few
					if strings.HasPrefix(p, e.Path+"/") {
						delete(final, p)
					}
				}
			}
			if old := final[e.Path]; old.Opaque && e.Kind == Dir {
				e.Opaque = true
			}
			final[e.Path] = e
		}
	}
	return slices.Collect(maps.Values(final))
}

// lookUp finds what a stack has at p. Removals inside it have happened; what it
// has nothing for it does not find.
func lookUp(layers []List, p string) (Entry, bool) {
	for _, inv := range slices.Backward(layers) {
		if e, ok := inv.Find(p); ok {
			return e, e.Kind != Whiteout
		}
		// Hidden by something on the way: a whiteout, an opaque directory,
		// or a file where the lower layer had a directory.
		for at := path.Dir(p); at != "."; at = path.Dir(at) {
			if e, ok := inv.Find(at); ok {
				if e.Kind != Dir || e.Opaque {
					return Entry{}, false
				}
				break // its own parents are directories too
			}
		}
	}
	return Entry{}, false
}

// firstBelow finds something that is not a directory below dir in inv, one of
// layers, and that the layers above do not hide.
func firstBelow(layers []List, inv List, dir string) (Entry, bool) {
	i, _ := slices.BinarySearchFunc(inv, dir+"/", func(e Entry, p string) int { return strings.Compare(e.Path, p) })
	for _, e := range inv[i:] {
		if !strings.HasPrefix(e.Path, dir+"/") {
			break
		}
		if e.Kind == Dir || e.Kind == Whiteout {
			continue
		}
		if shown, ok := lookUp(layers, e.Path); ok {
			return shown, true
		}
	}
	return Entry{}, false
}
