// Package hostmount is this host's answer to host-mount@1: a directory for each
// pair of a Kit's identity and a path, that all sandboxes of that Kit share and
// that no sandbox's end removes. Where it lies, and who a Kit is, the engine
// decides; the grammar is in capability/hostmount.
package hostmount

import (
	"context"
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/hostmount"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler plans mounts. Place returns the handle of the directory that the Kit
// with this identity has for path, and where it lies, whether it exists or not.
type Handler struct {
	Place func(identity, path string) (handle, dir string)
}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{hostmount.Type} }

// taken are the trees that the machine itself mounts.
var taken = []string{"/proc", "/sys", "/dev"}

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	config, err := hostmount.Decode(c.Request)
	if err != nil {
		return err
	}
	refuse := func(reason string) error {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: reason}
	}
	if h.Place == nil {
		return refuse("this host shares no directories")
	}
	for _, t := range taken {
		if config.Path == t || strings.HasPrefix(config.Path, t+"/") {
			return refuse(config.Path + " belongs to the machine itself")
		}
	}
	return nil
}

// Plan implements [handler.Handler].
func (h *Handler) Plan(_ context.Context, s *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := hostmount.Decode(c.Request)
		if err != nil {
			return err
		}
		identity := s.Identities[c.Kit]
		if identity == "" {
			return fmt.Errorf("kit %s has no identity to keep %s under", c.Kit, config.Path)
		}
		if p.Workspace != "" && config.Path == p.Launch.Dir {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type,
				Reason: fmt.Sprintf("%s is the workspace, which %s was given for", config.Path, p.Workspace)}
		}
		m := plan.HostMount{Path: config.Path, Kit: c.Kit, Identity: identity, Mode: 0o755}
		if mode, ok := config.Perm(); ok {
			m.Mode = mode
		}
		m.Handle, m.Source = h.Place(identity, config.Path)
		p.HostMounts = append(p.HostMounts, m)
		p.Machine.Mounts = append(p.Machine.Mounts, plan.Mount{Kind: plan.MountBind, Path: m.Path, Source: m.Source,
			UID: s.Image.Identity.UID, GID: s.Image.Identity.GID, Mode: m.Mode})
	}
	return nil
}
