package fetch

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// maxBelow and maxDepth bound the Kits that are looked at below a set, and through
// how many sets. Registries decide how far that goes.
const (
	maxBelow = 1000
	maxDepth = 32
)

// A Listed is a Kit that a set lists.
type Listed struct {
	Ref        string // as the set lists it
	Digest     string // what it stands for; empty: not pinned, and not followed
	Descriptor string // the published one; empty: it is looked up
}

// Acyclic refuses the Kits of a set that is to be called name if that is below
// one of them, or if one of the sets below them is in itself, by name; an empty
// name is below none. By digest nothing can contain itself, but the names are what
// people build again.
//
// Sets are followed by the digests that they pin, each once, and only documents
// are read. A Kit that cannot be had any more, or that only others may read, ends
// its branch and is told to Notice.
func (f *Fetcher) Acyclic(ctx context.Context, name string, kits []Listed) error {
	images, err := f.images()
	if err != nil {
		return err
	}
	below := map[string][]Listed{} // by digest: what that lists
	total := 0
	for level, depth := kits, 0; len(level) > 0; depth++ {
		if total += len(level); depth > 0 && total > maxBelow {
			return fmt.Errorf("the sets below it list more than %d Kits: %w", maxBelow, kiterr.ErrRefused)
		}
		if depth > maxDepth {
			return fmt.Errorf("kit %s is below more than %d sets in each other: %w", level[0].Ref, maxDepth, kiterr.ErrRefused)
		}
		var fresh []Listed
		for _, k := range level {
			if _, known := below[k.Digest]; !known && k.Digest != "" {
				below[k.Digest] = nil
				fresh = append(fresh, k)
			}
		}
		lists := make([][]Listed, len(fresh))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(2 * pulls)
		for i, k := range fresh {
			g.Go(func() (err error) {
				lists[i], err = f.list(gctx, images, k)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		level = nil
		for i, k := range fresh {
			below[k.Digest] = lists[i]
			level = append(level, lists[i]...)
		}
	}
	if way := wayTo(imageKey(name), kits, below, map[string]bool{}); way != nil {
		return ring(name, way)
	}
	return rings(kits, below, map[string]bool{})
}

// rings refuses what is in itself among kits and below them.
func rings(kits []Listed, below map[string][]Listed, seen map[string]bool) error {
	for _, k := range kits {
		if seen[k.Digest] {
			continue
		}
		seen[k.Digest] = true
		if way := wayTo(imageKey(k.Ref), below[k.Digest], below, map[string]bool{}); way != nil {
			return ring(k.Ref, way)
		}
		if err := rings(below[k.Digest], below, seen); err != nil {
			return err
		}
	}
	return nil
}

func ring(name string, way []string) error {
	return fmt.Errorf("set %s is in itself, so that none of them could be built without the others: it lists %s: %w", name, strings.Join(way, ", which lists "), kiterr.ErrRefused)
}

// wayTo returns the references from one of kits to one of the image key, or nil.
func wayTo(key string, kits []Listed, below map[string][]Listed, seen map[string]bool) []string {
	if key == "" {
		return nil
	}
	for _, k := range kits {
		if imageKey(k.Ref) == key {
			return []string{k.Ref}
		}
		if seen[k.Digest] {
			continue
		}
		seen[k.Digest] = true
		if way := wayTo(key, below[k.Digest], below, seen); way != nil {
			return append([]string{k.Ref}, way...)
		}
	}
	return nil
}

// imageKey is what references to one image share; empty for what is none.
func imageKey(ref string) string {
	img, err := constraint.ParseImage(ref)
	if err != nil {
		return ""
	}
	return img.Key()
}

// list returns the Kits that k lists.
func (f *Fetcher) list(ctx context.Context, images *layout.Store, k Listed) ([]Listed, error) {
	descriptor := k.Descriptor
	if descriptor == "" {
		var err error
		descriptor, err = f.descriptorOf(ctx, images, k)
		if errors.Is(err, kiterr.ErrNotFound) {
			f.note("whether %s lists other Kits is not known: %v", k.Ref, err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	kits := listed(descriptor)
	for _, in := range kits {
		if !constraint.ValidDigest(in.Digest) {
			return nil, fmt.Errorf("kit %s is a set that does not pin %s by a digest [SPEC-v3 §3.4]: %w", k.Ref, in.Ref, kiterr.ErrRefused)
		}
	}
	return kits, nil
}

// descriptorOf reads the descriptor of exactly the image that k is pinned to.
func (f *Fetcher) descriptorOf(ctx context.Context, images *layout.Store, k Listed) (string, error) {
	img, err := constraint.ParseImage(k.Ref)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	var src layout.Source = images
	root, err := images.Describe(ctx, digest.Digest(k.Digest))
	if errors.Is(err, kiterr.ErrNotFound) && f.Policy != Never && !strings.HasPrefix(img.Repository, LocalDomain+"/") {
		var r *remoteImage
		if r, err = f.remoteImage(images, img.Repository+"@"+k.Digest); err != nil {
			return "", err
		}
		if err = r.get(ctx); err != nil {
			return "", explainRemote(k.Ref, r.at, err)
		}
		src, root = r, r.root
	}
	if err != nil {
		return "", err
	}
	if root.Digest.String() != k.Digest {
		return "", fmt.Errorf("kit %s: its registry has %s in place of %s: %w", k.Ref, root.Digest, k.Digest, kiterr.ErrRefused)
	}
	descriptors, err := layout.ReadAnnotations(ctx, src, ocispec.Descriptor{MediaType: root.MediaType, Digest: root.Digest, Size: root.Size}, Annotation)
	if err != nil {
		return "", fmt.Errorf("kit %s: %w", k.Ref, err)
	}
	if len(descriptors) != 1 {
		return "", fmt.Errorf("kit %s has %d descriptors instead of one: %w", k.Ref, len(descriptors), kiterr.ErrRefused)
	}
	return descriptors[0], nil
}
