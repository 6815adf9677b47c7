package dockerauth

import (
	"slices"
	"strings"
)

// Shown names the logins that requests to host and port may be given, or a token of
// theirs: at their registries, and at the token services that these have named so far.
// host is in its one spelling.
func (p *Presenter) Shown(host string, port uint16) []string {
	var names []string
	if g := p.at(host, port); g != nil {
		names = append(names, g.name())
	}
	p.mu.Lock()
	if s := p.services[place{host, port}]; s != nil {
		for _, g := range s.grants {
			names = append(names, g.name())
		}
	}
	p.mu.Unlock()
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}
