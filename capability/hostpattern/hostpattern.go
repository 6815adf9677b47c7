// Package hostpattern is the grammar of host patterns: host, host:port, an
// address, *.domain, * and **; and of the hosts that they are about. [Fault] says
// what a Kit must not state, [Parse] what a boundary can apply. Which connections
// a pattern matches is decided in internal/boundary/egress.
package hostpattern

import (
	"strings"
)

// Fault says why h can match no host, or returns "". What a boundary might
// understand is not refused.
func Fault(h string) string {
	switch {
	case strings.TrimSpace(h) == "":
		return "is not a host"
	case strings.Contains(h, "://"):
		return "is a URL: write the host, or host:port"
	case strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "is not a host: it holds blanks or control characters"
	}
	return ""
}

// WithoutPort returns h without its port. An IPv6 address without brackets has
// several colons and no port.
func WithoutPort(h string) string {
	name, port, ok := strings.Cut(h, ":")
	if strings.HasPrefix(h, "[") {
		i := strings.LastIndexByte(h, ']')
		if i < 0 {
			return h
		}
		name = h[:i+1]
		port, ok = strings.CutPrefix(h[i+1:], ":")
	}
	if ok && port != "" && strings.Trim(port, "0123456789") == "" {
		return name
	}
	return h
}
