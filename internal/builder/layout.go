package builder

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// readOnlyLayout returns the blobs of an OCI layout. Builds read bases out of
// layouts that belong to others, so nothing is written to them.
func readOnlyLayout(dir string) (content.Store, error) {
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return nil, fmt.Errorf("%s is not an OCI layout directory", dir)
	}
	s, err := local.NewStore(dir)
	if err != nil {
		return nil, err
	}
	return readOnly{s}, nil
}

type readOnly struct{ content.Store }

func (readOnly) Writer(context.Context, ...content.WriterOpt) (content.Writer, error) {
	return nil, fmt.Errorf("this store is only read: %w", errdefs.ErrFailedPrecondition)
}
func (readOnly) Delete(context.Context, digest.Digest) error {
	return fmt.Errorf("this store is only read: %w", errdefs.ErrFailedPrecondition)
}
func (readOnly) Update(_ context.Context, i content.Info, _ ...string) (content.Info, error) {
	return i, fmt.Errorf("this store is only read: %w", errdefs.ErrFailedPrecondition)
}

// localTags returns the images under [LocalDomain] that the layout in dir names,
// by name. A layout that is not there has none.
func localTags(dir string) map[string]digest.Digest {
	b, err := os.ReadFile(filepath.Join(dir, ocispec.ImageIndexFile))
	if err != nil {
		return nil
	}
	var idx ocispec.Index
	if json.Unmarshal(b, &idx) != nil {
		return nil
	}
	tags := map[string]digest.Digest{}
	for _, m := range idx.Manifests {
		if name := m.Annotations[ocispec.AnnotationRefName]; strings.HasPrefix(name, LocalDomain+"/") {
			tags[name] = m.Digest
		}
	}
	return tags
}

// readManifest returns the image manifest that desc names.
func readManifest(ctx context.Context, s content.Provider, desc ocispec.Descriptor) (ocispec.Manifest, error) {
	var m ocispec.Manifest
	b, err := content.ReadBlob(ctx, s, desc)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}

// walkImage calls f for desc and for everything it refers to, parents first.
func walkImage(ctx context.Context, s content.Provider, desc ocispec.Descriptor, f func(ocispec.Descriptor) error) error {
	if err := f(desc); err != nil {
		return err
	}
	switch desc.MediaType {
	case ocispec.MediaTypeImageIndex:
		b, err := content.ReadBlob(ctx, s, desc)
		if err != nil {
			return err
		}
		var idx ocispec.Index
		if err := json.Unmarshal(b, &idx); err != nil {
			return err
		}
		for _, m := range idx.Manifests {
			if err := walkImage(ctx, s, m, f); err != nil {
				return err
			}
		}
	case ocispec.MediaTypeImageManifest:
		m, err := readManifest(ctx, s, desc)
		if err != nil {
			return err
		}
		if err := f(m.Config); err != nil {
			return err
		}
		for _, l := range m.Layers {
			if err := f(l); err != nil {
				return err
			}
		}
	}
	return nil
}
