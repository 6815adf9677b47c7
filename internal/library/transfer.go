package library

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
	"github.com/kitbox-dev/kitbox/internal/progress"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

var (
	_ sandbox.ImageStore   = (*Library)(nil)
	_ sandbox.ImageManager = (*Library)(nil)
	_ sandbox.Builder      = (*Library)(nil)
	_ sandbox.Preflighter  = (*Library)(nil)
)

// storeFor opens the image store and a fetcher for it.
func (l *Library) storeFor(tell func(sandbox.Event)) (*layout.Store, *fetch.Fetcher, error) {
	if err := l.c.Privilege(); err != nil {
		return nil, nil, err
	}
	home, err := l.c.Open()
	if err != nil {
		return nil, nil, err
	}
	images, err := home.Images()
	return images, progress.Fetcher(l.c.Fetcher, sandbox.CreateOptions{Progress: tell}), err
}

// Push implements [sandbox.ImageManager].
func (l *Library) Push(ctx context.Context, ref, target string, tell func(sandbox.Event)) (string, error) {
	_, f, err := l.storeFor(tell)
	if err != nil {
		return "", err
	}
	d, err := f.Push(ctx, ref, target)
	return d.String(), err
}

// Preflight implements [sandbox.Preflighter]. It always asks: who looks wants to
// know what a name stands for now.
func (l *Library) Preflight(ctx context.Context, ref string) (sandbox.Glance, error) {
	_, f, err := l.storeFor(nil)
	if err != nil {
		return sandbox.Glance{}, err
	}
	f.Policy = fetch.Always
	h, err := f.Preflight(ctx, ref)
	return sandbox.Glance{Ref: ref, Digest: h.Root.Digest.String(), Descriptor: h.Descriptor}, err
}

// Pull implements [sandbox.ImageManager].
func (l *Library) Pull(ctx context.Context, ref string, o sandbox.PullOptions) (sandbox.Image, error) {
	images, f, err := l.storeFor(o.Progress)
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
func (l *Library) TagImage(ctx context.Context, ref, name string) error {
	images, f, err := l.storeFor(nil)
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
func (l *Library) InspectImage(ctx context.Context, ref string) (*sandbox.ImageDetails, error) {
	images, f, err := l.storeFor(nil)
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
	d.Platform = im.Platform()
	if d.Platforms, err = layout.ReadPlatforms(ctx, images, root); err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
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
func (l *Library) RemoveImage(ctx context.Context, ref string) error {
	images, _, err := l.storeFor(nil)
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
func (l *Library) PruneImages(ctx context.Context, grace time.Duration) (sandbox.Pruned, error) {
	if _, _, err := l.storeFor(nil); err != nil {
		return sandbox.Pruned{}, err
	}
	home, err := l.c.Open()
	if err != nil {
		return sandbox.Pruned{}, err
	}
	s, err := home.Sweep(ctx, grace)
	return sandbox.Pruned{Blobs: s.Blobs, Layers: s.Layers, Bytes: s.Bytes}, err
}

// SaveImages implements [sandbox.ImageManager].
func (l *Library) SaveImages(ctx context.Context, refs []string, w io.Writer) error {
	images, f, err := l.storeFor(nil)
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
func (l *Library) LoadImages(ctx context.Context, r io.Reader) ([]string, error) {
	images, _, err := l.storeFor(nil)
	if err != nil {
		return nil, err
	}
	return images.Load(ctx, r)
}
