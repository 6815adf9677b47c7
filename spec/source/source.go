// Package source is a YAML or JSON document as a tree that knows where each
// value stands, read with bounds on depth, number and size of what it expands
// to. It knows nothing of descriptors; package spec reads them from it.
//
// Two quick readers serve what nearly all descriptors are: compact JSON once
// published, and a plain part of YAML as authored. Everything else goes through
// the YAML parser, which also has the last word about what is faulty. What two
// readers accept, both read alike.
package source

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A Kind is the JSON kind of a value.
type Kind uint8

// The kinds. The zero value is none of them.
const (
	Object Kind = iota + 1
	Array
	Text
	Number
	Boolean
	Null
)

// String returns the kind as a message names it.
func (k Kind) String() string {
	return [...]string{"nothing", "a mapping", "a list", "a string", "a number", "a boolean", "null"}[k]
}

// A Node is one value. Children are a linked list, so that nodes come out of a
// slab and small documents cost few allocations. Do not change a Node.
type Node struct {
	Kind        Kind
	Key         string // within an object
	Text        string // of a scalar: the value of a string, the spelling of others
	Pos, KeyPos Position

	First, Next *Node // the first child; the next of the same parent
	Count       int   // of children

	parent, last *Node
	spelled      bool  // a number whose text is already JSON
	end          int32 // JSON: offset behind the value; 0 for YAML
}

// A Position is a place in the text. YAML knows lines and columns, from 1; for
// JSON only the offset is kept, Line is 0 and [Position.Resolve] computes the
// rest.
type Position struct{ Line, Column, Offset int32 }

// Resolve returns line and column, from 1, in the text p belongs to.
func (p Position) Resolve(text string) (line, column int) {
	if p.Line > 0 {
		return int(p.Line), int(p.Column)
	}
	offset := min(int(p.Offset), len(text))
	line = 1 + strings.Count(text[:offset], "\n")
	start := strings.LastIndexByte(text[:offset], '\n') + 1
	return line, 1 + utf8.RuneCountInString(text[start:offset])
}

// A SyntaxError is a fault of the text itself, or one of its bounds.
type SyntaxError struct {
	Pos     Position
	Message string
}

func (e *SyntaxError) Error() string { return e.Message }

// Parse builds the tree of the first document of text. The error is a
// [SyntaxError], or io.EOF if there is no document.
func Parse(text string) (*Node, error) {
	if i := invalidUTF8(text); i >= 0 {
		return nil, &SyntaxError{Position{Offset: int32(i)}, "the text is not UTF-8"}
	}
	if t := strings.TrimLeft(text, " \t\r\n"); strings.HasPrefix(t, "{") {
		if root, err := parseJSON(text); !errors.Is(err, errNotJSON) {
			return root, err
		}
	}
	if err := checkMarks(text); err != nil {
		return nil, err
	}
	if root, ok := parsePlain(text); ok {
		return root, nil
	}
	root, err := parseYAML(text)
	var se *SyntaxError
	if err != nil && !errors.Is(err, io.EOF) && !errors.As(err, &se) {
		err = &SyntaxError{Position{Line: 1, Column: 1}, err.Error()}
	}
	return root, err
}

func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

func (n *Node) add(child *Node) {
	if n.last == nil {
		n.First = child
	} else {
		n.last.Next = child
	}
	n.last = child
	n.Count++
	child.parent = n
}

