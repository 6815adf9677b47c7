package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

var _ sandbox.ImageManager = (*Engine)(nil)

// storeFor opens the image store and a fetcher for it.
func (e *Engine) storeFor(progress func(sandbox.Event)) (*layout.Store, *fetch.Fetcher, error) {
	if err := e.privilege(); err != nil {
		return nil, nil, err
	}
	if err := e.ready(); err != nil {
		return nil, nil, err
	}
	images, err := e.home.Images()
	return images, e.fetcher(sandbox.CreateOptions{Progress: progress}), err
}

// Push implements [sandbox.ImageManager].
func (e *Engine) Push(ctx context.Context, ref, target string, progress func(sandbox.Event)) (string, error) {
	_, f, err := e.storeFor(progress)
	if err != nil {
		return "", err
	}
	d, err := f.Push(ctx, ref, target)
	return d.String(), err
}

// Preflight implements [sandbox.Preflighter]. It always asks: who looks wants to
// know what a name stands for now.
func (e *Engine) Preflight(ctx context.Context, ref string) (sandbox.Glance, error) {
	_, f, err := e.storeFor(nil)
	if err != nil {
		return sandbox.Glance{}, err
	}
	f.Policy = fetch.Always
	h, err := f.Preflight(ctx, ref)
	return sandbox.Glance{Ref: ref, Digest: h.Root.Digest.String(), Descriptor: h.Descriptor}, err
}

// Pull implements [sandbox.ImageManager].
func (e *Engine) Pull(ctx context.Context, ref string, o sandbox.PullOptions) (sandbox.Image, error) {
	images, f, err := e.storeFor(o.Progress)
	if err != nil {
		return sandbox.Image{}, err
	}
	f.Platform = layout.HostPlatform()
	if o.Platform != "" {
		if f.Platform, err = layout.ParsePlatform(o.Platform); err != nil {
			return sandbox.Image{}, err
		}
	}
	d, err := f.PullImage(ctx, ref)
	if err != nil {
		return sandbox.Image{}, err
	}
	im, err := images.Image(ctx, d, f.Platform)
	if err != nil {
		return sandbox.Image{}, err
	}
	return describe(ref, im), nil
}

// TagImage implements [sandbox.ImageManager].
func (e *Engine) TagImage(ctx context.Context, ref, name string) error {
	images, f, err := e.storeFor(nil)
	if err != nil {
		return err
	}
	d, err := f.Lookup(ctx, ref)
	if err != nil {
		return err
	}
	if name, err = tagName(name); err != nil {
		return err
	}
	return images.Tag(ctx, d, name)
}

// tagName is the name that an image gets in the store: with a tag, as everybody
// who looks it up without one means.
func tagName(name string) (string, error) {
	img, err := constraint.ParseImage(name)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	case img.Digest != "":
		return "", fmt.Errorf("%s: a digest belongs to what has it and cannot be given: leave it out: %w", name, kiterr.ErrRefused)
	case img.Tag == "":
		return name + ":latest", nil
	}
	return name, nil
}

// InspectImage implements [sandbox.ImageManager].
func (e *Engine) InspectImage(ctx context.Context, ref string) (*sandbox.ImageDetails, error) {
	images, f, err := e.storeFor(nil)
	if err != nil {
		return nil, err
	}
	root, err := f.Lookup(ctx, ref)
	if err != nil {
		return nil, err
	}
	im, err := anImage(ctx, images, root)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	d := &sandbox.ImageDetails{Image: describe(ref, im), Root: root.Digest.String(), Annotations: maps.Clone(im.Annotations)}
	d.Platform = im.Config.OS + "/" + im.Config.Architecture
	if text := im.Annotations[fetch.Annotation]; json.Valid([]byte(text)) {
		d.Descriptor = json.RawMessage(text)
		delete(d.Annotations, fetch.Annotation)
	}
	if d.Config, err = json.Marshal(im.Config.Config); err != nil {
		return nil, err
	}
	for _, l := range im.Layers() {
		stored, err := images.Exists(ctx, l.Blob)
		if err != nil {
			return nil, err
		}
		d.Layers = append(d.Layers, sandbox.ImageLayer{Digest: l.Blob.Digest.String(), DiffID: l.DiffID.String(), SizeBytes: l.Blob.Size, Stored: stored})
	}
	return d, nil
}

// RemoveImage implements [sandbox.ImageManager].
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	images, _, err := e.storeFor(nil)
	if err != nil {
		return err
	}
	err = images.Untag(ctx, ref)
	if latest, terr := tagName(ref); errors.Is(err, kiterr.ErrNotFound) && terr == nil && latest != ref {
		err = images.Untag(ctx, latest)
	}
	if errors.Is(err, kiterr.ErrNotFound) {
		return fmt.Errorf("image %s: %w: 'kitbox images' lists the names there are", ref, kiterr.ErrNotFound)
	}
	return err
}

// PruneImages implements [sandbox.ImageManager].
func (e *Engine) PruneImages(ctx context.Context, grace time.Duration) (sandbox.Pruned, error) {
	if _, _, err := e.storeFor(nil); err != nil {
		return sandbox.Pruned{}, err
	}
	s, err := e.home.Sweep(ctx, grace)
	return sandbox.Pruned{Blobs: s.Blobs, Layers: s.Layers, Bytes: s.Bytes}, err
}

// SaveImages implements [sandbox.ImageManager].
func (e *Engine) SaveImages(ctx context.Context, refs []string, w io.Writer) error {
	images, f, err := e.storeFor(nil)
	if err != nil {
		return err
	}
	var tags []layout.Tag
	for _, ref := range refs {
		d, err := f.Lookup(ctx, ref)
		if err != nil {
			return err
		}
		// The layers of a set may still be where its Kits came from.
		if err := f.Complete(ctx, d); err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
		if digest.Digest(ref).Validate() != nil && !strings.Contains(ref, "@") {
			if ref, err = tagName(ref); err != nil {
				return err
			}
		}
		tags = append(tags, layout.Tag{Name: ref, Descriptor: d})
	}
	return images.Save(ctx, tags, w)
}

// LoadImages implements [sandbox.ImageManager].
func (e *Engine) LoadImages(ctx context.Context, r io.Reader) ([]string, error) {
	images, _, err := e.storeFor(nil)
	if err != nil {
		return nil, err
	}
	return images.Load(ctx, r)
}
