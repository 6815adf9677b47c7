package artifact

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// maxListed bounds how many Kits of a set are looked up.
const maxListed = 64

// listed asks for the Kits that a set lists, by the digests that it pins: in the
// layout that it is in, and, if the caller wants that, where the set says. No
// layer is read.
func (a *Artifact) listed(ctx context.Context, kits []spec.KitRef, o Options) map[string]rule.Lookup {
	out := map[string]rule.Lookup{}
	for n, k := range kits {
		switch {
		case n >= maxListed:
			if o.Kits {
				out[k.Digest] = rule.Lookup{Unread: fmt.Sprintf("the set lists more than %d Kits", maxListed)}
			}
			continue
		case o.Layout != "":
			l := lookUp(ctx, k.Digest, k.Digest, Options{Layout: o.Layout})
			if out[k.Digest] = l; !l.Gone {
				continue
			}
			delete(out, k.Digest) // a layout need not hold them
		}
		if !o.Kits {
			continue
		}
		image, err := constraint.ParseImage(k.Ref)
		if err != nil {
			out[k.Digest] = rule.Lookup{Unread: err.Error()}
			continue
		}
		out[k.Digest] = lookUp(ctx, image.Repository+"@"+k.Digest, k.Digest, Options{PlainHTTP: o.PlainHTTP})
	}
	return out
}

// lookUp reads the documents of one Kit. That there is nothing by its digest is
// told from everything else that can be in the way.
func lookUp(ctx context.Context, ref, pin string, o Options) rule.Lookup {
	blobs, d, err := locate(ctx, ref, o)
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return rule.Lookup{Gone: true}
	case err != nil:
		return rule.Lookup{Unread: err.Error()}
	case d.Digest.String() != pin:
		return rule.Lookup{Unread: fmt.Sprintf("%s was given for %s", d.Digest, pin)}
	case d.Size > maxDocument:
		return rule.Lookup{Unread: fmt.Sprintf("its document has %d bytes, the limit is %d", d.Size, maxDocument)}
	}
	l, err := layersOf(ctx, blobs, d, false)
	if err != nil {
		return rule.Lookup{Unread: err.Error()}
	}
	return l
}

// layersOf reads a manifest or an index and its manifests. A layout does not say
// which of them a digest names, so that the document has to.
func layersOf(ctx context.Context, blobs content.Fetcher, d ocispec.Descriptor, inIndex bool) (rule.Lookup, error) {
	var doc struct {
		Annotations map[string]string    `json:"annotations"`
		Layers      []ocispec.Descriptor `json:"layers"`
		Manifests   []ocispec.Descriptor `json:"manifests"`
	}
	var out rule.Lookup
	b, err := content.FetchAll(ctx, blobs, d)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return out, err
	}
	out.Descriptor = doc.Annotations[annotation.Descriptor]
	if len(doc.Manifests) == 0 {
		var l rule.Listed
		for _, layer := range doc.Layers {
			l.Layers = append(l.Layers, layer.Digest)
		}
		out.Images = []rule.Listed{l}
		return out, nil
	}
	if inIndex {
		return out, fmt.Errorf("%s is an index in an index", d.Digest)
	}
	for _, m := range doc.Manifests[:min(len(doc.Manifests), maxImages)] {
		if m.Annotations["vnd.docker.reference.type"] != "" || m.Platform == nil || m.Size > maxDocument {
			continue
		}
		one, err := layersOf(ctx, blobs, m, true)
		if err != nil {
			return rule.Lookup{}, err
		}
		one.Images[0].Platform = platformName(m.Platform.OS, m.Platform.Architecture, m.Platform.Variant)
		out.Images = append(out.Images, one.Images[0])
		out.Descriptor = cmp.Or(out.Descriptor, one.Descriptor)
	}
	if len(out.Images) == 0 {
		return out, fmt.Errorf("%s lists no image", d.Digest)
	}
	return out, nil
}
