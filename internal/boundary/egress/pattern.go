package egress

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
)

// What a pattern covers; [hostpattern.Scope] says more.
const (
	exact    = hostpattern.Exact
	oneLabel = hostpattern.OneLabel
	anyLabel = hostpattern.AnyLabel
	anything = hostpattern.Anything
	network  = hostpattern.Network
)

// A pattern is the parsed form of [plan.EgressRule.Pattern].
type pattern struct {
	scope  hostpattern.Scope
	name   string       // the name, or the domain of a wildcard
	prefix netip.Prefix // for network
	port   uint16       // 0: every port
}

func parsePattern(s string) (pattern, error) {
	p, err := hostpattern.Parse(s)
	return pattern{p.Scope, p.Name, p.Prefix, p.Port}, err
}

// Covers reports whether everything that pattern narrow matches is matched by
// wide as well. It is false if either is no pattern.
func Covers(wide, narrow string) bool {
	w, err := parsePattern(wide)
	if err != nil {
		return false
	}
	n, err := parsePattern(narrow)
	if err != nil || w.port != 0 && w.port != n.port {
		return false
	}
	below := func(name string) bool { return strings.HasSuffix(name, "."+w.name) }
	switch w.scope {
	case anything:
		return n.scope != network // * covers names alone
	case network:
		return n.scope == network && w.prefix.Bits() <= n.prefix.Bits() && w.prefix.Contains(n.prefix.Addr())
	case anyLabel:
		switch n.scope {
		case exact:
			return below(n.name)
		case oneLabel, anyLabel:
			return n.name == w.name || below(n.name)
		}
	case oneLabel:
		first, parent, _ := strings.Cut(n.name, ".")
		return n.scope == exact && first != "" && parent == w.name || n.scope == oneLabel && n.name == w.name
	case exact:
		return n.scope == exact && n.name == w.name
	}
	return false
}

// A Matcher says which names a pattern covers, whoever allows them. Its zero
// value covers none.
type Matcher struct{ p pattern }

// ParseMatcher reads a pattern of names: one name, or all with one label or any
// number of them before a domain, at one port or all. What covers addresses, or
// every name there is, is an error.
func ParseMatcher(s string) (Matcher, error) {
	p, err := parsePattern(s)
	if err != nil {
		return Matcher{}, err
	}
	switch p.scope {
	case anything:
		return Matcher{}, fmt.Errorf("pattern %s: covers every name there is", quote(s))
	case network:
		return Matcher{}, fmt.Errorf("pattern %s: is an address, and TLS names hosts", quote(s))
	}
	return Matcher{p}, nil
}

// Matches reports whether m covers name, which is in its one spelling, at port.
func (m Matcher) Matches(name string, port uint16) bool {
	if m.p.name == "" || m.p.port != 0 && m.p.port != port {
		return false
	}
	if m.p.scope == exact {
		return name == m.p.name
	}
	first, ok := strings.CutSuffix(name, "."+m.p.name)
	return ok && first != "" && (m.p.scope == anyLabel || !strings.Contains(first, "."))
}

// Port returns the port that m is about; 0: every one.
func (m Matcher) Port() uint16 { return m.p.port }
