// Package format lays out Kit descriptors in one way: the keys of §4 in their
// order, two blanks of indentation, no trailing blanks, at most one empty line
// in a row.
//
// It moves lines and changes their indentation; it does not print a tree. What
// an author wrote within a line, quotes, comments, flow style, folded text,
// stays byte for byte, and so does the meaning: the result is decoded and
// compared before it is returned. Whether a descriptor is valid is the business
// of package spec.
package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/kitbox-dev/kitbox/spec"
)

// ErrNotDescriptor means that a file holds no descriptor in any of the forms
// of §3.
var ErrNotDescriptor = errors.New("not a Kit descriptor: there is neither a schemaVersion nor a # kit: block")

// errUnsafe means that the layout could not be changed without changing what
// the document says.
var errUnsafe = errors.New("cannot be laid out without changing its meaning")

// order is that of §4, in which descriptors are published too.
var order = []string{
	"schemaVersion", "kind", "displayName", "author", "description", "sourceUrl", "iconUrl", "version", "licenses",
	"provides", "requires", "integrates", "conflicts", "capabilities", "args", "build", "dockerfile", "kits",
}

// Source returns src laid out. Formatting the result again changes nothing. A
// comment descriptor (§3.3) is formatted inside its block and the recipe is
// left alone; a document in flow style, such as JSON, is returned as it is, as
// is all that follows the first YAML document.
//
// Errors: [spec.InvalidError] for text that is not YAML or exceeds the size
// budget, with its place; [ErrNotDescriptor].
func Source(src []byte) ([]byte, error) {
	doc, ds := spec.Decode(src, spec.Options{})
	if len(src) > spec.MaxBytes {
		return nil, fmt.Errorf("the descriptor has %d bytes; more than %d are refused", len(src), spec.MaxBytes)
	}
	if doc == nil {
		return nil, ds.Err()
	}
	if _, comment := doc.Recipe(); comment {
		return inComments(src)
	}
	if doc.Kind == "" && doc.SchemaVersion == "" && !mentions(src, "schemaVersion", "kind") {
		return nil, ErrNotDescriptor
	}
	return layout(src)
}

// mentions reports whether a top-level key is one of keys, whatever its value.
func mentions(src []byte, keys ...string) bool {
	root, err := parse(src)
	if err != nil || root.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(root.Content); i += 2 {
		if slices.Contains(keys, root.Content[i].Value) {
			return true
		}
	}
	return false
}

// inComments formats the block of a comment descriptor.
func inComments(src []byte) ([]byte, error) {
	block, ok := spec.ExtractComment(src)
	if !ok {
		return nil, ErrNotDescriptor
	}
	formatted, err := layout(block.Descriptor)
	if err != nil {
		return nil, err
	}
	lines := bytes.SplitAfter(src, []byte("\n"))
	from := block.Line - 1
	to := from + bytes.Count(block.Descriptor, []byte("\n"))
	end := "\n"
	if bytes.HasSuffix(lines[from-1], []byte("\r\n")) {
		end = "\r\n"
	}
	var out bytes.Buffer
	out.Write(bytes.Join(lines[:from], nil))
	for l := range strings.Lines(string(formatted)) {
		l = strings.TrimSuffix(l, "\n")
		if l == "" {
			out.WriteString("#" + end)
		} else {
			out.WriteString("#   " + l + end)
		}
	}
	out.Write(bytes.Join(lines[min(to, len(lines)):], nil))
	again, ok := spec.ExtractComment(out.Bytes())
	if !ok || !bytes.Equal(again.Descriptor, formatted) {
		return nil, errUnsafe
	}
	return out.Bytes(), nil
}

// layout formats the first YAML document of src.
func layout(src []byte) ([]byte, error) {
	text, err := lineFeeds(string(src))
	if err != nil {
		return nil, err
	}
	root, err := parse([]byte(text))
	if err != nil {
		return nil, err
	}
	if root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 || len(root.Content) == 0 {
		return src, nil
	}
	for _, reorder := range []bool{true, false} {
		// An alias must not come before its anchor, and text that ends the
		// file without a line feed must go on doing so: such a document may
		// have to keep its order.
		p := newPage(text)
		if err = p.place(root); err != nil {
			return nil, err
		}
		out := p.print(reorder)
		again, perr := parse([]byte(out))
		if perr == nil && same(root, again, true) {
			return []byte(out), nil
		}
		if out, ok := strings.CutSuffix(out, "\n"); ok && !strings.HasSuffix(text, "\n") {
			// It may have become part of a value.
			if again, err := parse([]byte(out)); err == nil && same(root, again, true) {
				return []byte(out), nil
			}
		}
	}
	return nil, errUnsafe
}

// lineFeeds returns s with one kind of line end and no byte order mark.
func lineFeeds(s string) (string, error) {
	s = strings.TrimPrefix(s, "\ufeff")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	if i := strings.IndexAny(s, "\r\u0085\u2028\u2029"); i >= 0 {
		line := 1 + strings.Count(s[:i], "\n")
		return "", fmt.Errorf("line %d holds a line break that is not a line feed; write it as an escape in double quotes", line)
	}
	return s, nil
}

// parse returns the root of the first document. Package spec has read the same
// text before, so that its size and depth are known to be within bounds.
func parse(src []byte) (root *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML parser gave up: %v", r)
		}
	}()
	l, err := yaml.NewLoader(bytes.NewReader(src), yaml.WithSingleDocument(), yaml.WithUniqueKeys(false))
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := l.Load(&doc); err != nil {
		return nil, err
	}
	root = &doc
	if doc.Kind == yaml.DocumentNode {
		if len(doc.Content) == 0 {
			return nil, io.EOF
		}
		root = doc.Content[0]
	}
	return root, nil
}

// same reports whether two trees say the same in the same spelling. At the top
// the order of the keys does not count.
func same(a, b *yaml.Node, top bool) bool {
	if a.Kind != b.Kind || a.Style != b.Style || a.Value != b.Value || a.Anchor != b.Anchor || a.ShortTag() != b.ShortTag() || len(a.Content) != len(b.Content) {
		return false
	}
	if a.Kind == yaml.AliasNode {
		return (a.Alias == nil) == (b.Alias == nil) && (a.Alias == nil || a.Alias.Value == b.Alias.Value && a.Alias.Kind == b.Alias.Kind)
	}
	x, y := a.Content, b.Content
	if top && a.Kind == yaml.MappingNode {
		x, y = sorted(x), sorted(y)
	}
	for i := range x {
		if !same(x[i], y[i], false) {
			return false
		}
	}
	return true
}

func sorted(content []*yaml.Node) []*yaml.Node {
	type member struct{ k, v *yaml.Node }
	var ms []member
	for i := 0; i+1 < len(content); i += 2 {
		ms = append(ms, member{content[i], content[i+1]})
	}
	slices.SortStableFunc(ms, func(a, b member) int { return strings.Compare(a.k.Value, b.k.Value) })
	out := make([]*yaml.Node, 0, len(content))
	for _, m := range ms {
		out = append(out, m.k, m.v)
	}
	return out
}