// Path returns the dotted path of n. It is computed when somebody asks: nearly
// all nodes are fine.
func (n *Node) Path() string {
	if n.parent == nil {
		return ""
	}
	p := n.parent.Path()
	if n.parent.Kind == Array {
		i := 0
		for c := n.parent.First; c != n; c = c.Next {
			i++
		}
		return p + "[" + strconv.Itoa(i) + "]"
	}
	return join(p, n.Key)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// FirstChild returns First; nil if there is no n.
func (n *Node) FirstChild() *Node {
	if n == nil {
		return nil
	}
	return n.First
}

// Child returns the member of that key; nil if there is none, or no n.
func (n *Node) Child(key string) *Node {
	if n == nil {
		return nil
	}
	for c := n.First; c != nil; c = c.Next {
		if c.Key == key {
			return c
		}
	}
	return nil
}

// slab hands out nodes by the hundred.
type slab struct {
	free  []Node
	total int
}

const slabSize = 128

// maxNodes bounds the nodes of one document, aliases expanded. A descriptor of
// the largest legal size holds fewer.
const maxNodes = 150_000

func (s *slab) new() *Node {
	if len(s.free) == 0 {
		s.free = make([]Node, slabSize)
	}
	n := &s.free[0]
	s.free = s.free[1:]
	s.total++
	return n
}

// DuplicateKeys calls report for every child of n whose key occurred before.
func (n *Node) DuplicateKeys(report func(*Node)) {
	const few = 12
	if n.Count <= few {
		for c := n.First; c != nil; c = c.Next {
			for d := n.First; d != c; d = d.Next {
				if d.Key == c.Key {
					report(c)
					break
				}
			}
		}
		return
	}
	seen := make(map[string]bool, n.Count)
	for c := n.First; c != nil; c = c.Next {
		if seen[c.Key] {
			report(c)
		}
		seen[c.Key] = true
	}
}

// Locate returns the node at a dotted path, or the deepest one on the way to
// it. Keys may hold dots, so the longest key that fits is taken.
func Locate(root *Node, path string) (n *Node, exact bool) {
	n = root
	for path != "" && n != nil {
		var next *Node
		rest := ""
		if strings.HasPrefix(path, "[") {
			if n.Kind == Array {
				if i := strings.IndexByte(path, ']'); i > 0 {
					if index, err := strconv.Atoi(path[1:i]); err == nil {
						next, rest = n.First, path[i+1:]
						for ; next != nil && index > 0; index-- {
							next = next.Next
						}
					}
				}
			}
		} else if n.Kind == Object {
			p := strings.TrimPrefix(path, ".")
			best := -1
			for c := n.First; c != nil; c = c.Next {
				if len(c.Key) > best && strings.HasPrefix(p, c.Key) {
					if r := p[len(c.Key):]; r == "" || r[0] == '.' || r[0] == '[' {
						next, rest, best = c, r, len(c.Key)
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

// Line returns line number n, from 1, without its end.
func Line(src string, n int) string {
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

// Raw returns the bytes of a value that was read from JSON, if they are compact
// and need no repair. Text is what n was read from.
func (n *Node) Raw(text []byte) (raw []byte, ok bool) {
	if n.end == 0 {
		return nil, false
	}
	raw = text[n.Pos.Offset:n.end:n.end]
	for _, c := range raw {
		if c == '\\' || c == ' ' || c == '\n' || c == '\r' || c == '\t' {
			return nil, false
		}
	}
	return raw, true
}

// AppendJSON appends n as compact JSON, keys in the order of the text.
func (n *Node) AppendJSON(b []byte) []byte {
	switch n.Kind {
	case Object, Array:
		closing := byte(']')
		if n.Kind == Object {
			b, closing = append(b, '{'), '}'
		} else {
			b = append(b, '[')
		}
		for c := n.First; c != nil; c = c.Next {
			if c != n.First {
				b = append(b, ',')
			}
			if n.Kind == Object {
				b = append(AppendString(b, c.Key), ':')
			}
			b = c.AppendJSON(b)
		}
		return append(b, closing)
	case Text:
		return AppendString(b, n.Text)
	case Number:
		if n.spelled {
			return append(b, n.Text...)
		}
		s, _ := yamlNumber(n.Text)
		return append(b, s...)
	case Boolean:
		return strconv.AppendBool(b, n.True())
	}
	return append(b, "null"...)
}

// True returns the value of a boolean.
func (n *Node) True() bool { return strings.EqualFold(n.Text, "true") }

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			b, _ = jsontext.AppendQuote(b, s)
			return b
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
