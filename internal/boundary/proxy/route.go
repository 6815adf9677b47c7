package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Routes say which names dial another address. The zero value routes nothing.
type Routes struct {
	byName map[string]netip.AddrPort // port 0 keeps the port that was asked for
}

// ParseRoutes reads the routes of a plan. The error names every one that
// cannot be read and is in the family [kiterr.ErrRefused].
func ParseRoutes(rs []plan.Route) (Routes, error) {
	var errs []error
	m := make(map[string]netip.AddrPort, len(rs))
	for _, r := range rs {
		h, err := egress.ParseHost(r.Name)
		if err == nil && h.Addr.IsValid() {
			err = errors.New("an address needs no route")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Name, err))
			continue
		}
		to, err := netip.ParseAddrPort(r.Addr)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(r.Addr); err != nil {
				errs = append(errs, fmt.Errorf("route %q: %q is neither an address nor address:port", r.Name, r.Addr))
				continue
			}
			to = netip.AddrPortFrom(a, 0)
		}
		if _, ok := m[h.Name]; ok {
			errs = append(errs, fmt.Errorf("route %q: stated twice", r.Name))
		}
		m[h.Name] = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	}
	if len(errs) > 0 {
		return Routes{}, fmt.Errorf("%w: %w", kiterr.ErrRefused, errors.Join(errs...))
	}
	return Routes{m}, nil
}

// to returns what a connection to name at port dials instead, if anything.
func (r Routes) to(name string, port uint16) (netip.AddrPort, bool) {
	a, ok := r.byName[name]
	if ok && a.Port() == 0 {
		a = netip.AddrPortFrom(a.Addr(), port)
	}
	return a, ok
}
