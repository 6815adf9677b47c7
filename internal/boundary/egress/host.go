package egress

import (
	"strconv"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
)

// A Host is a destination in its one spelling.
type Host = hostpattern.Host

// ParseHost reads a host in any spelling that some client turns into the same
// destination; see [hostpattern.ParseHost].
func ParseHost(s string) (Host, error) { return hostpattern.ParseHost(s) }

// quote makes foreign text safe and short enough for a log line.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
