package hostpattern

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/idna"
)

// A Host is a destination in its one spelling: a name in lower case ASCII
// without a trailing dot, or an address. The zero value is no host.
type Host struct {
	Name string     // empty for an address
	Addr netip.Addr // invalid for a name; never a v4-mapped one, never with a zone
}

// String returns the one spelling of h; [ParseHost] reads it back.
func (h Host) String() string {
	if h.Addr.IsValid() {
		return h.Addr.String()
	}
	return h.Name
}

// maxName is the longest name that DNS can carry, without the final dot.
const maxName = 253

// lookup converts names as resolvers do. Strict rules are off because
// underscores occur in real names; parseName checks the characters itself.
var lookup = sync.OnceValue(func() *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false))
})

// ParseHost reads a host in any spelling that some client turns into the same
// destination: upper case, one trailing dot, Unicode, brackets, v4-mapped
// addresses, and the forms of inet_aton (0x7f.1, 2130706433, 0177.0.0.1). A
// rule that could be sidestepped by another spelling would be no rule.
func ParseHost(s string) (Host, error) {
	if s == "" {
		return Host{}, errors.New("empty host")
	}
	if in, ok := strings.CutPrefix(s, "["); ok {
		in, ok = strings.CutSuffix(in, "]")
		if !ok || !strings.Contains(in, ":") {
			return Host{}, fmt.Errorf("%s is not a host", quote(s))
		}
		s = in
	}
	if strings.Contains(s, ":") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return Host{}, fmt.Errorf("%s is not an address", quote(s))
		}
		return AddrHost(a)
	}
	name, err := parseName(s)
	if err != nil {
		return Host{}, err
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; numeric(last) {
		a, ok := parseAton(name)
		if !ok {
			return Host{}, fmt.Errorf("%s ends in a number but is not an address", quote(s))
		}
		return Host{Addr: a}, nil
	}
	return Host{Name: name}, nil
}

// AddrHost returns the host at an address. One with a zone is none.
func AddrHost(a netip.Addr) (Host, error) {
	if a.Zone() != "" {
		return Host{}, fmt.Errorf("%s: an address with a zone means something else on every host", quote(a.String()))
	}
	return Host{Addr: a.Unmap()}, nil
}

func parseName(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	if !ascii(name) {
		var err error
		if name, err = lookup().ToASCII(name); err != nil {
			return "", fmt.Errorf("%s is not a host name", quote(s))
		}
		name = strings.TrimSuffix(name, ".") // some full stops of other scripts are mapped to dots
	}
	if name == "" || len(name) > maxName {
		return "", fmt.Errorf("%s is not a host name", quote(s))
	}
	lower := false
	label := 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '.':
			if label == 0 {
				return "", fmt.Errorf("%s has an empty label", quote(s))
			}
			label = 0
			continue
		case 'A' <= c && c <= 'Z':
			lower = true
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return "", fmt.Errorf("%s is not a host name", quote(s))
		}
		if label++; label > 63 {
			return "", fmt.Errorf("%s has a label of more than 63 bytes", quote(s))
		}
	}
	if label == 0 {
		return "", fmt.Errorf("%s has an empty label", quote(s))
	}
	if lower {
		name = strings.ToLower(name)
	}
	return name, nil
}

// numeric reports whether a last label makes clients read the whole as an
// IPv4 address, by the rule of the URL standard.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// parseAton reads an IPv4 address as inet_aton does: one to four parts, each
// decimal, octal or hexadecimal, the last filling what is left.
func parseAton(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, p := range parts {
		base := 10
		if h, ok := strings.CutPrefix(p, "0x"); ok {
			if p, base = h, 16; h == "" {
				p = "0"
			}
		} else if len(p) > 1 && p[0] == '0' {
			base = 8
		}
		n, err := strconv.ParseUint(p, base, 33)
		if err != nil {
			return netip.Addr{}, false
		}
		if i == len(parts)-1 {
			if n >= 1<<(8*(5-len(parts))) {
				return netip.Addr{}, false
			}
			v = v<<(8*(5-len(parts))) | n
		} else {
			if n > 255 {
				return netip.Addr{}, false
			}
			v = v<<8 | n
		}
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// quote makes foreign text safe and short enough for a log line.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
