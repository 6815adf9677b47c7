// Package egress decides what a sandbox may reach. It is pure: rules and a
// destination go in, a verdict and the reason for it come out, and the proxy,
// the resolver, `policy check` and the plan view all ask here so that they
// cannot disagree.
//
// It dials nothing and resolves nothing. What it is asked, and what happens
// with the answer, is in packages proxy and dns beside it.
package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Protocol is what the boundary has seen of a flow so far.
type Protocol string

const (
	TCP Protocol = "tcp"
	TLS Protocol = "tls" // TCP that began with a ClientHello
	UDP Protocol = "udp"
	DNS Protocol = "dns" // a question for the name, not a connection
)

// A Request is one destination in one phase.
type Request struct {
	Phase    plan.Phase
	Host     string // a name or an address, in any spelling
	Port     uint16 // ignored for DNS
	Protocol Protocol

	// V6 says that the client uses IPv6, which tells two services at one
	// port apart and nothing else.
	V6 bool
}

// A Verdict is a decision and the reason for it. Its zero value denies.
type Verdict struct {
	Allow  bool
	Rule   string // the deciding pattern as it was declared; empty when no rule matched
	Source string // of Rule: "kit <ref>" or "operator"
	Why    string // for the log and for the user; never empty from a Policy

	// Inspect says that an allowed connection may carry HTTP only, each
	// request of which [Policy.DecideRequest] allows. Who cannot look into
	// it must refuse it.
	Inspect bool

	// Service is what an allowed connection to a name of the boundary leads
	// to; nil for everything else. It must not be changed.
	Service *Service
}

// A Policy answers for one sandbox. It does not change, so it is safe for
// concurrent use. Its zero value, and a nil one, deny everything.
type Policy struct {
	rules    []plan.EgressRule
	phases   map[plan.Phase]*lists
	services []Service
}

// Rules about particular requests have indexes of their own, so that those about
// connections cost nothing more than before there were any.
type lists struct {
	allow, deny, boundAllow, boundDeny index

	deniedAddrs []rule // of deny and boundDeny, those about addresses
}

// An index finds the rules that match a destination without walking all.
type index struct {
	exact    map[string][]rule
	oneLabel map[string][]rule
	anyLabel map[string][]rule
	anything []rule
	addrs    map[netip.Addr][]rule // ranges of one address
	ranges   []rule
}

type rule struct {
	order int // position in the policy: the first declared is the one reported
	pattern
	bound    *bound  // nil: about the connection
	operator bool    // wrote it
	verdict  Verdict // if it decides
}

// New returns the policy made of rules; they are copied. The error lists every
// rule that cannot be understood and is in the family [kiterr.ErrRefused]: a
// rule that is skipped is a grant or a denial that nobody gets.
func New(rules []plan.EgressRule) (*Policy, error) {
	p := &Policy{rules: slices.Clone(rules), phases: map[plan.Phase]*lists{}}
	var errs []error
	for i, r := range rules {
		pat, err := parsePattern(r.Pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("egress rule %d of %s: %w", i+1, r.Source, err))
			continue
		}
		if r.Phase != plan.Install && r.Phase != plan.Runtime {
			errs = append(errs, fmt.Errorf("egress rule %d of %s: unknown phase %s", i+1, r.Source, quote(string(r.Phase))))
			continue
		}
		l := p.phases[r.Phase]
		if l == nil {
			l = new(lists)
			p.phases[r.Phase] = l
		}
		b, err := parseBound(r, pat)
		if err != nil {
			errs = append(errs, fmt.Errorf("egress rule %d of %s: %w", i+1, r.Source, err))
			continue
		}
		v := Verdict{Allow: r.Allow, Rule: r.Pattern, Source: r.Source, Why: "denied by " + r.Pattern}
		if r.Allow {
			v.Why = "allowed by " + r.Pattern
		}
		x := &l.deny
		switch {
		case b != nil && r.Allow:
			x = &l.boundAllow
		case b != nil:
			x = &l.boundDeny
		case r.Allow:
			x = &l.allow
		}
		if b != nil {
			v.Inspect = true
			v.Rule += " " + b.text
			v.Why += " " + b.text
		}
		made := rule{order: i, pattern: pat, bound: b, operator: strings.HasPrefix(r.Source, "operator"), verdict: v}
		x.add(made)
		if !r.Allow && pat.scope == network {
			l.deniedAddrs = append(l.deniedAddrs, made)
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", kiterr.ErrRefused, errors.Join(errs...))
	}
	return p, nil
}

