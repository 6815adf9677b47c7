// Package volume is this host's answer to volume@1: a mount for each path, from
// a directory that belongs to the sandbox's name and outlives it, or from
// memory.
//
// The grammar is in capability/volume. The directories are made by the engine,
// after everything has been decided.
package volume

import (
	"context"
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/volume"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Storage is what this handler asks of the host.
type Storage interface {
	// Place is where the block storage of path for sandbox name lies, whether
	// it exists or not: a file with a filesystem when it is bounded, or else a
	// directory.
	Place(name, path string, bounded bool) string

	// Bound says why this host can neither make nor mount bounded storage, in
	// one clause; nil: it can.
	Bound() error

	// Retained returns the terms of the storage that exists for path from an
	// earlier sandbox of that name; false when there is none.
	Retained(name, path string) (plan.Volume, bool, error)
}

// A Handler plans mounts. Storage is required.
type Handler struct{ Storage Storage }

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{volume.Type} }

// taken are the trees that the machine itself mounts; storage over them would
// take away what isolates it.
var taken = []string{"/proc", "/sys", "/dev"}

// Accept implements [handler.Handler].
func (*Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	config, err := volume.Decode(c.Request)
	if err != nil {
		return err
	}
	for _, t := range taken {
		if dir := config.Dir(); dir == t || strings.HasPrefix(dir, t+"/") {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: dir + " belongs to the machine itself"}
		}
	}
	return nil
}

// bound decides how block storage of v is kept: as it was, or if it is fresh and
// has a size, as tightly as this host can.
func (h *Handler) bound(v *plan.Volume, kept *plan.Volume) error {
	if v.SizeBytes == nil {
		return nil
	}
	why := h.Storage.Bound()
	switch {
	case kept != nil && kept.Bounded && why != nil:
		return fmt.Errorf("the storage kept at %s is a filesystem in a file: %w", v.Path, why)
	case kept != nil && !kept.Bounded:
		v.Note = "the size is advisory: the storage is a directory, made when this host bounded none"
	case why != nil:
		v.Note = "the size is advisory: " + strings.TrimSuffix(why.Error(), ": "+kiterr.ErrUnsupported.Error())
	default:
		v.Bounded = true
	}
	return nil
}

// Plan implements [handler.Handler]. Storage that is retained on other terms
// refuses the creation, since there is no way to give the author what he asks
// and the user what he kept.
func (h *Handler) Plan(_ context.Context, s *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := volume.Decode(c.Request)
		if err != nil {
			return err
		}
		v := plan.Volume{Path: config.Dir(), Tmpfs: config.TmpFS}
		for _, part := range handler.Parts(c) {
			v.Kits = append(v.Kits, part.Kit)
		}
		if n, ok := config.Bytes(); ok {
			v.SizeBytes = &n
		}
		if m, ok := config.Perm(); ok {
			v.Mode = &m
		}
		kept, ok, err := h.Storage.Retained(s.Name, v.Path)
		if err != nil {
			return fmt.Errorf("storage %s of %s: %w", v.Path, s.Name, err)
		}
		if ok {
			if d := difference(kept, v); d != "" {
				return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type,
					Reason: fmt.Sprintf("the storage kept at %s for the name %s has another %s; choose another name, or remove it", v.Path, s.Name, d)}
			}
		}
		if p.Workspace != "" && v.Path == p.Launch.Dir {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type,
				Reason: fmt.Sprintf("%s is the workspace, which %s was given for", v.Path, p.Workspace)}
		}

		m := plan.Mount{Path: v.Path, UID: s.Image.Identity.UID, GID: s.Image.Identity.GID, Mode: 0o755}
		if v.Mode != nil {
			m.Mode = *v.Mode
		}
		if v.Tmpfs {
			m.Kind = plan.MountTmpfs
			if v.SizeBytes != nil {
				m.SizeBytes = *v.SizeBytes
			}
		} else {
			var before *plan.Volume
			if ok {
				before = &kept
			}
			if err := h.bound(&v, before); err != nil {
				return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
			}
			v.Source = h.Storage.Place(s.Name, v.Path, v.Bounded)
			m.Kind, m.Source = plan.MountBind, v.Source
			if v.Bounded {
				m.Kind = plan.MountImage
			}
		}
		p.Volumes = append(p.Volumes, v)
		p.Machine.Mounts = append(p.Machine.Mounts, m)
	}
	return nil
}

// difference names the first setting in which two sets of terms differ.
func difference(a, b plan.Volume) string {
	switch {
	case a.Tmpfs != b.Tmpfs:
		return fmt.Sprintf("tmpfs (%t, now %t)", a.Tmpfs, b.Tmpfs)
	case !same(a.SizeBytes, b.SizeBytes):
		return fmt.Sprintf("size (%s, now %s)", text(a.SizeBytes, "%d"), text(b.SizeBytes, "%d"))
	case !same(a.Mode, b.Mode):
		return fmt.Sprintf("mode (%s, now %s)", text(a.Mode, "%04o"), text(b.Mode, "%04o"))
	}
	return ""
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func text[T any](v *T, format string) string {
	if v == nil {
		return "not stated"
	}
	return fmt.Sprintf(format, *v)
}
