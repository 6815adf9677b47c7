package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
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

// rootfs unpacks what is not unpacked yet and returns the directories that make
// up the root file system of kits, the workload first.
func (e *Engine) rootfs(ctx context.Context, o sandbox.CreateOptions, kits []loadedKit) (rootfs, error) {
	layers, err := e.home.Layers()
	if err != nil {
		return nil, err
	}
	images, err := e.home.Images()
	if err != nil {
		return nil, err
	}
	f := e.fetcher(o)
	var ids []digest.Digest
	var g errgroup.Group
	g.SetLimit(2)
	for _, k := range kits {
		if err := f.Pull(ctx, k.image); err != nil {
			return nil, err
		}
		for _, l := range k.image.Layers {
			ids = append(ids, l.DiffID)
			g.Go(func() error {
				ok, err := layers.Has(ctx, l.DiffID)
				if err != nil || ok {
					return err
				}
				if o.Progress != nil {
					o.Progress(sandbox.Event{Step: "unpack", Detail: k.image.Ref})
				}
				err = layers.Unpack(ctx, l.DiffID, func() (io.ReadCloser, error) { return images.Fetch(ctx, l.Blob) })
				if err != nil {
					return fmt.Errorf("kit %s: %w", k.image.Ref, err)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := collisions(layers, kits); err != nil {
		return nil, err
	}
	dirs, err := layers.Compose(ctx, ids)
	return rootfs(dirs), err
}

// collisions refuses Kits of which two bring the same file with other content:
// which of them would win is nothing that either author decided.
func collisions(layers *layer.Store, kits []loadedKit) error {
	if len(kits) < 2 {
		return nil
	}
	stacks := make([][]layer.Inventory, len(kits)) // highest layer first
	for i, k := range kits {
		for _, l := range slices.Backward(k.image.Layers) {
			inv, err := layers.Inventory(l.DiffID)
			if err != nil {
				return err
			}
			stacks[i] = append(stacks[i], inv)
		}
	}
	// The mixins are small and the workload is large: only what a mixin
	// brings is looked for elsewhere.
	paths := map[string]bool{}
	for i := 1; i < len(kits); i++ {
		for _, inv := range stacks[i] {
			for _, en := range inv {
				paths[en.Path] = true
			}
		}
	}
	all := make([]assemble.Inventory, len(kits))
	for i, k := range kits {
		all[i].Kit = k.image.Ref
		for p := range paths {
			for _, inv := range stacks[i] {
				en, ok := inv.Find(p)
				if !ok {
					continue
				}
				if f, ok := fileOf(en); ok {
					all[i].Files = append(all[i].Files, f)
				}
				break
			}
		}
	}
	var errs []error
	for _, c := range assemble.Collisions(all) {
		errs = append(errs, fmt.Errorf("%s: kits %s bring different files there; leave one of them out: %w", c.Path, strings.Join(c.Kits, " and "), kiterr.ErrRefused))
	}
	return errors.Join(errs...)
}

// fileOf is an entry in the terms of package assemble; false for one that hides
// files rather than being one.
func fileOf(en layer.Entry) (assemble.File, bool) {
	f := assemble.File{Path: filepath.Join("/", en.Path)}
	switch en.Kind {
	case layer.Dir:
		f.Path += "/"
	case layer.Whiteout:
		return f, false
	default:
		f.Digest = fmt.Sprintf("%d %o %d:%d %d %x", en.Kind, en.Mode, en.UID, en.GID, en.Size, en.Sum)
	}
	return f, true
}
