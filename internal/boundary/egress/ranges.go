package egress

import "net/netip"

// opener says whose rule may open a range that is not public.
type opener uint8

const (
	nobody   opener = iota // no rule can
	operator               // only a rule of the operator that spells the address
	anyone                 // any rule that spells the address
)

// A special range is one that names on the public internet have no business
// resolving to. Rules for names never open it: whoever runs the DNS of an
// allowed name could point it there.
type special struct {
	prefix netip.Prefix
	kind   string
	by     opener
}

// specials is searched from the top; the first match counts.
//
// Nor does a Kit's rule that spells a private address, or one of the host's own: what
// stands there is another thing in every network that the Kit is run in, and only the
// operator knows which. What is left are ranges in which nothing stands.
var specials = []special{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified", nobody},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", operator},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", operator}, // holds 169.254.169.254
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata", operator}, // Azure's host agent, on a public address
	{netip.MustParsePrefix("100.100.100.200/32"), "metadata", operator},
	{netip.MustParsePrefix("192.0.0.192/32"), "metadata", operator},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", operator},
	{netip.MustParsePrefix("172.16.0.0/12"), "private", operator},
	{netip.MustParsePrefix("192.168.0.0/16"), "private", operator},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT", operator},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved", anyone},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation", anyone},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation", anyone},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation", anyone},
	{netip.MustParsePrefix("198.18.0.0/15"), "synthetic", operator}, // the boundary's own answers
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", nobody},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved", nobody}, // with broadcast

	{netip.MustParsePrefix("::/128"), "unspecified", nobody},
	{netip.MustParsePrefix("::1/128"), "loopback", operator},
	{netip.MustParsePrefix("fd00:ec2::/32"), "metadata", operator},
	{netip.MustParsePrefix("fe80::/10"), "link-local", operator},
	{netip.MustParsePrefix("fec0::/10"), "site-local", operator},
	{netip.MustParsePrefix("fc00::/7"), "private", operator},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation", anyone},
	{netip.MustParsePrefix("3fff::/20"), "documentation", anyone},
	{netip.MustParsePrefix("ff00::/8"), "multicast", nobody},
	// Wrappings of IPv4 that a gateway may unwrap. The two that carry a
	// public address in the open are unwrapped by classify.
	{netip.MustParsePrefix("::/96"), "v4-compatible", operator},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "translated", operator},
	{netip.MustParsePrefix("2001::/32"), "tunnelled", operator},
	{netip.MustParsePrefix("100::/64"), "discard-only", nobody},
}

var (
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4  = netip.MustParsePrefix("2002::/16")
	allBits = netip.Prefix{}
)

// classify returns the special range of a, or false for a public address. a is
// not a v4-mapped one.
func classify(a netip.Addr) (special, bool) {
	for _, s := range specials {
		if s.prefix.Contains(a) {
			return s, true
		}
	}
	b := a.As16()
	var inner [4]byte
	switch {
	case nat64.Contains(a):
		copy(inner[:], b[12:])
	case sixTo4.Contains(a):
		copy(inner[:], b[2:])
	default:
		return special{}, false
	}
	// The wrapping is what gets dialled, so only a rule that spells the
	// wrapping opens it: its prefix is left unset for the exact match.
	s, ok := classify(netip.AddrFrom4(inner))
	s.prefix = allBits
	if s.by == anyone {
		s.by = operator
	}
	return s, ok
}

// spells reports whether a rule for prefix p means the special range s rather
// than covering it by being wide: 0.0.0.0/0 does not spell 10.0.0.0/8.
func (s special) spells(p netip.Prefix) bool {
	if !s.prefix.IsValid() {
		return p.IsSingleIP()
	}
	return p.Bits() >= s.prefix.Bits() && s.prefix.Contains(p.Addr())
}
