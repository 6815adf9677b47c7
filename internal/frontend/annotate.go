package frontend

import (
	"strings"

	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// about is what annotations say beside the descriptor.
func (b Builder) about(opts map[string]string) (annotation.Options, error) {
	epoch, err := annotation.ParseEpoch(opts[buildArgPrefix+sourceDateEpoch])
	return annotation.Options{Builder: &annotation.Builder{Name: "kitbox", Version: b.Version, Revision: b.Revision}, SourceDateEpoch: epoch}, err
}

// annotations returns those of d (§9.3).
func (b Builder) annotations(d spec.Descriptor, opts map[string]string) (map[string]string, error) {
	o, err := b.about(opts)
	if err != nil {
		return nil, err
	}
	return annotation.Derive(d, o)
}

// annotate states annotations on every manifest and, if the export makes one, on
// the index.
func annotate(res *client.Result, annotations, opts map[string]string) {
	index := len(res.Refs) > 0
	for k := range opts {
		// An attestation makes an index of any image.
		index = index || strings.HasPrefix(k, "attest:") || strings.HasPrefix(k, buildArgPrefix+"BUILDKIT_ATTEST_")
	}
	for k, v := range annotations {
		// Never for one platform: with a single ref BuildKit drops such keys
		// without a word, and the descriptor is equal on all of them.
		res.AddMeta(exptypes.AnnotationManifestKey(nil, k), []byte(v))
		if index {
			res.AddMeta(exptypes.AnnotationIndexKey(k), []byte(v))
		}
	}
}
