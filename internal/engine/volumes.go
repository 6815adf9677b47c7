package engine

import (
	"context"
	"path"

	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Volumes implements [sandbox.VolumeKeeper]. It makes nothing.
func (e *Engine) Volumes(_ context.Context, name string) ([]sandbox.Volume, error) {
	if name != "" {
		if err := state.ValidName(name); err != nil {
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
	s, err := e.home.Sweep(ctx, o.Age)
	return sandbox.Pruned{Blobs: s.Blobs, Layers: s.Layers, Bytes: s.Bytes}, err
}
