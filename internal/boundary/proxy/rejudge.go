package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// Rejudge puts every live connection and every request on one to the rules in
// force, ends those that they do not allow, and returns how many connections it cut
// once none of these, and no such request, moves a byte any more. Both ends of each
// learn of it at about the same time, and maybe a little later. No client can make it
// wait.
func (p *Proxy) Rejudge() int {
	p.mu.Lock()
	flows := make([]*flow, 0, len(p.flows))
	for f := range p.flows {
		flows = append(flows, f)
	}
	p.mu.Unlock()
	rules := p.Rules()
	var cut []*flow
	var why []egress.Verdict
	for _, f := range flows {
		if v := p.judge(rules, f); !v.Allow && f.stop() {
			cut, why = append(cut, f), append(why, v)
		}
	}
	// Everything is stopped before anything is waited for.
	var ended []ending
	var lines []audit.Decision
	for _, f := range flows {
		es, ds := p.rejudgeRequests(rules, f)
		ended, lines = append(ended, es...), append(lines, ds...)
	}
	soon, late := time.NewTimer(heed), time.NewTimer(time.Second)
	defer soon.Stop()
	defer late.Stop()
	for _, f := range outlive(ended, soon.C) {
		if f.stop() {
			cut, why = append(cut, f), append(why, egress.Verdict{Why: "a request on it may not go on, and its client or its host holds it up"})
		}
	}
	dials := time.NewTimer(heedDial)
	defer dials.Stop()
	for _, f := range cut {
		if !f.undialled(dials.C) {
			break // it does not heed that it was cancelled, and is given to nobody
		}
	}
	for _, f := range cut {
		if !f.rest(late.C) {
			break // a system call that does not return; both sides are about to be closed
		}
	}
	// After the last cut, since a log may be slow, and before anyone learns of it, who
	// would have the processor then.
	for i, v := range why {
		p.logCut(rules, cut[i], v)
	}
	for _, d := range lines {
		p.Log(d)
	}
	p.drop(cut, ended)
	return len(cut)
}

// drop forgets flows that have been stopped, and sees to it that both ends of these
// and of requests that have been cancelled learn of it. That takes many times as long
// as to stop them, and wakes whoever carries them.
func (p *Proxy) drop(fs []*flow, es []ending) {
	tell := func() {
		for _, f := range fs {
			f.end()
		}
		for _, e := range es {
			e.tell()
		}
	}
	p.mu.Lock()
	for _, f := range fs {
		delete(p.flows, f)
	}
	served := p.served
	if !served {
		p.tells.Go(tell)
	}
	p.mu.Unlock()
	if served {
		tell()
	}
}

// An ending is a request that was cancelled.
type ending struct {
	of    *flow
	still <-chan struct{} // closed when it moves no byte any more
	tell  func()          // lets both ends know
}

// outlive returns the flows of those of es that are not still when late comes.
func outlive(es []ending, late <-chan time.Time) (of []*flow) {
	for i, e := range es {
		if await(e.still, late) {
			continue
		}
		for _, e := range es[i:] {
			select {
			case <-e.still:
			default:
				of = append(of, e.of)
			}
		}
		break
	}
	return of
}

// await reports whether done was closed before late came.
func await(done <-chan struct{}, late <-chan time.Time) bool {
	select {
	case <-done:
		return true
	case <-late:
		return false
	}
}

// rejudgeRequests cancels the requests of f that rules do not allow any more, and
// returns what is to be waited for and to be logged. Those of a flow that is cut are
// ended by that.
func (p *Proxy) rejudgeRequests(rules Rules, f *flow) (ended []ending, lines []audit.Decision) {
	f.mu.Lock()
	live, cut := slices.Collect(maps.Keys(f.requests)), f.cut
	live = slices.DeleteFunc(live, func(r *request) bool { return r.over })
	f.mu.Unlock()
	for _, r := range live {
		v := rules.Policy.DecideRequest(f.request(rules), r.method, r.path)
		if names := r.proof.holds(); v.Allow && !p.granted(rules.Phase, names) {
			v = egress.Verdict{Why: notGranted(names)}
		}
		if v.Allow {
			continue
		}
		f.mu.Lock()
		r.over = true
		f.mu.Unlock()
		r.proof.Revoke()
		if !cut {
			still, tell := r.cancel(&intercept.RefusedError{Why: v.Why})
			ended = append(ended, ending{f, still, tell})
		}
		lines = append(lines, audit.Decision{Phase: rules.Phase, Kind: audit.Cut, Verdict: audit.Deny, Host: f.host, Port: f.port, Protocol: "http",
			Method: r.method, Path: r.path, Rule: v.Rule, Source: v.Source, Why: v.Why})
	}
	return ended, lines
}

// judge says what rules think of f as far as it has got.
func (p *Proxy) judge(rules Rules, f *flow) egress.Verdict {
	f.mu.Lock()
	ups, spliced := slices.Clone(f.ups), f.spliced
	f.mu.Unlock()
	req := f.request(rules)
	v := rules.Policy.Decide(req)
	for _, u := range ups {
		behind := u.behind
		if !u.routed {
			behind = []netip.Addr{u.to.Addr()}
		}
		for _, a := range behind {
			if v.Allow {
				inspect := v.Inspect
				v = rules.Policy.DecideAddr(req, a, p.isOwn(a))
				v.Inspect = v.Inspect || inspect
			}
		}
		if v.Allow && u.unseen {
			if d, ok := rules.Policy.DeniesAddrs(req.Phase, req.Port); ok {
				v = unjudged(req.Host, u.via, d)
			}
		}
	}
	if v.Allow && spliced && f.named && p.Presenter != nil && p.Presenter.Interest(rules.Phase, f.host, f.port) == All {
		v = egress.Verdict{Rule: v.Rule, Source: v.Source, Why: "a credential is presented there now, and this connection was not looked into"}
	}
	if v.Allow && v.Inspect && spliced {
		v = egress.Verdict{Rule: v.Rule, Source: v.Source, Why: "only particular requests are allowed there now, and this connection was not looked into"}
	}
	return v
}

func (p *Proxy) logCut(rules Rules, f *flow, v egress.Verdict) {
	p.Log(audit.Decision{Phase: rules.Phase, Kind: audit.Cut, Verdict: audit.Deny, Host: f.host, Port: f.port, Protocol: "tcp",
		Rule: v.Rule, Source: v.Source, Why: v.Why})
}
