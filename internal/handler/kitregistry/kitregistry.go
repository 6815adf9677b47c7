// Package kitregistry is this host's answer to kit-registry@1: a registry endpoint
// of the sandbox's own over the local store, announced by a variable and a name.
// What it serves is in internal/registry, how it is reached in the boundary; the
// grammar is in capability/kitregistry.
package kitregistry

import (
	"context"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/kitregistry"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Variable announces the endpoint inside. It belongs to the host.
const Variable = "KIT_REGISTRY"

// A Handler plans the endpoint.
type Handler struct {
	// Address is what [Variable] holds: the name of the endpoint, which
	// speaks TLS on 443 and plain HTTP on 80. Empty: this host has none.
	Address string
}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{kitregistry.Type} }

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	if _, err := kitregistry.Decode(c.Request); err != nil {
		return err
	}
	if h.Address == "" {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: "this host has no registry of Kits"}
	}
	return nil
}

// Plan implements [handler.Handler].
func (h *Handler) Plan(_ context.Context, _ *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	p.Registry = new(plan.Registry)
	for _, c := range cs {
		for _, part := range handler.Parts(c) {
			if !slices.Contains(p.Registry.Kits, part.Kit) {
				p.Registry.Kits = append(p.Registry.Kits, part.Kit)
			}
		}
	}
	p.Launch.Env = slices.DeleteFunc(slices.Clone(p.Launch.Env), func(kv string) bool { return strings.HasPrefix(kv, Variable+"=") })
	p.Launch.Env = append(p.Launch.Env, Variable+"="+h.Address)
	slices.Sort(p.Launch.Env)
	p.Launch.Owned = append(p.Launch.Owned, Variable)
	slices.Sort(p.Launch.Owned)
	return nil
}
