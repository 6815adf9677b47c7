// Package kitset publishes sets (§3.4, §9.5): it resolves the Kits that a set
// lists to digests, lets package merge below judge and merge them, and assembles
// the image of the result out of the layer descriptors they have.
//
// No layer is read for it and no builder is needed. Only the set's own sources
// become a new layer. What it makes is in the local store afterwards, apart from
// the layers of the Kits, which package fetch knows to get, or to mount from
// repository to repository, when they are needed.
package kitset

import (
	"context"
	"fmt"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// An Assembler assembles sets. It can be used concurrently.
type Assembler struct {
	// Builder goes into the built-by annotation.
	Builder annotation.Builder

	// SourceDateEpoch is that of the environment, the only time that a set
	// states; empty: none.
	SourceDateEpoch string
}

// Assemble makes the image of s in images, for f.Platforms or all platforms
// that the Kits share, and returns its root: a manifest, or an index if there are
// several. The same set of the same Kits gives the same bytes. It implements
// [fetch.Fetcher.Sets].
//
// Everything is decided before anything is stored. A member that is no Kit, that
// is not what its digest says, that does not go with the others or lacks a
// platform is [kiterr.ErrRefused].
func (a Assembler) Assemble(ctx context.Context, f *fetch.Fetcher, images *layout.Store, s fetch.SetSource) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	epoch, err := annotation.ParseEpoch(a.SourceDateEpoch)
	if err != nil {
		return none, err
	}
	own, staged, err := authored(s)
	if err != nil {
		return none, err
	}
	src := merge.Source{Stem: authoring.Stem(s.File), Name: s.Name, Set: own}
	at := func(err error) error { return fmt.Errorf("%s: %w", filepath.Join(s.Dir, s.File), err) }
	if err := src.Check(); err != nil {
		return none, at(err)
	}
	artifacts, members, err := fetchMembers(ctx, f, own.Kits)
	if err != nil {
		return none, at(err)
	}
	var listed []fetch.Listed
	for i, m := range members {
		listed = append(listed, fetch.Listed{Ref: m.Ref, Digest: m.Digest, Descriptor: string(artifacts[i].Descriptor)})
	}
	if err := f.Acyclic(ctx, s.Name, listed); err != nil {
		return none, at(err)
	}
	set, err := merge.Of(src, members, annotation.Options{Builder: &a.Builder, SourceDateEpoch: epoch})
	if err != nil {
		return none, at(err)
	}
	platforms, err := set.Platforms(f.Platforms)
	if err != nil {
		return none, at(err)
	}
	if f.Notice != nil && len(f.Platforms) == 0 {
		for _, line := range set.Dropped(platforms) {
			f.Notice(line)
		}
	}
	im := image{set: set, artifacts: artifacts, members: members}
	if err := im.stage(s.Dir, staged); err != nil {
		return none, err
	}
	halves, err := im.halves(platforms)
	if err != nil {
		return none, at(err)
	}
	// Layers are looked into last, when all documents have been found to go together.
	if err := apart(ctx, f, src.Stem, own.Kits, artifacts, members); err != nil {
		return none, at(err)
	}
	return im.store(ctx, images, halves, f.Notice, at)
}

// authored is the set as its author wrote it, with build-phase arguments
// expanded, and the files to stage for it.
func authored(s fetch.SetSource) (spec.Descriptor, []content.Staged, error) {
	none := spec.Descriptor{}
	name := filepath.Join(s.Dir, s.File)
	text, err := authoring.Read(name)
	if err != nil {
		return none, nil, fmt.Errorf("reading %s: %w", name, err)
	}
	doc, ds := spec.Decode(text, spec.Options{File: name})
	if doc != nil {
		ds = append(ds, doc.Validate()...)
	}
	if err := ds.Err(); err != nil {
		return none, nil, err
	}
	values, err := expand.ResolveArgs(doc.Args, s.Args, expand.PhaseBuild)
	if err != nil {
		return none, nil, fmt.Errorf("%s: %w", name, err)
	}
	d, err := expand.Build(doc.Descriptor, values)
	if err != nil {
		return none, nil, fmt.Errorf("%s: %w", name, err)
	}
	d, staged, err := content.Stage(d, authoring.Stem(s.File))
	if err != nil {
		return none, nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, staged, nil
}