// CheckRule reports whether r can be a rule, and if not, why.
func CheckRule(r plan.EgressRule) error {
	pat, err := parsePattern(r.Pattern)
	if err == nil {
		_, err = parseBound(r, pat)
	}
	return err
}

// Rules returns the rules of p in the order they were declared.
func (p *Policy) Rules() []plan.EgressRule {
	if p == nil {
		return nil
	}
	return slices.Clone(p.rules)
}

func (x *index) add(r rule) {
	put := func(m *map[string][]rule) {
		if *m == nil {
			*m = map[string][]rule{}
		}
		(*m)[r.name] = append((*m)[r.name], r)
	}
	switch r.scope {
	case exact:
		put(&x.exact)
	case oneLabel:
		put(&x.oneLabel)
	case anyLabel:
		put(&x.anyLabel)
	case anything:
		x.anything = append(x.anything, r)
	case network:
		if !r.prefix.IsSingleIP() {
			x.ranges = append(x.ranges, r)
			return
		}
		if x.addrs == nil {
			x.addrs = map[netip.Addr][]rule{}
		}
		x.addrs[r.prefix.Addr()] = append(x.addrs[r.prefix.Addr()], r)
	}
}

// each calls f for every rule whose host matches h, whatever its port, in no
// particular order, until f returns false.
func (x *index) each(h Host, f func(*rule) bool) {
	run := func(rs []rule) bool {
		for i := range rs {
			if !f(&rs[i]) {
				return false
			}
		}
		return true
	}
	if h.Addr.IsValid() {
		if !run(x.addrs[h.Addr]) {
			return
		}
		for i := range x.ranges {
			if x.ranges[i].prefix.Contains(h.Addr) && !f(&x.ranges[i]) {
				return
			}
		}
		run(x.anything)
		return
	}
	if !run(x.exact[h.Name]) {
		return
	}
	domain, first := h.Name, true
	for len(x.oneLabel)+len(x.anyLabel) > 0 {
		_, parent, ok := strings.Cut(domain, ".")
		if !ok {
			break
		}
		domain = parent
		if first && !run(x.oneLabel[domain]) {
			return
		}
		first = false
		if len(x.anyLabel) == 0 {
			break
		}
		if !run(x.anyLabel[domain]) {
			return
		}
	}
	run(x.anything)
}

// first returns the first declared rule for h and port that keep accepts.
func (x *index) first(h Host, port uint16, keep func(*rule) bool) *rule {
	var found *rule
	x.each(h, func(r *rule) bool {
		if (r.port == 0 || r.port == port) && (found == nil || r.order < found.order) && (keep == nil || keep(r)) {
			found = r
		}
		return true
	})
	return found
}

