// Package networkpolicy is this host's answer to network-policy, of both versions:
// rules for the boundary, each with the Kit that asked for it.
//
// The grammar is in capability/networkpolicy. What a rule means is decided in
// one place, internal/boundary/egress, which this package does not need.
package networkpolicy

import (
	"context"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler needs nothing of the host.
type Handler struct {
	// Check judges a rule, so that one the boundary cannot match is declined
	// before anything is made rather than never matching. Nil accepts all.
	Check func(plan.EgressRule) error
}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{networkpolicy.Type, networkpolicy.TypeV2} }

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	config, err := networkpolicy.Decode(c.Request)
	if err != nil {
		return err
	}
	if h.Check == nil {
		return nil
	}
	for _, r := range rules(c.Kit, config) {
		if err := h.Check(r); err != nil {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
		}
	}
	return nil
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, _ *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		// The parts, not the union: who asked for a rule is what a user
		// wants to know when it surprises him.
		for _, part := range handler.Parts(c) {
			config, err := networkpolicy.Decode(part.Request)
			if err != nil {
				return err
			}
			p.Egress.Rules = append(p.Egress.Rules, rules(part.Kit, config)...)
		}
	}
	return nil
}

func rules(kit string, c networkpolicy.Config) []plan.EgressRule {
	var rs []plan.EgressRule
	add := func(phase plan.Phase, allow bool, es []networkpolicy.Entry) {
		for _, e := range es {
			for _, h := range e.Hosts {
				rs = append(rs, plan.EgressRule{Phase: phase, Pattern: h, Allow: allow, Source: "kit " + kit, Methods: e.Methods, Paths: e.Paths})
			}
		}
	}
	add(plan.Install, true, c.Install.Allow)
	add(plan.Install, false, c.Install.Deny)
	add(plan.Runtime, true, c.Runtime.Allow)
	add(plan.Runtime, false, c.Runtime.Deny)
	return rs
}
