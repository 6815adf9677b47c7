package layout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Tag is a name and what it stands for.
type Tag struct {
	Name string // a whole reference, such as kitbox.local/base:1
	ocispec.Descriptor
}

// Index reads index.json.
func (s *Store) Index() (ocispec.Index, error) {
	path := filepath.Join(s.dir, ocispec.ImageIndexFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return emptyIndex(), nil
	}
	if err != nil {
		return ocispec.Index{}, durable.Explain(path, err)
	}
	var idx ocispec.Index
	if err := json.Unmarshal(data, &idx); err != nil {
		return ocispec.Index{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return idx, nil
}

// update changes index.json under its lock.
func (s *Store) update(ctx context.Context, change func(*ocispec.Index) error) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	l, err := durable.AcquireLock(ctx, filepath.Join(s.dir, ".lock"), durable.Exclusive)
	if err != nil {
		return err
	}
	defer l.Unlock()
	idx, err := s.Index()
	if err != nil {
		return err
	}
	if err := change(&idx); err != nil {
		return err
	}
	data, err := json.Marshal(idx)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(s.dir, ocispec.ImageIndexFile), data, 0o644)
}

// Tag makes name stand for the manifest or index of desc, which must be
// stored. A name that stood for something else moves.
func (s *Store) Tag(ctx context.Context, desc ocispec.Descriptor, name string) error {
	if name == "" {
		return errors.New("a tag needs a name")
	}
	if ok, err := s.Exists(ctx, desc); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("tagging %s: blob %s: %w in %s", name, desc.Digest, kiterr.ErrNotFound, s.dir)
	}
	entry := ocispec.Descriptor{
		MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size, Platform: desc.Platform,
		Annotations: map[string]string{ocispec.AnnotationRefName: name},
	}
	return s.update(ctx, func(idx *ocispec.Index) error {
		idx.Manifests = slices.DeleteFunc(idx.Manifests, func(d ocispec.Descriptor) bool {
			return d.Annotations[ocispec.AnnotationRefName] == name
		})
		idx.Manifests = append(idx.Manifests, entry)
		return nil
	})
}

// Untag removes name. The content stays until a sweep finds it unused. An
// unknown name is [kiterr.ErrNotFound].
func (s *Store) Untag(ctx context.Context, name string) error {
	return s.update(ctx, func(idx *ocispec.Index) error {
		before := len(idx.Manifests)
		idx.Manifests = slices.DeleteFunc(idx.Manifests, func(d ocispec.Descriptor) bool {
			return d.Annotations[ocispec.AnnotationRefName] == name
		})
		if len(idx.Manifests) == before {
			return fmt.Errorf("image %s: %w", name, kiterr.ErrNotFound)
		}
		return nil
	})
}

// Tags lists all names, sorted.
func (s *Store) Tags() ([]Tag, error) {
	idx, err := s.Index()
	if err != nil {
		return nil, err
	}
	var tags []Tag
	for _, d := range idx.Manifests {
		if n := d.Annotations[ocispec.AnnotationRefName]; n != "" {
			tags = append(tags, Tag{Name: n, Descriptor: d})
		}
	}
	slices.SortFunc(tags, func(a, b Tag) int { return cmp.Compare(a.Name, b.Name) })
	return tags, nil
}

// Resolve finds what name stands for: a tag, or the sha256 digest of a stored
// manifest or index. Neither is [kiterr.ErrNotFound].
func (s *Store) Resolve(ctx context.Context, name string) (ocispec.Descriptor, error) {
	idx, err := s.Index()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	for _, d := range idx.Manifests {
		if d.Annotations[ocispec.AnnotationRefName] == name {
			return d, nil
		}
	}
	if d := digest.Digest(name); d.Validate() == nil {
		return s.Describe(ctx, d)
	}
	return ocispec.Descriptor{}, fmt.Errorf("image %s: %w in the local store", name, kiterr.ErrNotFound)
}

// Describe returns the descriptor of the stored manifest or index d, read from
// the document itself.
func (s *Store) Describe(ctx context.Context, d digest.Digest) (ocispec.Descriptor, error) {
	path, err := s.BlobPath(d)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ocispec.Descriptor{}, fmt.Errorf("image %s: %w in the local store", d, kiterr.ErrNotFound)
	}
	if err != nil {
		return ocispec.Descriptor{}, durable.Explain(path, err)
	}
	desc := ocispec.Descriptor{Digest: d, Size: st.Size()}
	data, err := s.Document(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var head struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
		Config    json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("image %s is not a manifest: %w", d, err)
	}
	switch {
	case head.MediaType != "":
		desc.MediaType = head.MediaType
	case head.Manifests != nil:
		desc.MediaType = ocispec.MediaTypeImageIndex
	case head.Config != nil:
		desc.MediaType = ocispec.MediaTypeImageManifest
	default:
		return ocispec.Descriptor{}, fmt.Errorf("blob %s is not a manifest or index", d)
	}
	return desc, nil
}
