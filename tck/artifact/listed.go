package artifact

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// maxListed bounds how many Kits of a set are looked up.
const maxListed = 64

// listed returns the layers of the Kits that a set lists, by the digests it pins,
// as far as they can be had: from the layout that it is in, or, if the caller
// wants that, from where the set says. No layer is read.
func (a *Artifact) listed(ctx context.Context, kits []spec.KitRef, o Options) map[string][]rule.Listed {
	out := map[string][]rule.Listed{}
	for _, k := range kits[:min(len(kits), maxListed)] {
		ref := k.Digest
		if o.Layout == "" {
			image, err := constraint.ParseImage(k.Ref)
			if err != nil || !o.Kits {
				continue
			}
			ref = image.Repository + "@" + k.Digest
		}
		blobs, d, err := locate(ctx, ref, o)
		if err != nil || d.Digest.String() != k.Digest || d.Size > maxDocument {
			continue
		}
		if ls, err := layersOf(ctx, blobs, d); err == nil {
			out[k.Digest] = ls
		}
	}
	return out
}

// layersOf reads a manifest or an index and its manifests. A layout does not say
// which of them a digest names, so that the document has to.
func layersOf(ctx context.Context, blobs content.Fetcher, d ocispec.Descriptor) ([]rule.Listed, error) {
	var doc struct {
		MediaType string               `json:"mediaType"`
		Config    ocispec.Descriptor   `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	b, err := content.FetchAll(ctx, blobs, d)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return nil, err
	}
	if len(doc.Manifests) == 0 {
		var l rule.Listed
		for _, layer := range doc.Layers {
			l.Layers = append(l.Layers, layer.Digest)
		}
		return []rule.Listed{l}, nil
	}
	var out []rule.Listed
	for _, m := range doc.Manifests[:min(len(doc.Manifests), maxImages)] {
		if m.Annotations["vnd.docker.reference.type"] != "" || m.Platform == nil || m.Size > maxDocument {
			continue
		}
		ls, err := layersOf(ctx, blobs, m)
		if err != nil {
			return nil, err
		}
		if len(ls) != 1 {
			return nil, fmt.Errorf("%s is an index in an index", m.Digest)
		}
		ls[0].Platform = platformName(m.Platform.OS, m.Platform.Architecture, m.Platform.Variant)
		out = append(out, ls[0])
	}
	return slices.Clip(out), nil
}
