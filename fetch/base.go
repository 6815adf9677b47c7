package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Base is an image of a registry that a recipe builds on or copies from, and
// what its name stood for.
type Base struct {
	Ref    string        `json:"ref"`
	Digest digest.Digest `json:"digest"`
}

// Image gets an image, Kit or not, into the local store for this Fetcher's
// platform, as its Policy says, and returns its root: the index where there is
// one. With [Never] an image that the store has not all of is
// [kiterr.ErrNotFound].
func (f *Fetcher) Image(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	images, err := f.images()
	if err != nil {
		return none, err
	}
	at, err := f.locate(ctx, images, ref)
	if err != nil {
		return none, err
	}
	img, err := layout.ReadImage(ctx, at, at.root, f.platform())
	if err != nil {
		if at.remote == nil && errors.Is(err, kiterr.ErrNotFound) {
			return none, fmt.Errorf("%s: %w; with --pull %s no registry is asked", ref, err, f.Policy)
		}
		return none, at.explain(err)
	}
	if at.remote != nil {
		return at.root, f.bring(ctx, at.remote, img.Descriptor.Digest, img.Manifest)
	}
	for _, l := range img.Manifest.Layers {
		if ok, err := images.Exists(ctx, l); err != nil || !ok {
			return none, errors.Join(err, fmt.Errorf("%s: layer %s: %w in the local store, and with --pull never no registry is asked", ref, l.Digest, kiterr.ErrNotFound))
		}
	}
	return at.root, nil
}

// moved reports whether one of the names of bases stands for something else now.
func (f *Fetcher) moved(ctx context.Context, images *layout.Store, bases []Base) (bool, error) {
	for _, b := range bases {
		src, err := f.remoteImage(images, b.Ref)
		if err != nil {
			return false, err
		}
		if src.at.ValidateReferenceAsDigest() == nil {
			continue // it cannot
		}
		now, err := src.head(ctx)
		if err != nil {
			return false, fmt.Errorf("%w; --pull missing takes what it was built on, %s", explainRegistry(b.Ref, src.at, err, "", ""), b.Digest)
		}
		if now.Digest != b.Digest {
			f.note("%s is now %s, and was %s", b.Ref, now.Digest, b.Digest)
			return true, nil
		}
		f.note("%s is %s, as in the store", b.Ref, now.Digest)
	}
	return false, nil
}
