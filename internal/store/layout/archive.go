package layout

import (
	"archive/tar"
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
// verified on its way. Equal images make equal bytes.
func (s *Store) Save(ctx context.Context, tags []Tag, w io.Writer) error {
	idx := emptyIndex()
	var blobs []ocispec.Descriptor
	for _, t := range tags {
		d := ocispec.Descriptor{MediaType: t.MediaType, Digest: t.Digest, Size: t.Size}
		if err := s.walk(ctx, d, &blobs); err != nil {
			return fmt.Errorf("saving %s: %w", t.Name, err)
		}
		d.Annotations = map[string]string{ocispec.AnnotationRefName: t.Name}
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
	index, err := json.Marshal(idx)
	if err != nil {
		return err
	}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	if err := put(ocispec.ImageLayoutFile, int64(len(version)), strings.NewReader(string(version))); err != nil {
		return err
	}
	if err := put(ocispec.ImageIndexFile, int64(len(index)), strings.NewReader(string(index))); err != nil {
		return err
	}
	for _, d := range blobs {
		rc, err := s.Fetch(ctx, d)
		if err != nil {
			return err
		}
		err = put(path.Join(ocispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded()), d.Size, rc)
		rc.Close()
		if err != nil {
			return err
		}
	}
	return tw.Close()
}

// walk appends what d leads to, once each, children after parents. It fails if
// one is not stored.
func (s *Store) walk(ctx context.Context, d ocispec.Descriptor, out *[]ocispec.Descriptor) error {
	if slices.ContainsFunc(*out, func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }) {
		return nil
	}
	if ok, err := s.Exists(ctx, d); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("blob %s: %w: the image was not pulled whole", d.Digest, kiterr.ErrNotFound)
	}
	*out = append(*out, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
	var doc struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if !IsIndex(d.MediaType) && !IsManifest(d.MediaType) {
		return nil
	}
	data, err := s.Document(ctx, d)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("document %s: %w", d.Digest, err)
	}
	children := append(doc.Layers, doc.Manifests...)
	if doc.Config != nil {
		children = append(children, *doc.Config)
	}
	for _, c := range children {
		if err := s.walk(ctx, c, out); err != nil {
			return err
		}
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
		if err != nil {
			return nil, refuse("is no tar: %v", err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
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
		if err := s.walk(ctx, d, &blobs); err != nil {
			return nil, refuse("is not whole: %v", err)
		}
	}
	for _, d := range idx.Manifests {
		name := d.Annotations["io.containerd.image.name"] // whole, where docker's ref.name is a tag alone
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
