package display

import (
	"fmt"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/rulebook"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Grant shows a rule, whose scope is as said unless it is the operator's.
func Grant(r plan.EgressRule, scope string) sandbox.NetworkGrant {
	switch r.Source {
	case rulebook.Everywhere:
		scope = sandbox.ScopeGlobal
	case rulebook.Here:
		scope = sandbox.ScopeSandbox
	}
	return sandbox.NetworkGrant{Phase: string(r.Phase), Pattern: r.Pattern, Allow: r.Allow, Methods: r.Methods, Paths: r.Paths,
		Source: r.Source, Scope: scope}
}

// Service shows a service, which holds in every phase.
func Service(s egress.Service) []sandbox.NetworkGrant {
	var gs []sandbox.NetworkGrant
	for _, phase := range []plan.Phase{plan.Runtime, plan.Install} {
		gs = append(gs, sandbox.NetworkGrant{Phase: string(phase), Pattern: fmt.Sprintf("%s:%d", s.Hosts[0], s.Port), Allow: true,
			Service: s.Name, Source: s.Source, Scope: sandbox.ScopeKit})
	}
	return gs
}

// Credential is c in the terms a user decides by.
func Credential(c plan.Credential) sandbox.CredentialGrant {
	g := sandbox.CredentialGrant{Service: c.Service, Kit: c.Kit, Variable: c.Variable, Hosts: []string{}, OAuth: c.OAuth != nil}
	for _, p := range c.Phases {
		g.Phases = append(g.Phases, string(p))
	}
	add := func(h string) {
		if !slices.Contains(g.Hosts, h) {
			g.Hosts = append(g.Hosts, h)
		}
	}
	for _, i := range c.Inject {
		add(i.Domain)
	}
	if c.OAuth != nil {
		for _, h := range c.OAuth.Hosts {
			add(h)
		}
	}
	return g
}
