package kitset

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// An image is what a set comes to, before it is stored.
type image struct {
	merged      *resolve.Merged
	members     []*member
	stem        string
	annotations map[string]string
	sources     []byte // the set's own layer
	epoch       int64  // seconds; of history, and of the config if it is not 0
}

// store puts the documents of the image, and its own layer, into images. The
// root comes last.
func (im image) store(ctx context.Context, images *layout.Store, platforms []ocispec.Platform) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	type half struct {
		manifest ocispec.Manifest
		config   ocispec.Image
	}
	halves := make([]half, len(platforms))
	for i, p := range platforms {
		var err error
		if halves[i].manifest, halves[i].config, err = im.platform(p); err != nil {
			return none, err
		}
	}
	if _, err := images.PushBytes(ctx, ocispec.MediaTypeImageLayer, im.sources); err != nil {
		return none, err
	}
	var manifests []ocispec.Descriptor
	for i, p := range platforms {
		var err error
		m := halves[i].manifest
		if m.Config, err = images.PushJSON(ctx, ocispec.MediaTypeImageConfig, halves[i].config); err != nil {
			return none, err
		}
		d, err := images.PushJSON(ctx, ocispec.MediaTypeImageManifest, m)
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
	return images.PushJSON(ctx, ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests, Annotations: im.annotations,
	})
}

// platform is manifest and config for p. The manifest lacks its config.
func (im image) platform(p ocispec.Platform) (ocispec.Manifest, ocispec.Image, error) {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: im.annotations}
	cfg := ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers"}}
	created := time.Unix(im.epoch, 0).UTC()
	if im.epoch != 0 {
		cfg.Created = &created
	}
	add := func(blob ocispec.Descriptor, diff digest.Digest, by string) {
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: neutral(blob.MediaType), Digest: blob.Digest, Size: blob.Size, URLs: blob.URLs, Annotations: blob.Annotations})
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, diff)
		cfg.History = append(cfg.History, ocispec.History{Created: &created, CreatedBy: by, Comment: "kitbox"})
	}
	var workload assemble.Part
	var mixins []assemble.Part
	for _, k := range im.merged.Layers {
		i := slices.IndexFunc(im.members, func(m *member) bool { return m.Root.Digest.String() == k.Digest })
		member := im.members[i]
		of := member.image(p)
		part := assemble.Part{Kit: k.Ref, Config: of.Config.Config}
		if k.Descriptor.Kind == spec.KindWorkload {
			workload = part
			if len(part.Config.Entrypoint)+len(part.Config.Cmd) == 0 {
				return m, cfg, fmt.Errorf("kit %s: its image states neither an entrypoint nor a command, so that the set has nothing to launch [SPEC-v3 §10]: %w", k.Ref, kiterr.ErrRefused)
			}
		} else {
			mixins = append(mixins, part)
		}
		notes := stageNotes(*of) // for whoever lists this set in another
		for n, l := range of.Layers() {
			add(l.Blob, l.DiffID, cmp.Or(notes[n], fmt.Sprintf("kit: layer %d of %s@%s", n+1, k.Ref, k.Digest)))
		}
	}
	var err error
	if cfg.Config, err = assemble.Config(workload, mixins); err != nil {
		return m, cfg, err
	}
	for _, name := range slices.Sorted(maps.Keys(im.merged.Env)) {
		cfg.Config.Env = slices.DeleteFunc(cfg.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		cfg.Config.Env = append(cfg.Config.Env, name+"="+im.merged.Env[name])
	}
	own := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(im.sources), Size: int64(len(im.sources))}
	add(own, own.Digest, content.StageNote+im.stem)
	if n := len(m.Layers); n > layout.MaxLayers {
		return m, cfg, fmt.Errorf("set %s: its Kits have %d layers with its own, the limit is %d: list fewer: %w", im.stem, n, layout.MaxLayers, kiterr.ErrRefused)
	}
	return m, cfg, nil
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

// sourceLayer is the layer with the set's own sources: a tar whose bytes depend
// on nothing else. The staged descriptor is what is published, since what the
// author wrote is no descriptor of the merged Kit.
func sourceLayer(dir, stem, descriptor string, staged []content.Staged) ([]byte, error) {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(descriptor), "", "  "); err != nil {
		return nil, err
	}
	pretty.WriteByte('\n')
	files := map[string][]byte{path.Join(content.StageRoot, stem, content.StagedDescriptor): pretty.Bytes()}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, f := range staged {
		st, err := root.Stat(filepath.FromSlash(f.From))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s: there is no file %s beside the descriptor: %w", f.At, f.From, kiterr.ErrRefused)
		case err != nil:
			return nil, fmt.Errorf("%s: %w: %w", f.At, err, kiterr.ErrRefused) // a link that leads out, for example
		case !st.Mode().IsRegular() || st.Size() > maxStaged:
			return nil, fmt.Errorf("%s: %s is no file of at most %d bytes: %w", f.At, f.From, maxStaged, kiterr.ErrRefused)
		}
		if files[f.To], err = root.ReadFile(filepath.FromSlash(f.From)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.At, err)
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: strings.TrimPrefix(name, "/"), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // it writes the end of the archive
		return nil, err
	}
	return b.Bytes(), nil
}
