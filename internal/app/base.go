package app

import (
	"cmp"
	"context"

	"github.com/kitbox-dev/kitbox/internal/platform"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// base makes the platform base in h's image store.
func base(ctx context.Context, h *store.Home, o sandbox.BaseOptions) (sandbox.Image, error) {
	images, err := h.Images()
	if err != nil {
		return sandbox.Image{}, err
	}
	p := platform.Options{Ref: o.Ref, Force: o.Force, Mirror: o.Mirror, Suite: o.Suite, Rootfs: o.Rootfs}
	if o.Progress != nil {
		p.Progress = func(line string) { o.Progress(sandbox.Event{Step: "base", Detail: line}) }
	}
	id, err := platform.Create(ctx, images, p)
	if err != nil {
		return sandbox.Image{}, err
	}
	desc, err := images.Describe(ctx, id)
	if err != nil {
		return sandbox.Image{}, err
	}
	im, err := images.Image(ctx, desc, layout.HostPlatform())
	if err != nil {
		return sandbox.Image{}, err
	}
	size := im.Manifest.Config.Size
	for _, l := range im.Manifest.Layers {
		size += l.Size
	}
	return sandbox.Image{Ref: cmp.Or(o.Ref, platform.Ref), Digest: id.String(), SizeBytes: size}, nil
}
