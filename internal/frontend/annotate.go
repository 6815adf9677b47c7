package frontend

import (
	"strconv"
	"strings"

	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// annotate states the annotations of d (§9.3) on every manifest and, if the
// export makes one, on the index.
func (b Builder) annotate(res *client.Result, d spec.Descriptor, opts map[string]string) error {
	o := annotation.Options{Builder: &annotation.Builder{Name: "kitbox", Version: b.Version, Revision: b.Revision}}
	if s, err := strconv.ParseInt(opts[buildArgPrefix+sourceDateEpoch], 10, 64); err == nil {
		o.SourceDateEpoch = &s
	}
	annotations, err := annotation.Derive(d, o)
	if err != nil {
		return err
	}
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
	return nil
}
