package kitset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// An image is what a set comes to, before it is stored.
type image struct {
	set       *merge.Set
	artifacts []*fetch.Artifact // as the set lists them
	members   []merge.Member    // the same

	sources []byte        // the set's own layer
	diff    digest.Digest // of it, unpacked
}

// store puts the documents of the image, and its own layer, into images. The
// root comes last. Faults of the set are told with its place by at.
//
// Documents are written as BuildKit's exporter does, so that the same set is the
// same image whichever way it is built.
func (im image) store(ctx context.Context, images *layout.Store, platforms []ocispec.Platform, at func(error) error) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	type half struct {
		manifest ocispec.Manifest
		config   []byte
	}
	halves := make([]half, len(platforms))
	for i, p := range platforms {
		var err error
		if halves[i].manifest, halves[i].config, err = im.platform(p); err != nil {
			return none, at(err)
		}
	}
	if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageLayerGzip, im.sources); err != nil {
		return none, err
	}
	var manifests []ocispec.Descriptor
	for i, p := range platforms {
		m := halves[i].manifest
		if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageConfig, halves[i].config); err != nil {
			return none, err
		}
		d, err := push(ctx, images, ocispec.MediaTypeImageManifest, m)
		if err != nil {
			return none, err
		}
		d.Platform = &p
		manifests = append(manifests, d)
	}
	if len(manifests) == 1 {
		d := manifests[0]
		d.Platform = nil
		return d, nil
	}
	return push(ctx, images, ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests, Annotations: im.set.Annotations,
	})
}

func push(ctx context.Context, images *layout.Store, mediaType string, v any) (ocispec.Descriptor, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return images.PushBytes(ctx, mediaType, b)
}

// platform is manifest and config for p.
func (im image) platform(p ocispec.Platform) (ocispec.Manifest, []byte, error) {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: im.set.Annotations}
	cfg, err := im.set.Config(p)
	if err != nil {
		return m, nil, err
	}
	im.set.Stage(&cfg, im.diff)
	config, err := merge.Encode(cfg)
	if err != nil {
		return m, nil, err
	}
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))}
	for _, i := range im.set.Order() {
		for _, blob := range im.artifacts[i].Images[im.members[i].At(p)].Manifest.Layers {
			m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: neutral(blob.MediaType), Digest: blob.Digest, Size: blob.Size, URLs: blob.URLs, Annotations: lasting(blob.Annotations)})
		}
	}
	m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(im.sources), Size: int64(len(im.sources))})
	return m, config, nil
}

// lasting drops what an exporter noted for itself about how it made a layer.
func lasting(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(k, _ string) bool { return strings.HasPrefix(k, "buildkit/") })
	return out
}

// neutral is the OCI name of a layer's media type. Docker's names are for
// Docker's manifests; the bytes are the same.
func neutral(mediaType string) string {
	switch mediaType {
	case "application/vnd.docker.image.rootfs.diff.tar":
		return ocispec.MediaTypeImageLayer
	case "application/vnd.docker.image.rootfs.diff.tar.gzip":
		return ocispec.MediaTypeImageLayerGzip
	case "application/vnd.docker.image.rootfs.diff.tar.zstd":
		return ocispec.MediaTypeImageLayerZstd
	}
	return mediaType
}

// maxStaged bounds a content file, in bytes: it is text for an agent.
const maxStaged = 16 << 20

// stage reads the files to stage from dir and makes the layer with the set's own
// sources.
func (im *image) stage(dir string, staged []content.Staged) error {
	descriptor, err := im.set.StagedDescriptor()
	if err != nil {
		return err
	}
	files := map[string][]byte{content.StagedDescriptor: descriptor}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range staged {
		st, err := root.Stat(filepath.FromSlash(f.From))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s: there is no file %s beside the descriptor: %w", f.At, f.From, kiterr.ErrRefused)
		case err != nil:
			return fmt.Errorf("%s: %w: %w", f.At, err, kiterr.ErrRefused) // a link that leads out, for example
		case !st.Mode().IsRegular() || st.Size() > maxStaged:
			return fmt.Errorf("%s: %s is no file of at most %d bytes: %w", f.At, f.From, maxStaged, kiterr.ErrRefused)
		}
		if files[path.Base(f.To)], err = root.ReadFile(filepath.FromSlash(f.From)); err != nil {
			return fmt.Errorf("%s: %w", f.At, err)
		}
	}
	im.sources, im.diff, err = im.set.Layer(files)
	return err
}
