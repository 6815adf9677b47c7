package engine

import (
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/display"
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
		for _, pattern := range display.Credential(c).Hosts {
			if m, err := egress.ParseMatcher(pattern); err == nil && m.Matches(host.Name, r.Port) {
				out = append(out, c.Service)
				break
			}
		}
	}
	return out, nil
}
