package layout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// What one image may consist of. These are the bounds of the judge too. Whoever
// serves an index can name as many images and layers as fit into its documents,
// which is many more than anybody has.
const (
	MaxImages = 64   // of an index, without attestations
	MaxLayers = 1000 // of one platform's image

	// maxDocuments bounds the manifests and configs of all platforms together, in
	// bytes: they are in memory at once.
	maxDocuments = 64 << 20
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
	idx, err := readIndex(ctx, src, desc)
	if err != nil {
		return Image{}, err
	}
	chosen := desc
	if idx != nil {
		if chosen, err = choose(desc.Digest, *idx, p); err != nil {
			return Image{}, err
		}
	}
	return readImage(ctx, src, desc, idx, chosen)
}

// ReadAll reads manifest and config of every platform of desc that src has,
// without attestations. If it has none of them, that is [kiterr.ErrNotFound]; what
// does not fit into memory is refused.
func ReadAll(ctx context.Context, src Source, desc ocispec.Descriptor) ([]Image, error) {
	idx, err := readIndex(ctx, src, desc)
	if err != nil {
		return nil, err
	}
	if idx == nil {
		im, err := readImage(ctx, src, desc, nil, desc)
		return []Image{im}, err
	}
	var all []Image
	var missing error
	src = &allowance{src, desc.Digest, maxDocuments}
	for _, m := range idx.Manifests {
		if isAttestation(m) {
			continue
		}
		im, err := readImage(ctx, src, desc, idx, m)
		if errors.Is(err, kiterr.ErrNotFound) {
			missing = err // pulled for one platform only, for example
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, im)
	}
	if len(all) == 0 {
		return nil, cmp.Or(missing, fmt.Errorf("index %s has no image: %w", desc.Digest, kiterr.ErrNotFound))
	}
	return all, nil
}

// An allowance reads the documents of an index until they are too many.
type allowance struct {
	src  Source
	of   digest.Digest
	left int64 // bytes
}

func (a *allowance) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > a.left {
		return nil, fmt.Errorf("index %s: its manifests and configs have more than %d bytes: %w", a.of, maxDocuments, kiterr.ErrRefused)
	}
	data, err := a.src.Document(ctx, desc)
	a.left -= int64(len(data))
	return data, err
}

// isAttestation reports whether an entry of an index tells about another one
// rather than being an image: builders give it a platform that nobody has, or say
// what it refers to.
func isAttestation(d ocispec.Descriptor) bool {
	return d.Platform != nil && d.Platform.OS == "unknown" || d.Annotations["vnd.docker.reference.type"] != ""
}

