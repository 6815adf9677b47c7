package frontend

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v4"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
)

// stagedYAML returns the descriptor that is staged in the image. Once decoded it
// equals the annotation; as text it is what the author wrote, comments and
// order included, as far as publishing did not change it.
func (k *kit) stagedYAML(descriptor []byte) ([]byte, error) {
	if equalsPublished(k.text, descriptor) {
		return k.text, nil
	}
	var authored, published yaml.Node
	if err := yaml.Unmarshal(k.text, &authored); err != nil {
		return nil, fmt.Errorf("reading the descriptor again: %w", err)
	}
	if err := yaml.Unmarshal(descriptor, &published); err != nil {
		return nil, fmt.Errorf("reading the published descriptor again: %w", err)
	}
	if len(authored.Content) == 1 && len(published.Content) == 1 {
		patch(authored.Content[0], published.Content[0])
		if b, err := encodeYAML(&authored); err == nil && equalsPublished(b, descriptor) {
			return b, nil
		}
	}
	// Anchors and merges can make a document that cannot be edited in
	// place. What it says matters more than its comments.
	restyle(&published)
	b, err := encodeYAML(&published)
	if err == nil && !equalsPublished(b, descriptor) {
		err = fmt.Errorf("the staged descriptor differs from the published one")
	}
	return b, err
}

func encodeYAML(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// equalsPublished reports whether text decodes to the published descriptor.
func equalsPublished(text, descriptor []byte) bool {
	doc, ds := spec.Decode(text, spec.Options{Form: capability.Published})
	if doc == nil || ds.HasErrors() {
		return false
	}
	b, err := json.Marshal(doc.Descriptor)
	return err == nil && bytes.Equal(b, descriptor)
}

// patch changes n to say what want says, and leaves alone what already does.
func patch(n, want *yaml.Node) {
	if n.Kind != want.Kind {
		replace(n, want)
		return
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.ShortTag() == want.ShortTag() && n.Value == want.Value {
			return
		}
		style := n.Style
		replace(n, want)
		if style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 && n.ShortTag() == "!!str" {
			n.Style = style
		}
	case yaml.SequenceNode:
		n.Content = n.Content[:min(len(n.Content), len(want.Content))]
		for i, w := range want.Content {
			if i < len(n.Content) {
				patch(n.Content[i], w)
				continue
			}
			restyle(w)
			n.Content = append(n.Content, w)
			n.Style &^= yaml.FlowStyle // it grows: one line would not do
		}
	case yaml.MappingNode:
		wanted := map[string]*yaml.Node{}
		for i := 0; i+1 < len(want.Content); i += 2 {
			wanted[want.Content[i].Value] = want.Content[i+1]
		}
		var content []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, v := n.Content[i], n.Content[i+1]
			if w, ok := wanted[key.Value]; ok && key.Kind == yaml.ScalarNode {
				patch(v, w)
				content = append(content, key, v)
				delete(wanted, key.Value)
			}
		}
		for i := 0; i+1 < len(want.Content); i += 2 {
			if _, left := wanted[want.Content[i].Value]; left {
				restyle(want.Content[i])
				restyle(want.Content[i+1])
				content = append(content, want.Content[i], want.Content[i+1])
			}
		}
		n.Content = content
	}
}

// replace makes n say what want says in a place with n's comments.
func replace(n, want *yaml.Node) {
	head, line, foot := n.HeadComment, n.LineComment, n.FootComment
	*n = *want
	restyle(n)
	n.HeadComment, n.LineComment, n.FootComment = head, line, foot
}

// restyle takes the look of JSON off a node.
func restyle(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		restyle(c)
	}
}

// topLevel returns the key and value nodes of a top-level key of a YAML text.
func topLevel(text []byte, key string) (k, v *yaml.Node) {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == key {
			return root.Content[i], root.Content[i+1]
		}
	}
	return nil, nil
}
