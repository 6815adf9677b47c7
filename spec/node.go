package spec

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A kind is the JSON kind of a node.
type kind uint8

const (
	object kind = iota + 1
	array
	text
	number
	boolean
	null
)

func (k kind) String() string {
	return [...]string{"nothing", "a mapping", "a list", "a string", "a number", "a boolean", "null"}[k]
}

// A node is one value of the source, from YAML or JSON. Children are a linked
// list, so that nodes come out of a slab and small documents cost few
// allocations.
type node struct {
	kind    kind
	spelled bool   // a number whose text is already JSON
	key     string // within an object
	text    string // of a scalar: the value of a string, the spelling of others

	pos, keyPos position
	end         int32 // JSON: offset behind the value; 0 for YAML

	parent, first, last, next *node
	count                     int
}

// A position is a place in the source. YAML knows lines and columns; for JSON
// only the offset is kept and the rest computed when somebody asks.
type position struct{ line, column, offset int32 }

func (n *node) add(child *node) {
	if n.last == nil {
		n.first = child
	} else {
		n.last.next = child
	}
	n.last = child
	n.count++
	child.parent = n
}

// path returns the dotted path of n. It is computed when somebody asks: nearly
// all nodes are fine.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	p := n.parent.path()
	if n.parent.kind == array {
		i := 0
		for c := n.parent.first; c != n; c = c.next {
			i++
		}
		return p + "[" + strconv.Itoa(i) + "]"
	}
	return join(p, n.key)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (n *node) firstChild() *node {
	if n == nil {
		return nil
	}
	return n.first
}

// child returns the member of that key; nil if there is none, or no n.
func (n *node) child(key string) *node {
	if n == nil {
		return nil
	}
	for c := n.first; c != nil; c = c.next {
		if c.key == key {
			return c
		}
	}
	return nil
}

// slab hands out nodes by the hundred.
type slab struct {
	free  []node
	total int
}

const slabSize = 128

// maxNodes bounds the nodes of one document, aliases expanded. A descriptor of
// the largest legal size holds fewer.
const maxNodes = 150_000

func (s *slab) new() *node {
	if len(s.free) == 0 {
		s.free = make([]node, slabSize)
	}
	n := &s.free[0]
	s.free = s.free[1:]
	s.total++
	return n
}

// duplicateKeys calls report for every child of n whose key occurred before.
func duplicateKeys(n *node, report func(*node)) {
	const few = 12
	if n.count <= few {
		for c := n.first; c != nil; c = c.next {
			for d := n.first; d != c; d = d.next {
				if d.key == c.key {
					report(c)
					break
				}
			}
		}
		return
	}
	seen := make(map[string]bool, n.count)
	for c := n.first; c != nil; c = c.next {
		if seen[c.key] {
			report(c)
		}
		seen[c.key] = true
	}
}

// locate returns the node at a dotted path, or the deepest one on the way to
// it. Keys may hold dots, so the longest key that fits is taken.
func locate(root *node, path string) (n *node, exact bool) {
	n = root
	for path != "" && n != nil {
		var next *node
		rest := ""
		if strings.HasPrefix(path, "[") {
			if n.kind == array {
				if i := strings.IndexByte(path, ']'); i > 0 {
					if index, err := strconv.Atoi(path[1:i]); err == nil {
						next, rest = n.first, path[i+1:]
						for ; next != nil && index > 0; index-- {
							next = next.next
						}
					}
				}
			}
		} else if n.kind == object {
			p := strings.TrimPrefix(path, ".")
			best := -1
			for c := n.first; c != nil; c = c.next {
				if len(c.key) > best && strings.HasPrefix(p, c.key) {
					if r := p[len(c.key):]; r == "" || r[0] == '.' || r[0] == '[' {
						next, rest, best = c, r, len(c.key)
					}
				}
			}
		}
		if next == nil {
			return n, false
		}
		n, path = next, rest
	}
	return n, true
}

// lineColumn computes line and column, from 1, of an offset.
func lineColumn(src string, offset int) (line, column int) {
	offset = min(offset, len(src))
	line = 1 + strings.Count(src[:offset], "\n")
	start := strings.LastIndexByte(src[:offset], '\n') + 1
	return line, 1 + utf8.RuneCountInString(src[start:offset])
}

// sourceLine returns line number n, from 1, without its end.
func sourceLine(src string, n int) string {
	for ; n > 1; n-- {
		i := strings.IndexByte(src, '\n')
		if i < 0 {
			return ""
		}
		src = src[i+1:]
	}
	line, _, _ := strings.Cut(src, "\n")
	return strings.TrimSuffix(line, "\r")
}
