package surface

import (
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
)

// A Change is one difference between what was granted and what a candidate
// asks.
type Change struct {
	Category string   `json:"category"` // e.g. network.runtime.allow
	Detail   string   `json:"detail"`   // the line that is new or gone
	Kits     []string `json:"kits,omitzero"`
}

// Changes are the differences in a fixed order.
type Changes struct {
	// Widenings need approval (§7.4/widenings-gate): new authority, a bound
	// that fell, a denial that went.
	Widenings []Change `json:"widenings"`

	// Narrowings are authority that the candidate no longer asks for. They
	// need none.
	Narrowings []Change `json:"narrowings"`
}

// categories names the changes of each list.
var categories = map[string]string{
	capability.ListNetworkInstallAllow:     "network.install.allow",
	capability.ListNetworkInstallDeny:      "network.install.deny",
	capability.ListNetworkInstallHTTPAllow: "network.install.http.allow",
	capability.ListNetworkInstallHTTPDeny:  "network.install.http.deny",
	capability.ListNetworkRuntimeAllow:     "network.runtime.allow",
	capability.ListNetworkRuntimeDeny:      "network.runtime.deny",
	capability.ListNetworkRuntimeHTTPAllow: "network.runtime.http.allow",
	capability.ListNetworkRuntimeHTTPDeny:  "network.runtime.http.deny",
	capability.ListCredentialsInstall:      "credentials.install",
	capability.ListCredentialsRuntime:      "credentials.runtime",
	capability.ListSSHAgentInstall:         "ssh-agent.install",
	capability.ListSSHAgentRuntime:         "ssh-agent.runtime",
	capability.ListStoragePaths:            "storage",
	capability.ListHostMountPaths:          "host-mount",
	capability.ListSkillsPaths:             "skills",
	capability.ListSkillsWritePaths:        "skills",
	capability.ListPorts:                   "ports",
	capability.ListHostPorts:               "host-ports",
	capability.ListDockerAuth:              "docker-auth",
	capability.ListUSBDevices:              "usb",
	capability.ListPrivileged:              "privileged",
	capability.ListServices:                "services",
}

// Diff compares what a candidate asks with what was granted. Each change names
// the Kits that ask for it, if the surface it comes from knows them; a denial
// that went names those that used to ask for it.
func Diff(granted, candidate Surface) Changes {
	return Changes{Widenings: beyond(granted, candidate), Narrowings: beyond(candidate, granted)}
}

// Widens reports whether anything needs approval.
func (c Changes) Widens() bool { return len(c.Widenings) > 0 }

// beyond returns what to allows that from does not.
func beyond(from, to Surface) []Change {
	out := []Change{}
	for _, p := range []struct{ allow, deny, httpAllow, httpDeny string }{
		{capability.ListNetworkInstallAllow, capability.ListNetworkInstallDeny, capability.ListNetworkInstallHTTPAllow, capability.ListNetworkInstallHTTPDeny},
		{capability.ListNetworkRuntimeAllow, capability.ListNetworkRuntimeDeny, capability.ListNetworkRuntimeHTTPAllow, capability.ListNetworkRuntimeHTTPDeny},
	} {
		out = append(out, news(from, to, p.allow, p.httpAllow, "")...)
		// A denial is authority withheld, so what from denies and to does
		// not is what to allows more.
		out = append(out, news(to, from, p.deny, p.httpDeny, "-removed")...)
	}
	for _, name := range lists[8:] {
		have := *from.list(name)
		for _, v := range *to.list(name) {
			if !slices.ContainsFunc(have, func(h string) bool { return coversLine(name, h, v) }) {
				detail := v
				if name == capability.ListSkillsWritePaths {
					detail += " (readwrite)" // the path is on the list of skills already
				}
				out = append(out, Change{categories[name], detail, to.Kits(name, v)})
			}
		}
	}
	if to.Privileged && !from.Privileged {
		out = append(out, Change{categories[capability.ListPrivileged], "privileged", to.privilegedKits()})
	}
	return out
}

func (s Surface) privilegedKits() []string {
	for l, kits := range s.kits {
		if l.List == capability.ListPrivileged {
			return kits
		}
	}
	return nil
}

// news returns the connections and requests of to that from does not cover. The
// requests of a host whose connection is reported are not repeated.
func news(from, to Surface, hosts, requests, suffix string) []Change {
	var out []Change
	reported := map[string]bool{}
	have := *from.list(hosts)
	for _, h := range *to.list(hosts) {
		if !slices.ContainsFunc(have, func(p string) bool { return coversHost(p, h) }) {
			reported[h] = true
			out = append(out, Change{categories[hosts] + suffix, h, to.Kits(hosts, h)})
		}
	}
	haveRequests := parseRequests(*from.list(requests))
	for _, line := range *to.list(requests) {
		r := parseRequest(line)
		if reported[r.host] || slices.ContainsFunc(haveRequests, func(p request) bool { return p.covers(r) }) {
			continue
		}
		out = append(out, Change{categories[requests] + suffix, line, to.Kits(requests, line)})
	}
	return out
}

// coversLine reports whether the granted line h holds the asked line v.
func coversLine(list, h, v string) bool {
	if h == v {
		return true
	}
	if list == capability.ListSSHAgentInstall || list == capability.ListSSHAgentRuntime {
		if h == "unrestricted" {
			return true
		}
		host, ok := strings.CutPrefix(h, "authenticate ")
		asked, ok2 := strings.CutPrefix(v, "authenticate ")
		if !ok || !ok2 || strings.Contains(host, "@") {
			return false
		}
		_, at, found := strings.Cut(asked, "@")
		return found && at == host // a host covers each of its users
	}
	return false
}

// coversHost reports whether the pattern p holds h: everything for a bare
// wildcard, every port for a host without one, otherwise only itself. A glob is
// not expanded: whether it matches is for enforcement to say, not for the gate.
func coversHost(p, h string) bool {
	return p == h || p == "*" || p == "**" || p == hostOnly(h)
}

func hostOnly(h string) string {
	if i := strings.LastIndexByte(h, ':'); i > 0 && strings.Trim(h[i+1:], "0123456789") == "" &&
		(!strings.Contains(h[:i], ":") || strings.HasSuffix(h[:i], "]")) {
		return h[:i]
	}
	return h
}

// A request is a line `METHOD host/path`.
type request struct{ method, host, path string }

func parseRequests(lines []string) []request {
	out := make([]request, len(lines))
	for i, l := range lines {
		out[i] = parseRequest(l)
	}
	return out
}

func parseRequest(line string) request {
	method, rest, _ := strings.Cut(line, " ")
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return request{method, rest, "/**"}
	}
	return request{method, rest[:i], rest[i:]}
}

// covers reports whether granting p grants r. ANY is not the sum of any list of
// methods, because methods can be invented.
func (p request) covers(r request) bool {
	return (p.method == "ANY" || p.method == r.method) && coversHost(p.host, r.host) && coversPath(p.path, r.path)
}

// coversPath reports whether glob p holds glob r, as far as that can be told
// without matching: the same text, or below a prefix that ends in `/**`.
func coversPath(p, r string) bool {
	if p == r {
		return true
	}
	prefix, ok := strings.CutSuffix(p, "/**")
	return ok && !strings.ContainsAny(prefix, "*?[") && strings.HasPrefix(r, prefix+"/")
}