// ReadPlatforms returns the platforms that desc lists, sorted, whether src has them
// or not; none if it is no index.
func ReadPlatforms(ctx context.Context, src Source, desc ocispec.Descriptor) ([]string, error) {
	idx, err := readIndex(ctx, src, desc)
	if idx == nil {
		return nil, err
	}
	var names []string
	for _, m := range idx.Manifests {
		if m.Platform != nil && !isAttestation(m) {
			names = append(names, PlatformName(*m.Platform))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ReadAnnotation returns one annotation of desc: the index's, else that of the
// manifest for p; "" if neither has it. It reads no more than it has to.
func ReadAnnotation(ctx context.Context, src Source, desc ocispec.Descriptor, p ocispec.Platform, key string) (string, error) {
	idx, err := readIndex(ctx, src, desc)
	if err != nil {
		return "", err
	}
	if idx != nil {
		if v := idx.Annotations[key]; v != "" {
			return v, nil
		}
		if desc, err = choose(desc.Digest, *idx, p); err != nil {
			return "", err
		}
	}
	m, err := readManifest(ctx, src, desc)
	return m.Annotations[key], err
}

// ReadAnnotations returns the values of one annotation of desc, each once: the
// index's, and those of all manifests that src has.
func ReadAnnotations(ctx context.Context, src Source, desc ocispec.Descriptor, key string) ([]string, error) {
	idx, err := readIndex(ctx, src, desc)
	if err != nil {
		return nil, err
	}
	manifests := []ocispec.Descriptor{desc}
	var values []string
	if idx != nil {
		manifests = slices.DeleteFunc(slices.Clone(idx.Manifests), isAttestation)
		values = append(values, idx.Annotations[key])
		src = &allowance{src, desc.Digest, maxDocuments}
	}
	for _, d := range manifests {
		m, err := readManifest(ctx, src, d)
		if errors.Is(err, kiterr.ErrNotFound) && idx != nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		values = append(values, m.Annotations[key])
	}
	slices.Sort(values)
	return slices.DeleteFunc(slices.Compact(values), func(v string) bool { return v == "" }), nil
}

// readIndex returns nil when desc is no index.
func readIndex(ctx context.Context, src Source, desc ocispec.Descriptor) (*ocispec.Index, error) {
	if !IsIndex(desc.MediaType) {
		return nil, nil
	}
	data, err := src.Document(ctx, desc)
	if err != nil {
		return nil, err
	}
	idx := new(ocispec.Index)
	if err := json.Unmarshal(data, idx); err != nil {
		return nil, fmt.Errorf("index %s: %w", desc.Digest, err)
	}
	images := 0
	for _, m := range idx.Manifests {
		if !isAttestation(m) {
			images++
		}
	}
	if images > MaxImages {
		return nil, fmt.Errorf("index %s has %d images, the limit is %d: %w", desc.Digest, images, MaxImages, kiterr.ErrRefused)
	}
	return idx, nil
}

func readManifest(ctx context.Context, src Source, desc ocispec.Descriptor) (m ocispec.Manifest, err error) {
	if !IsManifest(desc.MediaType) {
		return m, fmt.Errorf("%s has media type %q, which is not an image: %w", desc.Digest, desc.MediaType, kiterr.ErrRefused)
	}
	data, err := src.Document(ctx, desc)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	if n := len(m.Layers); n > MaxLayers {
		return m, fmt.Errorf("manifest %s has %d layers, the limit is %d: %w", desc.Digest, n, MaxLayers, kiterr.ErrRefused)
	}
	return m, nil
}

// readImage reads the image of manifest, which is of idx unless that is nil.
func readImage(ctx context.Context, src Source, root ocispec.Descriptor, idx *ocispec.Index, manifest ocispec.Descriptor) (Image, error) {
	img := Image{Root: root, Descriptor: manifest}
	var err error
	if img.Manifest, err = readManifest(ctx, src, manifest); err != nil {
		return Image{}, err
	}
	data, err := src.Document(ctx, img.Manifest.Config)
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
	if idx != nil {
		maps.Copy(img.Annotations, idx.Annotations)
	}
	return img, nil
}

// Platform is what the image is for, as os/arch or os/arch/variant: what its
// index says, else its config.
func (i Image) Platform() string {
	if p := i.Descriptor.Platform; p != nil {
		return PlatformName(*p)
	}
	return PlatformName(i.Config.Platform)
}

// choose returns idx's manifest for p: the one of its variant, else the one that
// the most machines can run, which is one of no variant or of the lowest.
// Attestations are not images.
func choose(d digest.Digest, idx ocispec.Index, p ocispec.Platform) (ocispec.Descriptor, error) {
	images := slices.DeleteFunc(slices.Clone(idx.Manifests), isAttestation)
	var has []string
	var match []ocispec.Descriptor
	for _, m := range images {
		if m.Platform == nil {
			if IsManifest(m.MediaType) && len(images) == 1 {
				return m, nil // nothing to choose from
			}
			continue
		}
		has = append(has, PlatformName(*m.Platform))
		if m.Platform.OS != p.OS || m.Platform.Architecture != p.Architecture {
			continue
		}
		if v := m.Platform.Variant; v == p.Variant {
			return m, nil
		} else if n := variant(*m.Platform); p.Variant == "" || v == "" || n > 0 && n <= variant(p) {
			match = append(match, m)
		}
	}
	if len(match) == 0 {
		slices.Sort(has)
		return ocispec.Descriptor{}, fmt.Errorf("index %s has no image for %s, it has %s: %w", d, PlatformName(p),
			cmp.Or(strings.Join(slices.Compact(has), ", "), "none"), kiterr.ErrNotFound)
	}
	best := match[0]
	for _, m := range match[1:] {
		// To a variant that was asked for, the nearest; the first of equals.
		if a, b := variant(*m.Platform), variant(*best.Platform); p.Variant == "" && a < b || p.Variant != "" && a > b {
			best = m
		}
	}
	return best, nil
}

// variant orders the variants of one architecture, of which machines of a later
// one run images of an earlier one. None is the first one that there is; 0: they
// have no order.
func variant(p ocispec.Platform) int {
	if n, err := strconv.Atoi(strings.TrimPrefix(p.Variant, "v")); err == nil {
		return n
	}
	if p.Variant != "" {
		return 0
	}
	return map[string]int{"amd64": 1, "arm64": 8, "arm": 5}[p.Architecture]
}

// ParsePlatform reads os/arch or os/arch/variant.
func ParsePlatform(s string) (ocispec.Platform, error) {
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return ocispec.Platform{}, fmt.Errorf("platform %q is not of the form OS/ARCH or OS/ARCH/VARIANT, such as linux/arm64", s)
	}
	p := ocispec.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// PlatformName is p as os/arch or os/arch/variant.
func PlatformName(p ocispec.Platform) string {
	n := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		n += "/" + p.Variant
	}
	return n
}
