package layout

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Save writes what tags stand for as the tar of an image layout, every blob
// verified on its way. Of an index it takes the platforms that are here whole.
// Older programs find in manifest.json what docker save writes: one platform's
// image, this machine's if there is one. Equal images make equal bytes.
func (s *Store) Save(ctx context.Context, tags []Tag, w io.Writer) error {
	idx := emptyIndex()
	var blobs []ocispec.Descriptor
	var legacy []dockerImage
	for _, t := range tags {
		d := ocispec.Descriptor{MediaType: t.MediaType, Digest: t.Digest, Size: t.Size}
		if err := s.walk(ctx, d, &blobs, true); err != nil {
			return fmt.Errorf("saving %s: %w", t.Name, err)
		}
		im, err := s.whole(ctx, d, blobs)
		if err != nil {
			return fmt.Errorf("saving %s: %w", t.Name, err)
		}
		legacy = append(legacy, dockerImageOf(t.Name, im))
		if digest.Digest(t.Name).Validate() != nil { // a digest is no name to load under
			d.Annotations = map[string]string{ocispec.AnnotationRefName: t.Name, containerdName: t.Name}
		}
		idx.Manifests = append(idx.Manifests, d)
	}
	tw := tar.NewWriter(w)
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		n, err := io.Copy(tw, r)
		if err == nil && n != size {
			err = fmt.Errorf("%s has %d bytes instead of %d", name, n, size)
		}
		return err
	}
	for _, doc := range []struct {
		name string
		v    any
	}{{ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}}, {ocispec.ImageIndexFile, idx}, {dockerFile, legacy}} {
		b, err := json.Marshal(doc.v)
		if err != nil {
			return err
		}
		if err := put(doc.name, int64(len(b)), bytes.NewReader(b)); err != nil {
			return err
		}
	}
	for _, d := range blobs {
		rc, err := s.Fetch(ctx, d)
		if err != nil {
			return err
		}
		err = put(blobName(d.Digest), d.Size, rc)
		rc.Close()
		if err != nil {
			return err
		}
	}
	return tw.Close()
}

const (
	// containerdName is the annotation in which docker and containerd look for
	// a whole reference.
	containerdName = "io.containerd.image.name"

	// dockerFile is what docker save has had since before there was OCI.
	dockerFile = "manifest.json"
)

// A dockerImage is one of [dockerFile].
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func dockerImageOf(name string, im Image) dockerImage {
	d := dockerImage{Config: blobName(im.Manifest.Config.Digest), RepoTags: []string{}, Layers: []string{}}
	if digest.Digest(name).Validate() != nil && !strings.Contains(name, "@") {
		d.RepoTags = append(d.RepoTags, name)
	}
	for _, l := range im.Manifest.Layers {
		d.Layers = append(d.Layers, blobName(l.Digest))
	}
	return d
}

func blobName(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// whole returns one image of d whose blobs are all among blobs: this machine's if
// possible.
func (s *Store) whole(ctx context.Context, d ocispec.Descriptor, blobs []ocispec.Descriptor) (Image, error) {
	all, err := ReadAll(ctx, s, d)
	if err != nil {
		return Image{}, err
	}
	host := PlatformName(HostPlatform())
	slices.SortStableFunc(all, func(a, b Image) int {
		return cmp.Compare(map[bool]int{true: 0, false: 1}[a.Platform() == host], map[bool]int{true: 0, false: 1}[b.Platform() == host])
	})
	for _, im := range all {
		if slices.ContainsFunc(blobs, func(o ocispec.Descriptor) bool { return o.Digest == im.Descriptor.Digest }) {
			return im, nil
		}
	}
	return Image{}, fmt.Errorf("image %s: %w whole", d.Digest, kiterr.ErrNotFound)
}

// walk appends what d leads to, once each, parents first. It fails if something
// is not stored. Of an index, platforms may be missing, but not all: those whose
// manifest is, or, with partial, those that lack anything.
func (s *Store) walk(ctx context.Context, d ocispec.Descriptor, out *[]ocispec.Descriptor, partial bool) error {
	if slices.ContainsFunc(*out, func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }) {
		return nil
	}
	if ok, err := s.Exists(ctx, d); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("blob %s: %w: the image was not pulled whole", d.Digest, kiterr.ErrNotFound)
	}
	*out = append(*out, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
	if !IsIndex(d.MediaType) && !IsManifest(d.MediaType) {
		return nil
	}
	doc, err := s.named(ctx, d)
	if err != nil {
		return err
	}
	children := doc.Layers
	if doc.Config != nil {
		children = append(children, *doc.Config)
	}
	for _, c := range children {
		if err := s.walk(ctx, c, out, partial); err != nil {
			return err
		}
	}
	found := len(doc.Manifests) == 0
	var missing error
	for _, m := range doc.Manifests {
		if ok, err := s.Exists(ctx, m); err != nil {
			return err
		} else if !ok {
			missing = fmt.Errorf("manifest %s: %w: the image was not pulled whole", m.Digest, kiterr.ErrNotFound)
			continue
		}
		with := slices.Clone(*out)
		err := s.walk(ctx, m, &with, partial)
		if partial && errors.Is(err, kiterr.ErrNotFound) {
			missing = err
			continue
		}
		if err != nil {
			return err
		}
		*out, found = with, true
	}
	if !found {
		return missing
	}
	return nil
}

// Load reads the tar of an image layout, as Save, docker save and buildx write
// it, verifies every blob and gives the images their names. It returns those.
// After an error no name has changed.
func (s *Store) Load(ctx context.Context, r io.Reader) ([]string, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("the archive "+format+": %w", append(args, kiterr.ErrRefused)...)
	}
	var idx *ocispec.Index
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err != nil {
			return nil, refuse("is no tar: %v", err)
		}
		name := path.Clean(h.Name)
		switch dir, base := path.Split(name); {
		case h.Typeflag != tar.TypeReg:
		case name == ocispec.ImageIndexFile:
			data, err := io.ReadAll(io.LimitReader(tr, MaxDocument+1))
			if err != nil {
				return nil, err
			}
			idx = new(ocispec.Index)
			if len(data) > MaxDocument || json.Unmarshal(data, idx) != nil {
				return nil, refuse("has an index.json that is no index")
			}
		case dir == "blobs/sha256/":
			d := digest.NewDigestFromEncoded(digest.SHA256, base)
			if err := d.Validate(); err != nil {
				return nil, refuse("has a blob named %q", base)
			}
			if err := s.Push(ctx, ocispec.Descriptor{Digest: d, Size: h.Size}, tr); err != nil {
				return nil, err
			}
		}
	}
	if idx == nil {
		return nil, refuse("has no index.json: it is not that of an OCI image layout")
	}
	var names []string
	for _, d := range idx.Manifests {
		var blobs []ocispec.Descriptor
		if err := s.walk(ctx, d, &blobs, false); err != nil {
			return nil, refuse("is not whole: %v", err)
		}
	}
	for _, d := range idx.Manifests {
		name := d.Annotations[containerdName] // whole, where docker's ref.name is a tag alone
		if name == "" {
			name = d.Annotations[ocispec.AnnotationRefName]
		}
		if name == "" {
			name = d.Digest.String()
		} else if err := s.Tag(ctx, d, name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}
