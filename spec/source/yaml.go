package source

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxYAMLMarks bounds the commas, brackets and lines of a YAML document before
// it is handed to the parser. The parser needs up to a kilobyte for each, so
// that a hostile file of legal size would otherwise cost half a gigabyte.
const maxYAMLMarks = 40_000

// checkMarks holds src against that bound.
func checkMarks(src string) error {
	marks := 0
	for i := range len(src) {
		switch src[i] {
		case ',', '\n', '[', '{', '&', '*', '!':
			marks++
		}
	}
	if marks > maxYAMLMarks {
		return &SyntaxError{Position{Line: 1, Column: 1}, fmt.Sprintf("more than %d lines and list elements", maxYAMLMarks)}
	}
	return nil
}

// parseYAML builds the tree of the first document of src. It returns io.EOF if
// there is none.
func parseYAML(src string) (*Node, error) {
	loader, err := yaml.NewLoader(strings.NewReader(src), yaml.WithSingleDocument(), yaml.WithUniqueKeys(false), yaml.WithPlugin(depthLimit{}))
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := load(loader, &doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, yamlError(err)
	}
	b := yamlBuilder{}
	root := &doc
	if root.Kind == yaml.DocumentNode {
		if len(root.Content) == 0 {
			return nil, io.EOF
		}
		root = root.Content[0]
	}
	return b.build(root, 0)
}

// load keeps a fault of the parser from ending the process.
func load(l *yaml.Loader, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML parser gave up: %v", r)
		}
	}()
	return l.Load(doc)
}

// depthLimit is a plugin for the loader.
type depthLimit struct{}

func (depthLimit) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (depthLimit) CheckAlias(int, int) error { return nil } // the builder counts nodes

// yamlError keeps the message and the place of a parser error.
func yamlError(err error) error {
	var le *yaml.LoadError
	if !errors.As(err, &le) {
		return &SyntaxError{Position{Line: 1, Column: 1}, err.Error()}
	}
	msg := le.Message
	if le.ContextMsg != "" {
		msg = le.ContextMsg + ": " + msg
	}
	return &SyntaxError{Position{Line: int32(max(le.Mark.Line, 1)), Column: int32(max(le.Mark.Column, 1))}, msg}
}

type yamlBuilder struct {
	slab
	bytes int // text of all scalars and keys, aliases expanded
}

// maxText bounds that text: an alias to one long string costs the tree nothing
// and everything behind it a copy.
const maxText = 2 << 20

func (b *yamlBuilder) build(y *yaml.Node, depth int) (*Node, error) {
	pos := Position{Line: int32(y.Line), Column: int32(y.Column)}
	fail := func(format string, args ...any) (*Node, error) {
		return nil, &SyntaxError{pos, fmt.Sprintf(format, args...)}
	}
	if depth > maxDepth {
		return fail("nested deeper than %d levels, aliases expanded", maxDepth)
	}
	if b.total >= maxNodes {
		return fail("more than %d values, aliases expanded", maxNodes)
	}
	if b.bytes += len(y.Value); b.bytes > maxText {
		return fail("more than %d bytes of text, aliases expanded", maxText)
	}
	switch y.Kind {
	case yaml.AliasNode:
		if y.Alias == nil {
			return fail("an alias without an anchor")
		}
		n, err := b.build(y.Alias, depth+1)
		if n != nil {
			n.Pos = pos
		}
		return n, err
	case yaml.MappingNode:
		if tag := y.ShortTag(); tag != "!!map" {
			return fail("tag %s is not supported", tag)
		}
		n := b.new()
		n.Kind, n.Pos = Object, pos
		return n, b.members(n, y, depth)
	case yaml.SequenceNode:
		if tag := y.ShortTag(); tag != "!!seq" {
			return fail("tag %s is not supported", tag)
		}
		n := b.new()
		n.Kind, n.Pos = Array, pos
		for _, c := range y.Content {
			child, err := b.build(c, depth+1)
			if err != nil {
				return nil, err
			}
			n.add(child)
		}
		return n, nil
	case yaml.ScalarNode:
		n := b.new()
		n.Pos, n.Text = pos, y.Value
		switch tag := y.ShortTag(); tag {
		case "!!str", "!!timestamp", "!!merge":
			n.Kind = Text
		case "!!bool":
			n.Kind = Boolean
			switch strings.ToLower(y.Value) {
			case "true", "false":
			default:
				return fail("%q is not a boolean: write true or false", y.Value)
			}
		case "!!null":
			n.Kind = Null
		case "!!int", "!!float":
			n.Kind, n.spelled = Number, jsonNumber(y.Value)
			if !n.spelled {
				if _, ok := yamlNumber(y.Value); !ok {
					return fail("%s is not a number that JSON can hold", y.Value)
				}
			}
		default:
			return fail("tag %s is not supported", tag)
		}
		return n, nil
	}
	return fail("unexpected YAML node")
}

// members adds the members of y to n. Merge keys (`<<`) contribute what is not
// stated, earlier sources first.
func (b *yamlBuilder) members(n *Node, y *yaml.Node, depth int) error {
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		pos := Position{Line: int32(k.Line), Column: int32(k.Column)}
		for hops := 0; k.Kind == yaml.AliasNode && k.Alias != nil && hops < maxDepth; hops++ {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null" {
			return &SyntaxError{pos, "a key must be a string"}
		}
		if k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		b.bytes += len(k.Value)
		child, err := b.build(v, depth+1)
		if err != nil {
			return err
		}
		child.Key, child.KeyPos = k.Value, pos
		n.add(child)
	}
	if len(merges) == 0 {
		return nil
	}
	have := make(map[string]bool, n.Count)
	for c := n.First; c != nil; c = c.Next {
		have[c.Key] = true
	}
	for _, m := range merges {
		if err := b.merge(n, have, m, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (b *yamlBuilder) merge(n *Node, have map[string]bool, y *yaml.Node, depth int) error {
	src, err := b.build(y, depth)
	if err != nil {
		return err
	}
	if src.Kind == Object {
		for c := src.First; c != nil; {
			next := c.Next
			if !have[c.Key] {
				have[c.Key] = true
				c.Next = nil
				n.add(c)
			}
			c = next
		}
		return nil
	}
	if src.Kind == Array {
		for c := src.First; c != nil; c = c.Next {
			if c.Kind != Object {
				return &SyntaxError{c.Pos, "a merge key takes mappings"}
			}
			for m := c.First; m != nil; {
				next := m.Next
				if !have[m.Key] {
					have[m.Key] = true
					m.Next = nil
					n.add(m)
				}
				m = next
			}
		}
		return nil
	}
	return &SyntaxError{src.Pos, "a merge key takes mappings"}
}

// yamlNumber returns the JSON spelling of a number that YAML spells in its own
// way: 0x1f, 0o17, 1_000, .5, +1.
func yamlNumber(s string) (string, bool) {
	plain := strings.ReplaceAll(s, "_", "")
	if i, ok := new(big.Int).SetString(strings.TrimPrefix(plain, "+"), 0); ok {
		return i.String(), true
	}
	f, err := strconv.ParseFloat(plain, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	return strconv.FormatFloat(f, 'g', -1, 64), true
}
