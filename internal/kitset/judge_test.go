package kitset

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// TestTheJudgeOfDocuments sees images made wrong on purpose: what assembles them
// makes none.
func TestTheJudgeOfDocuments(t *testing.T) {
	images, err := layout.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	blob := func(text string) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString(text), Size: int64(len(text))}
	}
	root := digest.FromString("root")
	doc, err := spec.DecodePublished([]byte(`{"schemaVersion":"3","kind":"mixin","provides":["team@1"],"kits":[{"ref":"r.example/k:1","digest":"` + root.String() + `"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*half, *ocispec.Index)
		want   string // empty: nothing is wrong
	}{
		"nothing": {func(*half, *ocispec.Index) {}, ""},
		"a layer is missing": {func(h *half, _ *ocispec.Index) {
			h.manifest.Layers, h.config.RootFS.DiffIDs = h.manifest.Layers[1:], h.config.RootFS.DiffIDs[1:]
		}, "§9.5/layers-preserved"},
		"one in between": {func(h *half, _ *ocispec.Index) {
			h.manifest.Layers[1], h.manifest.Layers[2] = h.manifest.Layers[2], h.manifest.Layers[1]
		}, "§9.5/layers-preserved"},
		"no diff id":       {func(h *half, _ *ocispec.Index) { h.config.RootFS.DiffIDs = nil }, "§10/layers-intact"},
		"no platform":      {func(h *half, _ *ocispec.Index) { h.config.OS = "" }, "§10/platform-stated"},
		"another platform": {func(h *half, _ *ocispec.Index) { h.config.Architecture = "other" }, "§10/platform-stated"},
		"no descriptor":    {func(h *half, _ *ocispec.Index) { h.manifest.Annotations = nil }, "§9.3/descriptor-annotation"},
		"not on the index": {func(_ *half, i *ocispec.Index) { i.Annotations = nil }, "§9.3/annotations-promoted"},
		"a media type":     {func(h *half, _ *ocispec.Index) { h.manifest.Layers[0].MediaType = "text/plain" }, "§10/plain-image"},
	} {
		p := ocispec.Platform{OS: "linux", Architecture: "amd64"}
		annotations, err := annotation.Derive(doc.Descriptor, annotation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		kit := layout.Image{Descriptor: blob("manifest"), Manifest: ocispec.Manifest{Layers: []ocispec.Descriptor{blob("one"), blob("two")}}, Config: ocispec.Image{Platform: p}}
		kit.Descriptor.Platform = &p
		h := half{
			config: ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{"1", "2", "3"}}},
			manifest: ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, Annotations: annotations, Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig},
				Layers: []ocispec.Descriptor{blob("one"), blob("two"), blob("own")}},
			descriptor: ocispec.Descriptor{Platform: &p},
		}
		index := &ocispec.Index{Annotations: annotations}
		c.change(&h, index)
		err = judge(t.Context(), images, index, []half{h}, layerBlob{}, []*fetch.Artifact{{Root: ocispec.Descriptor{Digest: root}, Images: []layout.Image{kit}}}, nil)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
