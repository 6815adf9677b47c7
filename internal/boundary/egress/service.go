package egress

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// The names that belong to the boundary. No rule that allows opens them, not
// even one that spells them: what is reachable there are [Service] entries.
const (
	HostAlias       = "host.kitbox.internal" // the host of the sandbox
	HostAliasDocker = "host.docker.internal" // the same, as containers have come to expect it
	RegistryAlias   = "registry.kitbox.internal"
)

// domain is reserved as a whole, so that a later alias takes nobody's name.
const domain = "kitbox.internal"

// Reserved reports whether name, in its one spelling, belongs to the boundary.
func Reserved(name string) bool {
	return name == HostAliasDocker || name == domain || strings.HasSuffix(name, "."+domain)
}

// A Service is one port at a name of the boundary that a sandbox was given by
// itself. It holds in every phase. A denial by rule takes it away; no rule
// that allows adds to it.
type Service struct {
	Hosts    []string // reserved names that it is at
	Port     uint16   // on both sides
	Protocol Protocol // TCP or UDP
	V6       bool     // leads to IPv6; matters only where two are at one port
	Name     string   // for messages and the log, such as "host-port tcp4/5432"
	Source   string   // "kit <ref>"
}

// ServicesOf returns what p grants besides its rules.
func ServicesOf(p *plan.Plan) []Service {
	var ss []Service
	for _, h := range p.HostPorts {
		ss = append(ss, Service{Hosts: []string{HostAlias, HostAliasDocker}, Port: h.Port, Protocol: Protocol(h.Transport),
			V6: h.Family == "ipv6", Name: "host-port " + h.Key(), Source: "kit " + strings.Join(h.Kits, ", ")})
	}
	if p.Registry != nil {
		for _, port := range []uint16{RegistryTLSPort, 80} {
			ss = append(ss, Service{Hosts: []string{RegistryAlias}, Port: port, Protocol: TCP, Name: "kit-registry", Source: "kit " + strings.Join(p.Registry.Kits, ", ")})
		}
	}
	return ss
}

// RegistryTLSPort is the port of [RegistryAlias] where clients begin with TLS.
const RegistryTLSPort = 443

// WithServices returns p with services as well.
func (p *Policy) WithServices(services []Service) *Policy {
	q := Policy{}
	if p != nil {
		q = *p
	}
	q.services = slices.Clone(services)
	return &q
}

// Services returns the services of p.
func (p *Policy) Services() []Service {
	if p == nil {
		return nil
	}
	return slices.Clone(p.services)
}

// serviceAt finds the service that r, to reserved name host, means. Where one
// port leads to both families, it is that of the client's.
func (p *Policy) serviceAt(host string, r Request) *Service {
	var found *Service
	if p == nil {
		return nil
	}
	proto := r.Protocol
	if proto == TLS {
		proto = TCP
	}
	for i := range p.services {
		s := &p.services[i]
		if s.Port == r.Port && s.Protocol == proto && slices.Contains(s.Hosts, host) && (found == nil || s.V6 == r.V6) {
			found = s
		}
	}
	return found
}

// service decides about a reserved name; denials of the connection have been
// looked at.
func (p *Policy) service(l *lists, h Host, r Request) Verdict {
	s := p.serviceAt(h.Name, r)
	if s == nil {
		return Verdict{Why: p.noService(h.Name, r)}
	}
	// A denial at one of its names is one at all: it is the same service.
	for _, host := range s.Hosts {
		if d := l.deny.first(Host{Name: host}, r.Port, nil); d != nil {
			return d.verdict
		}
	}
	v := Verdict{Allow: true, Rule: s.Name, Source: s.Source, Why: "granted by " + s.Name, Service: s}
	for _, host := range s.Hosts {
		if d := l.boundDeny.first(Host{Name: host}, r.Port, nil); d != nil {
			if r.Protocol == UDP {
				return Verdict{Rule: d.verdict.Rule, Source: d.verdict.Source, Why: d.verdict.Why + ", and datagrams cannot be looked into"}
			}
			v.Inspect = true
		}
	}
	return v
}

// serviceRequest is [Policy.DecideRequest] at a service.
func (l *lists) serviceRequest(v Verdict, port uint16, method, path string) Verdict {
	for _, host := range v.Service.Hosts {
		if d := l.boundDeny.first(Host{Name: host}, port, func(r *rule) bool { return r.bound.refuses(method, path) }); d != nil {
			return d.verdict
		}
	}
	return v
}

func (p *Policy) noService(host string, r Request) string {
	var has []string
	if p != nil {
		for _, s := range p.services {
			if slices.Contains(s.Hosts, host) {
				has = append(has, fmt.Sprintf("%s/%d", s.Protocol, s.Port))
			}
		}
	}
	slices.Sort(has)
	has = slices.Compact(has)
	what := "is a name of the boundary"
	if host == HostAlias || host == HostAliasDocker {
		what = "is this sandbox's host, which only host-port entries of Kits open"
	}
	if len(has) == 0 || r.Port == 0 {
		return fmt.Sprintf("%s %s; nothing was granted there", host, what)
	}
	return fmt.Sprintf("%s %s; %s/%d was not granted there, only %s", host, what, r.Protocol, r.Port, strings.Join(has, ", "))
}