// Decide says whether r may be connected to. A denial wins over any allowance,
// whatever the order. An address is allowed only by a rule that spells it, so a
// rule for a name cannot be sidestepped by resolving it first, and `*` covers
// names alone. UDP is never allowed by a rule: nothing in it says which host was
// meant. A name of the boundary is open to its services alone.
//
// For a name this is half the answer: each address it resolves to is put to
// [Policy.DecideAddr] before it is dialled.
func (p *Policy) Decide(r Request) Verdict {
	if r.Protocol == DNS {
		return p.CouldAllow(r.Phase, r.Host)
	}
	h, err := ParseHost(r.Host)
	if err != nil {
		return Verdict{Why: err.Error()}
	}
	l := p.lists(r.Phase)
	if d := l.deny.first(h, r.Port, nil); d != nil {
		return d.verdict
	}
	switch {
	case r.Port == 0:
		return Verdict{Why: "port 0 is not a destination"}
	case Reserved(h.Name):
		return p.service(l, h, r)
	case r.Protocol == UDP:
		return Verdict{Why: "udp is not carried: only tcp, and dns to the sandbox's own resolver"}
	case r.Protocol != TCP && r.Protocol != TLS:
		return Verdict{Why: "unknown protocol " + quote(string(r.Protocol))}
	case h.Addr.IsValid():
		return l.addr(r.Phase, h.Addr, r.Port, false)
	}
	if v, ok := l.allowed(h, r.Port, nil); ok {
		return v
	}
	return Verdict{Why: l.nothing(r.Phase, h, r.Port)}
}

// allowed looks for a rule that keep accepts and that allows a connection,
// whole or for particular requests. A host that some rule denies requests at is
// inspected as well: what cannot be looked into could be what is denied.
func (l *lists) allowed(h Host, port uint16, keep func(*rule) bool) (Verdict, bool) {
	if a := l.allow.first(h, port, keep); a != nil {
		v := a.verdict
		v.Inspect = l.boundDeny.first(h, port, nil) != nil
		return v, true
	}
	if a := l.boundAllow.first(h, port, keep); a != nil {
		return a.verdict, true
	}
	return Verdict{}, false
}

// CouldAllow says whether some port of host may be connected to. It is what
// the resolver asks: a name that no rule could allow does not exist.
func (p *Policy) CouldAllow(phase plan.Phase, host string) Verdict {
	h, err := ParseHost(host)
	if err != nil {
		return Verdict{Why: err.Error()}
	}
	l := p.lists(phase)
	var deny, found *rule
	var ports []uint16 // that are denied
	l.deny.each(h, func(r *rule) bool {
		if r.port != 0 {
			ports = append(ports, r.port)
		} else if deny == nil || r.order < deny.order {
			deny = r
		}
		return true
	})
	if deny != nil {
		return deny.verdict
	}
	if Reserved(h.Name) {
		for _, s := range p.Services() {
			if slices.Contains(s.Hosts, h.Name) && !slices.Contains(ports, s.Port) {
				return Verdict{Allow: true, Rule: s.Name, Source: s.Source, Why: "granted by " + s.Name}
			}
		}
		return Verdict{Why: p.noService(h.Name, Request{})}
	}
	consider := func(r *rule) bool {
		open := r.port == 0 || !slices.Contains(ports, r.port)
		if open && h.Addr.IsValid() {
			open = l.addrRule(r, h.Addr, false)
		}
		if open && (found == nil || r.order < found.order) {
			found = r
		}
		return true
	}
	l.allow.each(h, consider)
	l.boundAllow.each(h, consider)
	if found != nil {
		return found.verdict
	}
	return Verdict{Why: l.nothing(phase, h, 0)}
}

// DecideAddr judges addr, one of the addresses that the host of an allowed r
// resolved to, or that host itself. A public address is allowed unless a rule
// denies it; any other needs a rule that spells it. own says that addr is one
// of the host's own addresses, which only the operator opens, one by one.
func (p *Policy) DecideAddr(r Request, addr netip.Addr, own bool) Verdict {
	h, err := hostpattern.AddrHost(addr)
	if err != nil {
		return Verdict{Why: err.Error()}
	}
	l := p.lists(r.Phase)
	if d := l.deny.first(h, r.Port, nil); d != nil {
		return d.verdict
	}
	asked, err := ParseHost(r.Host)
	if err != nil {
		return Verdict{Why: err.Error()}
	}
	named := !asked.Addr.IsValid()
	if named {
		// The requests of a named connection are judged by its name, so a
		// denial of some at the address behind it must be one of all.
		if d := l.boundDeny.first(h, r.Port, nil); d != nil {
			return d.verdict
		}
	}
	if _, ok := classify(h.Addr); !ok && !own {
		return Verdict{Allow: true, Why: "public address"}
	}
	v := l.addr(r.Phase, h.Addr, r.Port, own)
	if named && v.Allow && v.Inspect {
		return Verdict{Rule: v.Rule, Source: v.Source, Why: fmt.Sprintf("%s is opened for particular requests only, to itself and not to a name", h)}
	}
	return v
}

