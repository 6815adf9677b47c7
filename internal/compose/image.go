package compose

import (
	"context"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/progress"
	"github.com/kitbox-dev/kitbox/internal/rootfs"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// imageConfig is the config of the image that kits, the workload first, come to.
func imageConfig(kits []loadedKit) (ocispec.ImageConfig, error) {
	var parts []assemble.Part
	for _, k := range kits {
		parts = append(parts, assemble.Part{Kit: k.image.Ref, Config: k.image.Config.Config})
	}
	config, err := assemble.Config(parts[0], parts[1:])
	if err != nil {
		return config, err
	}
	if len(config.Entrypoint)+len(config.Cmd) == 0 {
		return config, fmt.Errorf("kit %s: its image states neither an entrypoint nor a command: %w", kits[0].image.Ref, kiterr.ErrRefused)
	}
	return config, nil
}

// rootfs returns the directories that make up the root file system of kits, the
// workload first, getting what is missing of them.
func (c *Composer) rootfs(ctx context.Context, o sandbox.CreateOptions, kits []loadedKit) (rootfs.View, error) {
	f := progress.Fetcher(c.c.Fetcher, o)
	var images []*fetch.Kit
	for _, k := range kits {
		if err := f.Pull(ctx, k.image); err != nil {
			return nil, err
		}
		images = append(images, k.image)
	}
	dirs, err := assemble.Rootfs(ctx, c.c.Home, images, func(kit string) {
		if o.Progress != nil {
			o.Progress(sandbox.Event{Step: "unpack", Detail: kit})
		}
	})
	return rootfs.View(dirs), err
}

// swapLayers returns the layers of m with the owners that its map asks for: as
// they are, or copies.
func (c *Composer) swapLayers(ctx context.Context, o sandbox.CreateOptions, m plan.Machine) ([]string, error) {
	if m.IDMap.Swap == (plan.Swap{}) {
		return m.Layers, nil
	}
	home, err := c.c.Open()
	if err != nil {
		return nil, err
	}
	store, err := home.Layers()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dir := range m.Layers {
		swapped, err := store.Swapped(ctx, dir, m.IDMap.Swap.UID, m.IDMap.Swap.GID, func() {
			if o.Progress != nil {
				o.Progress(sandbox.Event{Step: "copy", Detail: "a layer, with its files owned as a workspace needs them; once for each"})
			}
		})
		if err != nil {
			return nil, err
		}
		out = append(out, swapped)
	}
	return out, nil
}
