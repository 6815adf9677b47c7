package layout

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Docker's media types, which mean the same as OCI's.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// IsIndex reports whether mediaType is that of an index.
func IsIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == dockerIndex
}

// IsManifest reports whether mediaType is that of one image.
func IsManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == dockerManifest
}

// An Image is one platform's image: the documents, not the content.
type Image struct {
	Root       ocispec.Descriptor // what was asked for: an index, or the manifest itself
	Descriptor ocispec.Descriptor // the manifest
	Manifest   ocispec.Manifest
	Config     ocispec.Image

	// Annotations are the manifest's, with the index's laid over them: what
	// is promoted to the index is what a reader of the reference sees first.
	Annotations map[string]string
}

// A Layer is one layer of an image.
type Layer struct {
	DiffID digest.Digest      // of the uncompressed tar; names the unpacked directory
	Blob   ocispec.Descriptor // as stored
}

// Layers pairs the blobs of the manifest with the diff ids of the config,
// lowest first.
func (i Image) Layers() []Layer {
	ls := make([]Layer, len(i.Manifest.Layers))
	for n, b := range i.Manifest.Layers {
		ls[n] = Layer{DiffID: i.Config.RootFS.DiffIDs[n], Blob: b}
	}
	return ls
}

// HostPlatform is the platform of this machine's sandboxes.
func HostPlatform() ocispec.Platform {
	return ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
}

// A Source can read documents: this store, or a registry.
type Source interface {
	Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error)
}

// Image reads the image that desc stands for on platform p.
func (s *Store) Image(ctx context.Context, desc ocispec.Descriptor, p ocispec.Platform) (Image, error) {
	return ReadImage(ctx, s, desc, p)
}

// ReadImage reads manifest and config of desc from src, choosing platform p
// when desc is an index. An index without p is [kiterr.ErrNotFound], naming
// the platforms that it has; a document that contradicts itself is refused.
func ReadImage(ctx context.Context, src Source, desc ocispec.Descriptor, p ocispec.Platform) (Image, error) {
	img := Image{Root: desc, Descriptor: desc}
	annotations := map[string]string{}
	if IsIndex(desc.MediaType) {
		data, err := src.Document(ctx, desc)
		if err != nil {
			return Image{}, err
		}
		var idx ocispec.Index
		if err := json.Unmarshal(data, &idx); err != nil {
			return Image{}, fmt.Errorf("index %s: %w", desc.Digest, err)
		}
		if img.Descriptor, err = choose(desc.Digest, idx, p); err != nil {
			return Image{}, err
		}
		annotations = idx.Annotations
	}
	if !IsManifest(img.Descriptor.MediaType) {
		return Image{}, fmt.Errorf("%s has media type %q, which is not an image: %w", img.Descriptor.Digest, img.Descriptor.MediaType, kiterr.ErrRefused)
	}
	data, err := src.Document(ctx, img.Descriptor)
	if err != nil {
		return Image{}, err
	}
	if err := json.Unmarshal(data, &img.Manifest); err != nil {
		return Image{}, fmt.Errorf("manifest %s: %w", img.Descriptor.Digest, err)
	}
	data, err = src.Document(ctx, img.Manifest.Config)
	if err != nil {
		return Image{}, err
	}
	if err := json.Unmarshal(data, &img.Config); err != nil {
		return Image{}, fmt.Errorf("config %s: %w", img.Manifest.Config.Digest, err)
	}
	if m, c := len(img.Manifest.Layers), len(img.Config.RootFS.DiffIDs); m != c {
		return Image{}, fmt.Errorf("image %s has %d layers and %d diff ids: %w", img.Descriptor.Digest, m, c, kiterr.ErrRefused)
	}
	for _, l := range img.Layers() {
		if l.DiffID.Validate() != nil || l.DiffID.Algorithm() != digest.SHA256 {
			return Image{}, fmt.Errorf("image %s: diff id %q is not a sha256 digest: %w", img.Descriptor.Digest, l.DiffID, kiterr.ErrRefused)
		}
	}
	img.Annotations = maps.Clone(img.Manifest.Annotations)
	if img.Annotations == nil {
		img.Annotations = map[string]string{}
	}
	maps.Copy(img.Annotations, annotations)
	return img, nil
}

// choose returns idx's manifest for p, preferring the same variant. Entries
// for attestations (platform "unknown") are not images.
func choose(d digest.Digest, idx ocispec.Index, p ocispec.Platform) (ocispec.Descriptor, error) {
	var has []string
	var match []ocispec.Descriptor
	for _, m := range idx.Manifests {
		if m.Platform == nil {
			if IsManifest(m.MediaType) && len(idx.Manifests) == 1 {
				return m, nil // nothing to choose from
			}
			continue
		}
		if m.Platform.OS == "unknown" {
			continue
		}
		has = append(has, platformName(*m.Platform))
		if m.Platform.OS == p.OS && m.Platform.Architecture == p.Architecture &&
			(p.Variant == "" || m.Platform.Variant == "" || m.Platform.Variant == p.Variant) {
			match = append(match, m)
		}
	}
	if len(match) == 0 {
		slices.Sort(has)
		return ocispec.Descriptor{}, fmt.Errorf("index %s has no image for %s, it has %s: %w", d, platformName(p),
			cmp.Or(strings.Join(slices.Compact(has), ", "), "none"), kiterr.ErrNotFound)
	}
	for _, m := range match {
		if m.Platform.Variant == p.Variant {
			return m, nil
		}
	}
	return match[0], nil
}

func platformName(p ocispec.Platform) string {
	n := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		n += "/" + p.Variant
	}
	return n
}