// DeniesAddrs reports whether some addresses are denied at port, and by which rule.
// What leads to an address that nobody here knows must not be let through then.
func (p *Policy) DeniesAddrs(phase plan.Phase, port uint16) (Verdict, bool) {
	for _, d := range p.lists(phase).deniedAddrs {
		if d.port == 0 || d.port == port {
			return d.verdict, true
		}
	}
	return Verdict{}, false
}

var none lists

func (p *Policy) lists(phase plan.Phase) *lists {
	if p != nil {
		if l := p.phases[phase]; l != nil {
			return l
		}
	}
	return &none
}

// addr looks for the rule that spells a; denials have been looked at.
func (l *lists) addr(phase plan.Phase, a netip.Addr, port uint16, own bool) Verdict {
	h := Host{Addr: a}
	if v, ok := l.allowed(h, port, func(r *rule) bool { return l.addrRule(r, a, own) }); ok {
		return v
	}
	s, ok := classify(a)
	switch {
	case own:
		return Verdict{Why: fmt.Sprintf("%s is an address of the host itself", a)}
	case ok && s.by == nobody:
		return Verdict{Why: fmt.Sprintf("%s is a %s address, which no rule opens", a, s.kind)}
	case ok && s.by == operator:
		return Verdict{Why: fmt.Sprintf("%s is a %s address; only an operator rule that spells it allows it", a, s.kind)}
	case ok:
		return Verdict{Why: fmt.Sprintf("%s is a %s address; only a rule that spells it allows it", a, s.kind)}
	}
	return Verdict{Why: l.nothing(phase, h, port)}
}

// addrRule reports whether r opens a: it must spell the address, and whoever
// wrote it must be one who can.
func (l *lists) addrRule(r *rule, a netip.Addr, own bool) bool {
	if r.scope != network {
		return false
	}
	if own && !(r.operator && r.prefix.IsSingleIP()) {
		return false
	}
	s, ok := classify(a)
	if !ok {
		return true
	}
	switch s.by {
	case anyone:
		return s.spells(r.prefix)
	case operator:
		return r.operator && s.spells(r.prefix)
	}
	return false
}

// nothing words the refusal of what no rule allows, and says what is near.
func (l *lists) nothing(phase plan.Phase, h Host, port uint16) string {
	if port == 0 {
		return fmt.Sprintf("no %s rule allows %s", phase, h)
	}
	var ports []int
	wide := false
	near := func(r *rule) bool {
		switch {
		case h.Addr.IsValid() && r.scope == anything:
			wide = true
		case r.port != 0 && r.port != port:
			ports = append(ports, int(r.port))
		}
		return true
	}
	l.allow.each(h, near)
	l.boundAllow.each(h, near)
	where := netip.AddrPort{}
	dest := fmt.Sprintf("%s:%d", h, port)
	if h.Addr.IsValid() {
		where = netip.AddrPortFrom(h.Addr, port)
		dest = where.String()
	}
	switch {
	case len(ports) > 0:
		slices.Sort(ports)
		ports = slices.Compact(ports)
		texts := make([]string, len(ports))
		for i, p := range ports {
			texts[i] = strconv.Itoa(p)
		}
		return fmt.Sprintf("no %s rule allows %s; for that host only port %s", phase, dest, strings.Join(texts, ", "))
	case wide:
		return fmt.Sprintf("no %s rule allows %s; * covers names, not addresses", phase, dest)
	}
	return fmt.Sprintf("no %s rule allows %s", phase, dest)
}
