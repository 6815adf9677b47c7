package egress

import (
	"fmt"
	"slices"
	"strings"
)

// A Destination is what a policy says of one [Request], for as many HTTP requests to it
// as there are. It must not be used concurrently.
type Destination struct {
	// Verdict is that of [Policy.Decide].
	Verdict Verdict

	asked Request
	host  Host
	lists *lists
	there string // what is allowed there, for messages; empty until it is needed
}

// At returns what p says of r.
func (p *Policy) At(r Request) *Destination {
	d := &Destination{Verdict: p.Decide(r), asked: r, lists: p.lists(r.Phase)}
	if d.Verdict.Allow && d.Verdict.Inspect {
		d.host, _ = ParseHost(r.Host) // it could be decided about
	}
	return d
}

// DecideRequest judges an HTTP request on a connection that [Policy.Decide]
// allows. path is as it was sent, without the query. On a connection that need
// not be inspected it says what Decide says.
func (p *Policy) DecideRequest(r Request, method, path string) Verdict {
	return p.At(r).DecideRequest(method, path)
}

// DecideRequest is that of the policy.
func (d *Destination) DecideRequest(method, path string) Verdict {
	v := d.Verdict
	if !v.Allow || !v.Inspect {
		return v
	}
	if len(method) > maxMethod {
		return Verdict{Inspect: true, Why: fmt.Sprintf("the method is longer than %d bytes", maxMethod)}
	}
	decoded, err := DecodePath(path)
	if err != nil {
		return Verdict{Inspect: true, Why: err.Error()}
	}
	l, h, port := d.lists, d.host, d.asked.Port
	if v.Service != nil {
		return l.serviceRequest(v, port, method, decoded)
	}
	if d := l.boundDeny.first(h, port, func(r *rule) bool { return r.bound.refuses(method, decoded) }); d != nil {
		return d.verdict
	}
	plain := func(r *rule) bool { return !h.Addr.IsValid() || l.addrRule(r, h.Addr, false) }
	if a := l.allow.first(h, port, plain); a != nil {
		v := a.verdict
		v.Inspect = true
		return v
	}
	if a := l.boundAllow.first(h, port, func(r *rule) bool { return plain(r) && r.bound.admits(method, decoded) }); a != nil {
		return a.verdict
	}
	return Verdict{Inspect: true, Why: "no " + string(d.asked.Phase) + " rule allows " + method + " " + h.String() + quotePath(decoded) + "; there only " + d.known()}
}

// known says which requests are allowed there.
func (d *Destination) known() string {
	if d.there != "" {
		return d.there
	}
	var known []string
	d.lists.boundAllow.each(d.host, func(b *rule) bool {
		if b.port == 0 || b.port == d.asked.Port {
			known = append(known, b.bound.text)
		}
		return len(known) < 8
	})
	slices.Sort(known) // indexes have no order
	d.there = strings.Join(slices.Compact(known), "; ")
	return d.there
}

// quotePath is quote without the quotes for what is printable anyway.
func quotePath(p string) string {
	q := quote(p)
	if len(q) == len(p)+2 {
		return p
	}
	return q
}
