package networkpolicy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/hostpattern"
)

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	// Written out, so that no path is built for entries without fault.
	judgeList(c.Install.Allow, "config.install.allow", true, f, in)
	judgeList(c.Install.Deny, "config.install.deny", false, f, in)
	judgeList(c.Runtime.Allow, "config.runtime.allow", true, f, in)
	judgeList(c.Runtime.Deny, "config.runtime.deny", false, f, in)

	project(c.Install.Allow, capability.ListNetworkInstallAllow, capability.ListNetworkInstallHTTPAllow, in)
	project(c.Install.Deny, capability.ListNetworkInstallDeny, capability.ListNetworkInstallHTTPDeny, in)
	project(c.Runtime.Allow, capability.ListNetworkRuntimeAllow, capability.ListNetworkRuntimeHTTPAllow, in)
	project(c.Runtime.Deny, capability.ListNetworkRuntimeDeny, capability.ListNetworkRuntimeHTTPDeny, in)
}

func judgeList(entries []Entry, list string, allow bool, f capability.Form, in *capability.Inspection) {
	for i, e := range entries {
		e.judge(func(field, statement, message string) {
			at := list + "[" + strconv.Itoa(i) + "]"
			// A host written as text has no field of its own.
			if field != "" && !(field == "hosts" && e.bare()) {
				at += "." + field
			}
			in.Breach(at, statement, message)
		}, allow, f)
	}
}

func (e *Entry) judge(problem func(field, statement, message string), allow bool, f capability.Form) {
	// An empty list is judged whatever else waits: the meaning "everything"
	// belongs to leaving the field out, and a generated document that states
	// nothing must not be granted everything.
	if len(e.Hosts) == 0 {
		problem("hosts", "", "at least one host is required")
	}
	for _, h := range e.Hosts {
		if f.Waits(h) {
			continue
		}
		if fault := hostpattern.Fault(h); fault != "" {
			problem("hosts", "", fmt.Sprintf("%q %s", h, fault))
		} else if allow && e.Bounded() && strings.Contains(h, "*") {
			problem("hosts", "network-policy@2/bounded-allow-hosts-literal", fmt.Sprintf("%q cannot be bounded: an allow entry with methods or paths names its hosts literally", h))
		}
	}
	if e.Methods != nil && len(e.Methods) == 0 {
		problem("methods", "", "an empty list of methods admits nothing; leave it out, or write ANY for every method")
	}
	for _, m := range e.Methods {
		switch {
		case f.Waits(m):
		case m == AnyMethod && len(e.Methods) > 1:
			problem("methods", "", "ANY covers every method and stands alone")
		case !methodToken(m):
			problem("methods", "", fmt.Sprintf("%q is not a method: write an upper case token such as GET, or ANY", m))
		}
	}
	switch {
	case e.Paths != nil && len(e.Paths) == 0:
		problem("paths", "", "an empty list of paths admits nothing; leave it out for every path")
	case e.Paths != nil && e.Methods == nil:
		problem("paths", "", "paths need methods beside them: write methods: [ANY] if every method is meant")
	}
	for _, p := range e.Paths {
		if !f.Waits(p) && !strings.HasPrefix(p, "/") {
			problem("paths", "", fmt.Sprintf("%q must begin with /", p))
		}
	}
}

// methodToken reports whether m is an HTTP method token without lower case
// letters (RFC 9110 §5.6.2).
func methodToken(m string) bool {
	for i := range len(m) {
		switch c := m[i]; {
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return m != ""
}

// everyMethod and everyPath are what an unbounded entry is projected as.
var (
	everyMethod = []string{AnyMethod}
	everyPath   = []string{"/**"}
)

// project adds the surface lines of entries: one per host that is reachable as
// a connection, and one per method, host and path.
func project(entries []Entry, hosts, requests string, in *capability.Inspection) {
	for _, e := range entries {
		methods, paths := e.Methods, e.Paths
		if methods == nil {
			methods = everyMethod
		}
		if paths == nil {
			paths = everyPath
		}
		for _, h := range e.Hosts {
			if !e.Bounded() {
				in.Line(hosts, h)
			}
			for _, m := range methods {
				for _, p := range paths {
					in.Line(requests, m+" "+h+p)
				}
			}
		}
	}
}
