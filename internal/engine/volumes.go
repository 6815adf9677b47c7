package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Volumes implements [sandbox.VolumeKeeper]. It makes nothing.
func (e *Engine) Volumes(_ context.Context, name string) ([]sandbox.Volume, error) {
	out := []sandbox.Volume{}
	names := []string{name}
	if name == "" {
		entries, err := os.ReadDir(e.storage.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return out, nil
		}
		if err != nil {
			return nil, durable.Explain(e.storage.dir, err)
		}
		names = nil
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
	} else if err := state.ValidName(name); err != nil {
		return nil, err
	}
	users, err := e.mounted()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		entries, err := os.ReadDir(filepath.Join(e.storage.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, durable.Explain(e.storage.dir, err)
		}
		for _, entry := range entries {
			at, err := url.PathUnescape(entry.Name())
			if err != nil {
				continue
			}
			v, ok, err := e.storage.Retained(name, at)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue // half made, or half removed
			}
			dir := e.storage.Dir(name, at)
			shown := sandbox.Volume{Sandbox: name, Path: at, Kits: v.Kits, Dir: dir, Mode: v.Mode, SizeBytes: v.SizeBytes,
				Note: v.Note, Mounted: len(users[dir]) > 0}
			out = append(out, shown)
		}
	}
	return out, nil
}

// RemoveVolume implements [sandbox.VolumeKeeper].
func (e *Engine) RemoveVolume(ctx context.Context, name, at string) error {
	if err := state.ValidName(name); err != nil {
		return err
	}
	if err := e.privilege(); err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return err
	}
	// A sandbox of that name must not begin to use it meanwhile.
	sb, err := e.state.Sandbox(name)
	switch {
	case err == nil:
		l, err := sb.Lock(ctx, "volume rm")
		if err == nil {
			defer l.Unlock()
		} else if !errors.Is(err, kiterr.ErrNotFound) {
			return err
		}
	case !errors.Is(err, kiterr.ErrNotFound):
		return err
	}
	volumes, err := e.Volumes(ctx, name)
	if err != nil {
		return err
	}
	if at != "" {
		at = path.Clean("/" + at)
		volumes = slices.DeleteFunc(volumes, func(v sandbox.Volume) bool { return v.Path != at })
	}
	for _, v := range volumes {
		if v.Mounted {
			return fmt.Errorf("volume %s of %s is mounted in that sandbox; remove it first with 'kitbox rm %s'", v.Path, name, name)
		}
	}
	for _, v := range volumes {
		dir := e.storage.at(name, v.Path)
		// Terms last: until they go, the volume is listed.
		if err := os.RemoveAll(v.Dir); err != nil {
			return durable.Explain(v.Dir, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return durable.Explain(dir, err)
		}
	}
	os.Remove(filepath.Join(e.storage.dir, name)) // unless there is more
	return nil
}

// Prune implements [sandbox.Pruner].
func (e *Engine) Prune(ctx context.Context, o sandbox.PruneOptions) (sandbox.Pruned, error) {
	if err := e.privilege(); err != nil {
		return sandbox.Pruned{}, err
	}
	if err := e.ready(); err != nil {
		return sandbox.Pruned{}, err
	}
	if o.Age <= 0 {
		o.Age = sweepGrace
	}
	if err := e.state.Sweep(o.Age); err != nil {
		return sandbox.Pruned{}, err
	}
	s, err := e.home.Sweep(ctx, o.Age)
	return sandbox.Pruned{Blobs: s.Blobs, Layers: s.Layers, Bytes: s.Bytes}, err
}
