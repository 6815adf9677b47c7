package kitset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
	own       layerBlob         // the set's own layer
}

// A half is an image for one platform.
type half struct {
	config     ocispec.Image
	configData []byte
	manifest   ocispec.Manifest
	data       []byte // of manifest
	descriptor ocispec.Descriptor
}

// halves are the images for platforms.
//
// Documents are written as BuildKit's exporter does, so that the same set is the
// same image whichever way it is built.
func (im image) halves(platforms []ocispec.Platform) ([]half, error) {
	halves := make([]half, len(platforms))
	for i, p := range platforms {
		var err error
		if halves[i], err = im.platform(p); err != nil {
			return nil, err
		}
	}
	return halves, nil
}

// store puts the documents of the image, and its own layer, into images, once they
// have been judged. The root comes last. Faults of the set are told with its place
// by at.
func (im image) store(ctx context.Context, images *layout.Store, halves []half, notice func(string), at func(error) error) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	root := halves[0].descriptor
	var index *ocispec.Index
	var indexData []byte
	if len(halves) > 1 {
		index = &ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Annotations: im.set.Annotations}
		for i := range halves {
			halves[i].descriptor.Platform = &halves[i].config.Platform
			index.Manifests = append(index.Manifests, halves[i].descriptor)
		}
		var err error
		if root, indexData, err = document(ocispec.MediaTypeImageIndex, index); err != nil {
			return none, err
		}
	}
	if err := judge(ctx, images, index, halves, im.own, im.artifacts, notice); err != nil {
		return none, at(err)
	}
	if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageLayerGzip, im.own.data); err != nil {
		return none, err
	}
	for _, h := range halves {
		if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageConfig, h.configData); err != nil {
			return none, err
		}
		if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageManifest, h.data); err != nil {
			return none, err
		}
	}
	if index != nil {
		return images.PushBytes(ctx, root.MediaType, indexData)
	}
	return root, nil
}

// document is v as BuildKit writes it.
func document(mediaType string, v any) (ocispec.Descriptor, []byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}, b, err
}

// platform is the image for p.
func (im image) platform(p ocispec.Platform) (half, error) {
	h := half{manifest: ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: im.set.Annotations}}
	var err error
	if h.config, err = im.set.Config(p); err != nil {
		return h, err
	}
	im.set.Stage(&h.config, im.own.diff)
	if h.configData, err = merge.Encode(h.config); err != nil {
		return h, err
	}
	h.manifest.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(h.configData), Size: int64(len(h.configData))}
	for _, i := range im.set.Order() {
		for _, blob := range im.artifacts[i].Images[im.members[i].At(p)].Manifest.Layers {
			h.manifest.Layers = append(h.manifest.Layers, ocispec.Descriptor{MediaType: neutral(blob.MediaType), Digest: blob.Digest, Size: blob.Size, Annotations: lasting(blob.Annotations)})
		}
	}
	h.manifest.Layers = append(h.manifest.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(im.own.data), Size: int64(len(im.own.data))})
	h.descriptor, h.data, err = document(ocispec.MediaTypeImageManifest, h.manifest)
	return h, err
}

// kept are the annotations of a layer that go with it into another manifest: those
// that say how to read a layer piece by piece, which its digest covers. BuildKit
// keeps no other, and no place elsewhere to have a layer from: what a stranger noted
// beside a layer would make the same set another image, or send people for it to
// hosts that nobody has looked at.
var kept = []string{"containerd.io/snapshot/stargz/toc.digest", "io.containers.estargz.uncompressed-size"}

func lasting(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(k, _ string) bool { return !slices.Contains(kept, k) })
	return out
}

// neutral is the OCI name of a layer's media type. Docker's names are for
// Docker's manifests, and those of layers that are not to be passed on for
// registries that do not hold them; the bytes are the same.
func neutral(mediaType string) string {
	for _, family := range []string{
		"application/vnd.docker.image.rootfs.diff.tar",
		"application/vnd.docker.image.rootfs.foreign.diff.tar",
		"application/vnd.oci.image.layer.nondistributable.v1.tar",
	} {
		compression, ok := strings.CutPrefix(mediaType, family)
		if !ok {
			continue
		}
		switch strings.TrimLeft(compression, ".+") {
		case "":
			return ocispec.MediaTypeImageLayer
		case "gzip":
			return ocispec.MediaTypeImageLayerGzip
		case "zstd":
			return ocispec.MediaTypeImageLayerZstd
		}
	}
	return mediaType
}

// maxStaged bounds a content file, in bytes: it is text for an agent.
const maxStaged = 16 << 20

// readStaged reads one of them. The directory may be one that a sandbox writes to: what
// is no file by then, or grows without end, is [fs.ErrInvalid] and not waited for.
func readStaged(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, cmp.Or(err, fs.ErrInvalid)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxStaged+1))
	if len(data) > maxStaged {
		return nil, fs.ErrInvalid
	}
	return data, err
}

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
		data, err := readStaged(root, filepath.FromSlash(f.From))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s: there is no file %s beside the descriptor: %w", f.At, f.From, kiterr.ErrRefused)
		case errors.Is(err, fs.ErrInvalid):
			return fmt.Errorf("%s: %s is no file of at most %d bytes: %w", f.At, f.From, maxStaged, kiterr.ErrRefused)
		case err != nil:
			return fmt.Errorf("%s: %w: %w", f.At, err, kiterr.ErrRefused) // a link that leads out, for example
		}
		files[path.Base(f.To)] = data
	}
	im.own.data, im.own.diff, err = im.set.Layer(files)
	return err
}
