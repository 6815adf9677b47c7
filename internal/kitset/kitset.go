// Package kitset publishes sets (§3.4, §9.5): it resolves the Kits that a set
// lists to digests, lets package resolve judge and merge them, and assembles the
// image of the result out of the layer descriptors they have.
//
// No layer is read for it and no builder is needed. Only the set's own sources
// become a new layer. What it makes is in the local store afterwards, apart from
// the layers of the Kits, which package fetch knows to get, or to mount from
// repository to repository, when they are needed.
package kitset

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// An Assembler assembles sets. It can be used concurrently.
type Assembler struct {
	// Builder goes into the built-by annotation.
	Builder annotation.Builder

	// SourceDateEpoch is that of the environment in seconds, the only time
	// that a set states; nil: none.
	SourceDateEpoch *int64
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
	own, staged, err := authored(s)
	if err != nil {
		return none, err
	}
	stem := authoring.Stem(s.File)
	for i, k := range own.Kits {
		if key(s.Name) != "" && key(k.Ref) == key(s.Name) {
			return none, fmt.Errorf("%s: kits[%d]: the set lists itself, %s: %w", filepath.Join(s.Dir, s.File), i, k.Ref, kiterr.ErrRefused)
		}
	}
	members, err := fetchMembers(ctx, f, own.Kits)
	if err != nil {
		return none, fmt.Errorf("%s: %w", filepath.Join(s.Dir, s.File), err)
	}
	if err := acyclic(s.Name, members); err != nil {
		return none, fmt.Errorf("set %s: %w", stem, err)
	}
	var listed []fetch.Listed
	for _, m := range members {
		listed = append(listed, fetch.Listed{Ref: m.ref, Digest: m.Root.Digest.String(), Descriptor: string(m.Descriptor)})
	}
	if err := f.Acyclic(ctx, s.Name, listed); err != nil {
		return none, fmt.Errorf("set %s: %w", stem, err)
	}
	if err := separateStems(stem, members); err != nil {
		return none, err
	}
	var kits []resolve.Kit
	for _, m := range members {
		kits = append(kits, resolve.Kit{Ref: m.ref, Digest: m.Root.Digest.String(), Descriptor: m.descriptor})
	}
	merged, err := resolve.MergeSet(own, kits)
	if err != nil {
		return none, fmt.Errorf("set %s: %w", stem, err)
	}
	annotations, err := annotation.Derive(merged.Descriptor, annotation.Options{Builder: &a.Builder, SourceDateEpoch: a.SourceDateEpoch})
	if err != nil {
		return none, err
	}
	if _, err := spec.DecodePublished([]byte(annotations[annotation.Descriptor])); err != nil {
		return none, fmt.Errorf("set %s: what its Kits come to is no descriptor that can be published: %w", stem, err)
	}
	platforms, err := platforms(members, f.Platforms)
	if err != nil {
		return none, fmt.Errorf("set %s: %w", stem, err)
	}
	if f.Notice != nil && len(f.Platforms) == 0 {
		for _, line := range dropped(members, platforms) {
			f.Notice(line)
		}
	}
	sources, err := sourceLayer(s.Dir, stem, annotations[annotation.Descriptor], staged)
	if err != nil {
		return none, err
	}
	im := image{merged: merged, members: members, stem: stem, annotations: annotations, sources: sources}
	if a.SourceDateEpoch != nil {
		im.epoch = *a.SourceDateEpoch
	}
	return im.store(ctx, images, platforms)
}

// authored is the set as its author wrote it, with build-phase arguments
// expanded, and the files to stage for it.
func authored(s fetch.SetSource) (spec.Descriptor, []content.Staged, error) {
	none := spec.Descriptor{}
	name := filepath.Join(s.Dir, s.File)
	text, err := os.ReadFile(name)
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

// acyclic refuses a set in another that is in it, by name, and a Kit that another listed one,
// which is a set, has brought already. By digest nothing can contain itself, but
// the names are what people build again.
func acyclic(name string, members []*member) error {
	self := key(name)
	for i, m := range members {
		for _, inner := range m.descriptor.Kits {
			if self != "" && key(inner.Ref) == self {
				return fmt.Errorf("kits[%d]: %s is a set that lists %s, so that each would be in the other: %w", i, m.ref, name, kiterr.ErrRefused)
			}
			for j, o := range members {
				if j != i && (key(o.ref) == key(inner.Ref) || o.Root.Digest.String() == inner.Digest) {
					return fmt.Errorf("kits[%d]: %s is in the set %s of kits[%d] already: list one of them: %w", j, o.ref, m.ref, i, kiterr.ErrRefused)
				}
			}
		}
	}
	return nil
}

// key is what references to one image share; empty for what is none.
func key(ref string) string {
	img, err := constraint.ParseImage(ref)
	if err != nil {
		return ""
	}
	return img.Key()
}

// separateStems refuses sources that would be staged over each other, as far as
// the documents tell: a merged Kit carries those of every Kit it lists (§10).
func separateStems(own string, members []*member) error {
	owner := map[string]string{own: "the set itself"}
	for _, m := range members {
		for _, stem := range m.stems() {
			if first, taken := owner[stem]; taken && first != m.ref {
				return fmt.Errorf("kits: %s and %s both keep their sources in %s/%s, and the set carries both [SPEC-v3 §10/merged-set-carries-sources]: name one descriptor's file otherwise and publish it again: %w",
					first, m.ref, content.StageRoot, stem, kiterr.ErrRefused)
			}
			owner[stem] = m.ref
		}
	}
	return nil
}
