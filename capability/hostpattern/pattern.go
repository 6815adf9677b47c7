package hostpattern

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A Scope says which hosts a pattern covers.
type Scope uint8

// The scopes.
const (
	Exact    Scope = iota // one name
	OneLabel              // *.domain: exactly one label before domain
	AnyLabel              // **.domain: one or more labels before domain
	Anything              // * or **
	Network               // an address or a CIDR
)

// A Pattern is the parsed form of a host pattern. Its zero value is none.
type Pattern struct {
	Scope  Scope
	Name   string       // the name in its one spelling, or the domain of a wildcard
	Prefix netip.Prefix // for Network; masked, never v4-mapped
	Port   uint16       // 0: every port
}

// Parse reads a pattern as a boundary does. What it refuses, no boundary can
// apply; [Fault] refuses less, because it judges for every host there is.
func Parse(s string) (Pattern, error) {
	host, port, err := splitPort(s)
	if err != nil {
		return Pattern{}, err
	}
	p := Pattern{Port: port}
	switch {
	case host == "*" || host == "**":
		p.Scope = Anything
		return p, nil
	case strings.Contains(host, "/"):
		p.Scope = Network
		p.Prefix, err = parsePrefix(host)
		return p, err
	case strings.HasPrefix(host, "**."):
		p.Scope, host = AnyLabel, host[len("**."):]
	case strings.HasPrefix(host, "*."):
		p.Scope, host = OneLabel, host[len("*."):]
	}
	if strings.Contains(host, "*") {
		return Pattern{}, fmt.Errorf("pattern %s: a wildcard stands alone or before the first dot, as in *.example.com", quote(s))
	}
	h, err := ParseHost(host)
	if err != nil {
		return Pattern{}, fmt.Errorf("pattern %s: %w", quote(s), err)
	}
	if h.Addr.IsValid() {
		if p.Scope != Exact {
			return Pattern{}, fmt.Errorf("pattern %s: an address has no subdomains", quote(s))
		}
		p.Scope = Network
		p.Prefix = netip.PrefixFrom(h.Addr, h.Addr.BitLen())
		return p, nil
	}
	p.Name = h.Name
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
