package engine

import (
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// presentedAt returns the services whose credentials requests to r may be given.
func (e *Engine) presentedAt(name string, r egress.Request) ([]string, error) {
	b, err := e.openName(name)
	if err != nil {
		return nil, err
	}
	p, err := b.plan()
	if err != nil {
		return nil, err
	}
	host, err := egress.ParseHost(r.Host)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range p.Credentials {
		if !c.Granted(r.Phase) || slices.Contains(out, c.Service) {
			continue
		}
		for _, pattern := range presented(c).Hosts {
			if m, err := egress.ParseMatcher(pattern); err == nil && m.Matches(host.Name, r.Port) {
				out = append(out, c.Service)
				break
			}
		}
	}
	return out, nil
}

// presented is c in the terms a user decides by.
func presented(c plan.Credential) sandbox.CredentialGrant {
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
