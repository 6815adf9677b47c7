package egress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// scope says which hosts a pattern covers.
type scope uint8

const (
	exact    scope = iota // one name
	oneLabel              // *.domain: exactly one label before domain
	anyLabel              // **.domain: one or more labels before domain
	anything              // * or **
	network               // an address or a CIDR
)

// A pattern is the parsed form of [plan.EgressRule.Pattern].
type pattern struct {
	scope  scope
	name   string       // the name, or the domain of a wildcard
	prefix netip.Prefix // for network
	port   uint16       // 0: every port
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

func parsePattern(s string) (pattern, error) {
	host, port, err := splitPort(s)
	if err != nil {
		return pattern{}, err
	}
	p := pattern{port: port}
	switch {
	case host == "*" || host == "**":
		p.scope = anything
		return p, nil
	case strings.Contains(host, "/"):
		p.scope = network
		p.prefix, err = parsePrefix(host)
		return p, err
	case strings.HasPrefix(host, "**."):
		p.scope, host = anyLabel, host[len("**."):]
	case strings.HasPrefix(host, "*."):
		p.scope, host = oneLabel, host[len("*."):]
	}
	if strings.Contains(host, "*") {
		return pattern{}, fmt.Errorf("pattern %s: a wildcard stands alone or before the first dot, as in *.example.com", quote(s))
	}
	h, err := ParseHost(host)
	if err != nil {
		return pattern{}, fmt.Errorf("pattern %s: %w", quote(s), err)
	}
	if h.Addr.IsValid() {
		if p.scope != exact {
			return pattern{}, fmt.Errorf("pattern %s: an address has no subdomains", quote(s))
		}
		p.scope = network
		p.prefix = netip.PrefixFrom(h.Addr, h.Addr.BitLen())
		return p, nil
	}
	p.name = h.Name
	return p, nil
}

// splitPort cuts a port off. A bare IPv6 address has colons of its own and
// takes a port only in brackets.
func splitPort(s string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return trimBrackets(s), 0, nil
	}
	host, digits := s[:i], s[i+1:]
	if strings.Contains(host, ":") && !strings.HasSuffix(host, "]") {
		return s, 0, nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] < '1' || digits[0] > '9' {
		return "", 0, fmt.Errorf("pattern %s: %s is not a port between 1 and 65535", quote(s), quote(digits))
	}
	if host == "" {
		return "", 0, fmt.Errorf("pattern %s: no host before the port", quote(s))
	}
	return trimBrackets(host), uint16(n), nil
}

// trimBrackets also lets a CIDR stand in brackets, which is how it gets a port.
func trimBrackets(s string) string {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") && strings.Contains(s, ":") {
		return s[1 : len(s)-1]
	}
	return s
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("pattern %s: not an address range such as 192.0.2.0/24", quote(s))
	}
	if p.Addr().Is4In6() {
		// ::ffff:10.0.0.0/104 is 10.0.0.0/8. A shorter one covers addresses
		// of both families and is somebody's mistake.
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("pattern %s: a v4-mapped range needs at least 96 bits", quote(s))
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
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
