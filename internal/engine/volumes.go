package engine

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/identity"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Volumes implements [sandbox.VolumeKeeper]. It makes nothing.
func (e *Engine) Volumes(_ context.Context, name string) ([]sandbox.Volume, error) {
	if name != "" {
		if err := sandbox.CheckName(name); err != nil {
			return nil, err
		}
	}
	users, err := e.mounted()
	if err != nil {
		return nil, err
	}
	pieces, err := e.storage.List(name)
	if err != nil {
		return nil, err
	}
	out := []sandbox.Volume{}
	for _, p := range pieces {
		v := sandbox.Volume{Sandbox: p.Name, Path: p.Terms.Path, Kits: p.Terms.Kits, Dir: p.Place, Mode: p.Terms.Mode, SizeBytes: p.Terms.SizeBytes,
			Bounded: p.Terms.Bounded, Note: p.Terms.Note, Mounted: len(users[p.Place]) > 0}
		if p.UsedBytes >= 0 {
			v.UsedBytes = &p.UsedBytes
		}
		out = append(out, v)
	}
	return out, nil
}

// HostMounts implements [sandbox.HostMounter]. It makes nothing.
func (e *Engine) HostMounts(_ context.Context, kit string) ([]sandbox.HostMount, error) {
	all, err := e.shared.List(e.mounted)
	if kit == "" || err != nil {
		return all, err
	}
	who, err := identity.OfReference(kit)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m sandbox.HostMount) bool { return m.Identity != who }), nil
}

// ReadHostMount implements [sandbox.HostMounter].
func (e *Engine) ReadHostMount(_ context.Context, handle, file string) (io.ReadCloser, error) {
	if err := e.privilege(); err != nil {
		return nil, err
	}
	return e.shared.Open(handle, file)
}

// RemoveHostMount implements [sandbox.HostMounter].
func (e *Engine) RemoveHostMount(_ context.Context, handle string) error {
	if err := e.privilege(); err != nil {
		return err
	}
	return e.shared.Remove(handle, e.mounted)
}

// mounted says which sandboxes mount which host directories.
func (e *Engine) mounted() (map[string][]string, error) {
	users := map[string][]string{}
	if !e.exists() {
		return users, nil
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := e.openName(name)
		if errors.Is(err, kiterr.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p, err := b.plan()
		if errors.Is(err, kiterr.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err // rather than take what it may be using
		}
		for _, m := range p.Machine.Mounts {
			users[m.Source] = append(users[m.Source], name)
		}
	}
	return users, nil
}

// RemoveVolume implements [sandbox.VolumeKeeper].
func (e *Engine) RemoveVolume(ctx context.Context, name, at string) error {
	if err := sandbox.CheckName(name); err != nil {
		return err
	}
	if err := e.privilege(); err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return err
	}
	if at != "" {
		at = path.Clean("/" + at)
	}
	return e.storage.Remove(ctx, name, at, e.mounted)
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
	removed := e.reclaim(ctx)
	n, err := e.strays(ctx)
	removed += n
	if err != nil {
		return sandbox.Pruned{Sandboxes: removed}, err
	}
	s, err := e.home.Sweep(ctx, o.Age)
	return sandbox.Pruned{Sandboxes: removed, Blobs: s.Blobs, Layers: s.Layers, Bytes: s.Bytes}, err
}
