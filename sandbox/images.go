package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// An ImageManager moves images between its store, registries and files. Get one
// with [ManageImages].
type ImageManager interface {
	// Push sends the image ref of the store to the registry of target and
	// names it there. It returns the digest of what the name stands for.
	Push(ctx context.Context, ref, target string, progress func(Event)) (string, error)

	// Pull gets ref from its registry into the store, always asking it.
	Pull(ctx context.Context, ref string, o PullOptions) (Image, error)

	// TagImage gives what ref stands for another name in the store.
	TagImage(ctx context.Context, ref, name string) error

	// InspectImage returns all that the documents of an image say.
	InspectImage(ctx context.Context, ref string) (*ImageDetails, error)

	// RemoveImage takes a name out of the store. What it stood for stays
	// until it is pruned.
	RemoveImage(ctx context.Context, ref string) error

	// PruneImages deletes what nothing leads to and nobody used within grace.
	PruneImages(ctx context.Context, grace time.Duration) (Pruned, error)

	// SaveImages writes images as the tar of an OCI image layout.
	SaveImages(ctx context.Context, refs []string, w io.Writer) error

	// LoadImages reads such a tar and returns the names it brought.
	LoadImages(ctx context.Context, r io.Reader) ([]string, error)
}

// ManageImages returns what moves the images of s. A store that cannot answers
// [kiterr.ErrUnsupported].
func ManageImages(s ImageStore) (ImageManager, error) {
	m, ok := s.(ImageManager)
	if !ok {
		return nil, fmt.Errorf("this store of images cannot move them (%T): %w", s, kiterr.ErrUnsupported)
	}
	return m, nil
}

// A Preflighter can say what a reference asks for before anything of it is got.
// Use [Preflight].
type Preflighter interface {
	Preflight(ctx context.Context, ref string) (Glance, error)
}

// A Glance is one document of a Kit.
type Glance struct {
	Ref        string          `json:"ref"`
	Digest     string          `json:"digest"`     // of what the reference stands for
	Descriptor json.RawMessage `json:"descriptor"` // as published
}

// Preflight reads the descriptor of a Kit of a registry or of the store, in one
// request and without any of its content. A store that cannot answers
// [kiterr.ErrUnsupported].
func Preflight(ctx context.Context, s ImageStore, ref string) (Glance, error) {
	p, ok := s.(Preflighter)
	if !ok {
		return Glance{}, fmt.Errorf("this store of images cannot look at what it does not have (%T): %w", s, kiterr.ErrUnsupported)
	}
	return p.Preflight(ctx, ref)
}

// PullOptions say what of an image is wanted. The zero value is this machine's.
type PullOptions struct {
	Platform string // os/arch or os/arch/variant; empty: this machine's
	Progress func(Event)
}

// ImageDetails are what an image says of itself on this machine's platform.
type ImageDetails struct {
	Image
	Root        string            `json:"root"`                // digest of the index, or of the manifest itself
	Platform    string            `json:"platform"`            // of what follows
	Platforms   []string          `json:"platforms,omitempty"` // of the index, sorted, in the store or not; none: there is no index
	Annotations map[string]string `json:"annotations"`         // without the descriptor
	Descriptor  json.RawMessage   `json:"descriptor,omitempty"`
	Config      json.RawMessage   `json:"config"`
	Layers      []ImageLayer      `json:"layers"` // lowest first
}

// An ImageLayer is one layer of an image.
type ImageLayer struct {
	Digest    string `json:"digest"`
	DiffID    string `json:"diffId"`
	SizeBytes int64  `json:"sizeBytes"`
	Stored    bool   `json:"stored"` // false: fetched when it is needed
}
