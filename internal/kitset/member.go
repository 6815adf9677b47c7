package kitset

import (
	"context"
	"fmt"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// lookups is how many Kits are asked for at once.
const lookups = 8

// fetchMembers resolves every listed Kit, in the order of the list. What is
// pinned is what the reference stands for: the index, where there is one.
func fetchMembers(ctx context.Context, f *fetch.Fetcher, list []spec.KitRef) ([]*fetch.Artifact, []merge.Member, error) {
	artifacts, members := make([]*fetch.Artifact, len(list)), make([]merge.Member, len(list))
	var size atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookups)
	for i, k := range list {
		g.Go(func() (err error) {
			if artifacts[i], members[i], err = fetchMember(gctx, f, k); err != nil {
				return &merge.Error{Path: fmt.Sprintf("kits[%d]", i), Err: err}
			}
			for _, im := range artifacts[i].Images {
				if size.Add(im.Descriptor.Size+im.Manifest.Config.Size) > merge.MaxDocuments {
					return &merge.Error{Path: fmt.Sprintf("kits[%d]", i), Err: fmt.Errorf("with those of %s the documents of the listed Kits have more than %d bytes: %w", k.Ref, merge.MaxDocuments, kiterr.ErrRefused)}
				}
			}
			return nil
		})
	}
	return artifacts, members, g.Wait()
}

func fetchMember(ctx context.Context, f *fetch.Fetcher, k spec.KitRef) (*fetch.Artifact, merge.Member, error) {
	m := merge.Member{Ref: k.Ref}
	ref, err := merge.Pinned(k)
	if err != nil {
		return nil, m, err
	}
	a, err := f.Artifact(ctx, ref)
	if err != nil {
		return nil, m, err
	}
	doc, err := spec.DecodePublished(a.Descriptor)
	if err != nil {
		return nil, m, fmt.Errorf("kit %s: %w", k.Ref, err)
	}
	m.Digest, m.Descriptor = a.Root.Digest.String(), doc.Descriptor
	for _, im := range a.Images {
		if err := merge.Stated(im.Descriptor.Platform, im.Config.Platform); err != nil {
			return nil, m, fmt.Errorf("kit %s: %w", k.Ref, err)
		}
		m.Images = append(m.Images, merge.Image{Platform: platformOf(im), Config: im.Config})
	}
	return a, m, nil
}

func platformOf(im layout.Image) ocispec.Platform {
	if p := im.Descriptor.Platform; p != nil && p.OS != "" {
		return *p
	}
	return im.Config.Platform
}
