package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Freed says what a sweep deleted.
type Freed struct {
	Count int
	Bytes int64
}

// Import copies what desc leads to from the layout at dir into s, verifying
// every blob, and tags nothing. Blobs on the same file system are still copied:
// a hard link would let whoever owns dir change them later.
func (s *Store) Import(ctx context.Context, dir string, desc ocispec.Descriptor) error {
	src := &Store{dir: dir}
	return walk(ctx, src, desc, visits{}, func(d ocispec.Descriptor) error {
		r, err := src.Fetch(ctx, d)
		if err != nil {
			return err
		}
		defer r.Close()
		return s.Push(ctx, d, r)
	})
}

// OpenExisting opens a layout that another program made, for reading.
func OpenExisting(dir string) (*Store, error) {
	var l ocispec.ImageLayout
	data, err := os.ReadFile(filepath.Join(dir, ocispec.ImageLayoutFile))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not an OCI image layout: %w", dir, kiterr.ErrNotFound)
	}
	if l.Version != ocispec.ImageLayoutVersion {
		return nil, fmt.Errorf("%s is an OCI image layout of version %q, this program reads %q: %w", dir, l.Version, ocispec.ImageLayoutVersion, kiterr.ErrUnsupported)
	}
	return &Store{dir: dir}, nil
}

// named is what a document, an index or a manifest, names.
type named struct {
	Config    *ocispec.Descriptor  `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// named reads the document of d.
func (s *Store) named(ctx context.Context, d ocispec.Descriptor) (named, error) {
	var doc named
	data, err := s.Document(ctx, d)
	if err != nil {
		return doc, err
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return doc, fmt.Errorf("document %s: %w", d.Digest, err)
	}
	return doc, nil
}

// visits are the documents that a walk has been through. An index can name what it
// names any number of times, and so can that: there are more ways through a few of
// them than anybody can walk.
type visits map[digest.Digest]bool

// walk calls visit for all blobs that desc leads to, children first, so that a
// document is stored only after what it names, and not for documents that it has
// been through.
func walk(ctx context.Context, src *Store, desc ocispec.Descriptor, been visits, visit func(ocispec.Descriptor) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if IsIndex(desc.MediaType) || IsManifest(desc.MediaType) {
		if been[desc.Digest] {
			return nil
		}
		been[desc.Digest] = true
		doc, err := src.named(ctx, desc)
		if err != nil {
			return err
		}
		if doc.Config != nil {
			if err := visit(*doc.Config); err != nil {
				return err
			}
		}
		for _, l := range doc.Layers {
			if err := visit(l); err != nil {
				return err
			}
		}
		for _, m := range doc.Manifests {
			// A partial copy of a multi-platform image is normal.
			if path, err := src.BlobPath(m.Digest); err != nil {
				return err
			} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err := walk(ctx, src, m, been, visit); err != nil {
				return err
			}
		}
	}
	return visit(desc)
}

// Sweep deletes the blobs that neither a tag nor extra leads to, and that
// nobody has used within grace. It returns what it deleted and the diff ids of
// every image that stays. Pushing, tagging and reading beside it are safe as
// long as nobody takes longer than grace between storing a blob and tagging
// what names it.
func (s *Store) Sweep(ctx context.Context, extra []digest.Digest, grace time.Duration) (Freed, map[digest.Digest]bool, error) {
	keep := map[digest.Digest]bool{}
	diffs := map[digest.Digest]bool{}
	idx, err := s.Index()
	if err != nil {
		return Freed{}, nil, err
	}
	roots := idx.Manifests
	for _, d := range extra {
		desc, err := s.Describe(ctx, d)
		if errors.Is(err, kiterr.ErrNotFound) {
			continue // a record of something already gone
		}
		if err != nil {
			return Freed{}, nil, err
		}
		roots = append(roots, desc)
	}
	for _, r := range roots {
		err := walk(ctx, s, r, visits{}, func(d ocispec.Descriptor) error {
			keep[d.Digest] = true
			s.noteDiffs(ctx, d, diffs)
			return nil
		})
		if err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return Freed{}, nil, err
		}
		keep[r.Digest] = true
	}
	var freed Freed
	limit := time.Now().Add(-grace)
	for _, dir := range []string{filepath.Join(s.dir, ocispec.ImageBlobsDir, "sha256"), s.ingest()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, diffs, durable.Explain(dir, err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return freed, diffs, err
			}
			if keep[digest.NewDigestFromEncoded(digest.SHA256, e.Name())] {
				continue
			}
			st, err := e.Info()
			if err != nil || st.ModTime().After(limit) || st.IsDir() && !strings.HasPrefix(e.Name(), durable.TempPrefix) {
				continue // other directories belong to builders, which look after them
			}
			if os.RemoveAll(filepath.Join(dir, e.Name())) == nil {
				freed.Count++
				freed.Bytes += st.Size()
			}
		}
	}
	return freed, diffs, nil
}

// noteDiffs adds the diff ids of d to diffs if d is an image config.
func (s *Store) noteDiffs(ctx context.Context, d ocispec.Descriptor, diffs map[digest.Digest]bool) {
	if d.MediaType != ocispec.MediaTypeImageConfig && d.MediaType != "application/vnd.docker.container.image.v1+json" {
		return
	}
	data, err := s.Document(ctx, d)
	if err != nil {
		return
	}
	var c ocispec.Image
	if json.Unmarshal(data, &c) == nil {
		for _, id := range c.RootFS.DiffIDs {
			diffs[id] = true
		}
	}
}
