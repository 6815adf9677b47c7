package artifact

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A staged is what a Kit stages of its own sources.
type staged struct {
	descriptor []byte // as its author wrote it, as far as publishing did not change it
	recipe     []byte // nil if it has none
}

// sources finds the staged sources of the Kit. It looks from the last layer
// down and stops as soon as it has them: a builder writes them last.
func (a *Artifact) sources(ctx context.Context) (staged, error) {
	im := a.Images[0]
	var out staged
	var own rule.Sources
	var index map[string]string
	if a.Index != nil {
		index = a.Index.Annotations
	}
	text, _ := annotation.Discover(index, im.Manifest.Annotations)
	doc, ds := spec.Decode([]byte(text), spec.Options{Form: capability.Published})
	if text == "" || doc == nil || ds.HasErrors() {
		return out, nil // nothing tells which sources would be its own
	}
	for n, d := range slices.Backward(im.Manifest.Layers) {
		files := &tree.Tree{Keep: rule.Keep}
		if _, err := a.layer(ctx, d, func(r io.Reader) error { return files.Add(ctx, r) }); err != nil {
			return out, fmt.Errorf("layers[%d]: %w", n, err)
		}
		if own.Descriptor == "" {
			if own = rule.StagedSources(doc, files); own.Descriptor == "" {
				continue
			}
			out.descriptor, _ = files.Read(own.Descriptor)
		}
		if own.Recipe == "" { // a set has none
			return out, nil
		}
		if e, ok := files.At(own.Recipe); ok && e.Kind == tree.File {
			out.recipe, _ = files.Read(own.Recipe)
			return out, nil
		}
	}
	return out, nil
}

// asYAML writes a published descriptor as people read it.
func asYAML(descriptor jsontext.Value) (string, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(descriptor, &n); err != nil {
		return "", err
	}
	unfold(&n)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return "", err
	}
	return b.String(), e.Close()
}

// unfold takes the look of JSON off a node.
func unfold(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	if n.Kind == yaml.MappingNode {
		for i := 0; i < len(n.Content); i += 2 {
			n.Content[i].Style &^= yaml.DoubleQuotedStyle
		}
	}
	if n.Kind == yaml.ScalarNode && bytes.ContainsRune([]byte(n.Value), '\n') {
		n.Style = yaml.LiteralStyle
	}
	for _, c := range n.Content {
		unfold(c)
	}
}
