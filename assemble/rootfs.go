package assemble

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// unpackers is how many layers are unpacked at once: each keeps one core busy
// with decompression and one with writing.
const unpackers = 2

// Rootfs returns the directories of the home at home whose overlay, lowest
// first, is the root filesystem of kits, and copies no content for it. Layers
// that were never unpacked are unpacked first; progress is told the Kit whose
// turn it is, and may be nil. The content of all kits must have been pulled. The
// workload is the first; the others are laid over it in the order given.
//
// Kits that bring different files at one path are a [ClashError]. A layer that
// a Kit below has too is that Kit's: a mixin that carries its base's layers
// along brings only what it adds to them.
func Rootfs(ctx context.Context, home string, kits []*fetch.Kit, progress func(kit string)) ([]string, error) {
	layers, err := layer.Open(filepath.Join(home, "layers"))
	if err != nil {
		return nil, err
	}
	members := make([]layer.Member, len(kits))
	for i, k := range kits {
		members[i].Name = k.Ref
		for _, l := range k.Layers {
			members[i].Layers = append(members[i].Layers, l.DiffID)
		}
	}
	if dirs := layers.Recall(ctx, members); dirs != nil {
		return dirs, nil
	}
	images, err := layout.Open(filepath.Join(home, "images"))
	if err != nil {
		return nil, err
	}
	if err := unpack(ctx, layers, images, kits, progress); err != nil {
		return nil, err
	}
	dirs, clashes, err := layers.Overlay(ctx, members)
	if len(clashes) > 0 {
		return nil, &ClashError{Clashes: clashes}
	}
	return dirs, err
}

func unpack(ctx context.Context, layers *layer.Store, images *layout.Store, kits []*fetch.Kit, progress func(string)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(unpackers)
	told := map[string]bool{}
	for _, k := range kits {
		for _, l := range k.Layers {
			if ok, err := layers.Has(ctx, l.DiffID); err != nil {
				return err
			} else if ok {
				continue
			}
			if progress != nil && !told[k.Ref] {
				told[k.Ref] = true
				progress(k.Ref)
			}
			g.Go(func() error {
				err := layers.Unpack(ctx, l.DiffID, func() (io.ReadCloser, error) { return images.Fetch(ctx, l.Blob) })
				if err != nil {
					return fmt.Errorf("kit %s: %w", k.Ref, err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// A ClashError says that Kits cannot be composed because of their files. It
// matches [kiterr.ErrRefused].
type ClashError struct {
	Clashes []inventory.Clash // sorted by path, at least one
}

// Error names the first few; the rest is in Clashes.
func (e *ClashError) Error() string {
	const few = 3
	var b strings.Builder
	for i, c := range e.Clashes[:min(few, len(e.Clashes))] {
		if i > 0 {
			b.WriteString("; ")
		}
		if c.What[0] == c.What[1] {
			fmt.Fprintf(&b, "kits %s and %s both bring %s and differ in it", c.Names[0], c.Names[1], c.Path)
		} else {
			fmt.Fprintf(&b, "at %s kit %s brings %s and kit %s %s", c.Path, c.Names[0], c.What[0], c.Names[1], c.What[1])
		}
	}
	if n := len(e.Clashes) - few; n > 0 {
		fmt.Fprintf(&b, "; and %d more", n)
	}
	if c := e.Clashes[0]; c.What == [2]string{"a symlink", "a directory"} {
		// Most often /bin or /lib, which are symlinks into /usr.
		return b.String() + ": ship the files at the path that the symlink leads to"
	}
	return b.String() + ": leave one of them out"
}

// Is matches the family.
func (e *ClashError) Is(target error) bool { return target == kiterr.ErrRefused }
