package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A place is where a reference leads.
type place struct {
	layout.Source // of its documents
	root          ocispec.Descriptor
	kind          Kind
	remote        *remoteImage // nil: nothing of it can be had from a registry
}

// explain puts an error about the place in words.
func (p place) explain(err error) error {
	if p.remote != nil && p.remote.asked() {
		return explainRemote(p.remote.ref, p.remote.at, err)
	}
	return err
}

// locate finds what a reference that is no path stands for: in the store, at its
// registry, or at its registry with the store as a cache, as the policy says.
func (f *Fetcher) locate(ctx context.Context, images *layout.Store, ref string) (place, error) {
	none := place{}
	host, remote := registryHost(ref)
	remote = remote && host != LocalDomain
	stored, err := named(ctx, images, ref)
	if err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		return none, err
	}
	have := err == nil
	switch {
	case !remote && have, f.Policy == Never && have:
		return place{images, stored, Store, nil}, nil
	case !remote:
		hint := "'kitbox images' lists what is there"
		if host == LocalDomain && !strings.Contains(ref, "@") {
			hint = fmt.Sprintf("make it with 'kitbox build --tag %s DIR'", ref)
		}
		if _, err := os.Stat(ref); err == nil {
			hint = fmt.Sprintf("write ./%s for the directory or file of that name", ref)
		}
		return none, fmt.Errorf("kit %s: %w in the local store, and its first part names no registry: %s", ref, kiterr.ErrNotFound, hint)
	case f.Policy == Never:
		return none, fmt.Errorf("kit %s: %w in the local store, and with --pull never no registry is asked: get it with 'kitbox pull %s'", ref, kiterr.ErrNotFound, ref)
	}
	src, err := f.remoteImage(images, ref)
	if err != nil {
		return none, err
	}
	src.root = stored
	switch {
	case have && (f.Policy != Always || strings.Contains(ref, "@")):
		// Of an index the store may have one platform only.
		return place{src, stored, Store, src}, nil
	case have:
		now, err := src.head(ctx)
		if err != nil {
			return none, fmt.Errorf("%w; --pull missing takes what the store has of that name, %s", explainRegistry(ref, src.at, err, "", ""), stored.Digest)
		}
		if now.Digest == stored.Digest {
			f.note("%s is %s, as in the store", ref, now.Digest)
			again, err := f.remoteImage(images, ref)
			if err != nil {
				return none, err
			}
			again.root = stored
			return place{again, stored, Store, again}, nil
		}
		f.note("%s is now %s, and was %s", ref, now.Digest, stored.Digest)
		src.root = now
	default:
		f.note("looking up %s", ref)
		if err := src.get(ctx); err != nil {
			return none, explainRemote(ref, src.at, err)
		}
		f.note("%s is %s", ref, src.root.Digest)
	}
	if err := isImage(ref, src.root); err != nil {
		return none, err
	}
	return place{src, src.root, Registry, src}, nil
}

// A Head is what one document of a registry says of a Kit.
type Head struct {
	Ref        string
	Root       ocispec.Descriptor // what the reference stands for
	Descriptor []byte             // the published descriptor
}

// Preflight reads what a reference asks for and nothing else: of a registry's
// image one document, or the manifest of one platform too when the index does
// not carry the descriptor (§9.3), and no layer. References to directories are
// refused; they have no descriptor before they are built.
func (f *Fetcher) Preflight(ctx context.Context, ref string) (Head, error) {
	images, err := f.images()
	if err != nil {
		return Head{}, err
	}
	at, err := f.locate(ctx, images, ref)
	if err != nil {
		return Head{}, err
	}
	descriptor, err := layout.ReadAnnotation(ctx, at, at.root, f.platform(), Annotation)
	if err != nil {
		return Head{}, at.explain(err)
	}
	if descriptor == "" {
		return Head{}, notAKit(ref)
	}
	return Head{Ref: ref, Root: at.root, Descriptor: []byte(descriptor)}, nil
}

func notAKit(name string) error {
	return fmt.Errorf("image %s is not a Kit: its manifest has no annotation %s: %w", name, Annotation, kiterr.ErrRefused)
}

// An Artifact is all that the documents of a Kit say, for every platform that
// it has and that can be had.
type Artifact struct {
	Ref        string
	Source     Kind
	Root       ocispec.Descriptor
	Descriptor []byte
	Images     []layout.Image // in the order of the index
}

// Artifact reads the documents of all platforms of ref, and no layer. An image
// whose platforms carry different descriptors is refused: it is not one Kit.
func (f *Fetcher) Artifact(ctx context.Context, ref string) (*Artifact, error) {
	images, err := f.images()
	if err != nil {
		return nil, err
	}
	at, err := f.locate(ctx, images, ref)
	if err != nil {
		return nil, err
	}
	all, err := layout.ReadAll(ctx, at, at.root)
	if err != nil {
		return nil, at.explain(err)
	}
	a := &Artifact{Ref: ref, Source: at.kind, Root: at.root, Images: all}
	for _, im := range all {
		d, ok := im.Annotations[Annotation]
		if !ok {
			return nil, notAKit(ref)
		}
		if own, ok := im.Manifest.Annotations[Annotation]; ok && own != d || a.Descriptor != nil && d != string(a.Descriptor) {
			return nil, fmt.Errorf("kit %s states different descriptors for its platforms, %s among them: publish it again as one [SPEC-v3 §9.5/declarations-platform-independent]: %w",
				ref, im.Platform(), kiterr.ErrRefused)
		}
		a.Descriptor = []byte(d)
	}
	return a, nil
}
