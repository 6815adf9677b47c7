package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Blob hands a blob of the image that ref names to use: that of the store, or else
// the registry's, which does not come into the store. A blob is what d says if it
// was read to its end, and use can be called again if a registry broke off. The error is
// [kiterr.ErrNotFound] if nobody who may be asked has it, matches [kiterr.ErrRefused] if
// what a registry has is something else, or is that of use.
func (f *Fetcher) Blob(ctx context.Context, ref string, d ocispec.Descriptor, use func(io.Reader) error) error {
	images, err := f.images()
	if err != nil {
		return err
	}
	rc, err := images.Fetch(ctx, d)
	if err == nil {
		defer rc.Close()
		return use(rc)
	}
	if !errors.Is(err, kiterr.ErrNotFound) || f.Policy == Never || strings.HasPrefix(ref, LocalDomain+"/") {
		return err
	}
	r, err := registry.ParseReference(ref)
	if err != nil {
		return fmt.Errorf("kit %s: %w: %w", ref, err, kiterr.ErrNotFound)
	}
	return f.fromOrigins(ctx, d, []registry.Reference{r}, func(r io.Reader, at string) error { return verified(r, d, at, use) })
}
