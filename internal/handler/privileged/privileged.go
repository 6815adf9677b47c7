// Package privileged is this host's answer to privileged@1: with the user's
// explicit consent, every capability of Linux inside the sandbox's own user
// namespace, and none of the host's. The grammar is in capability/privileged.
package privileged

import (
	"context"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/privileged"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler widens what root is inside. Capabilities are all that the driver
// knows, as names of Linux; without any, the type is refused.
type Handler struct{ Capabilities []string }

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{privileged.Type} }

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, s *handler.Scene, c capability.Contribution) error {
	if _, err := privileged.Decode(c.Request); err != nil {
		return err
	}
	refuse := func(reason string) error {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: reason}
	}
	switch {
	case len(h.Capabilities) == 0:
		return refuse("this host has no privileged mode")
	case !s.AllowPrivileged:
		return refuse("it needs your consent, which --allow-privileged gives")
	}
	return nil
}

// Plan implements [handler.Handler].
func (h *Handler) Plan(_ context.Context, _ *handler.Scene, _ []capability.Contribution, p *plan.Plan) error {
	p.Privileged = true
	p.Machine.Capabilities = h.Capabilities
	return nil
}
