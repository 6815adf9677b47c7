package proxy

import (
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
	// Who finds that somebody else is ending something has to wait for it too.
	p.rejudging.Lock()
	defer p.rejudging.Unlock()
	p.mu.Lock()
	flows := make([]*flow, 0, len(p.flows))
	for f := range p.flows {
		flows = append(flows, f)
	}
	p.mu.Unlock()
	r := rejudgement{p: p, rules: p.Rules(), began: time.Now()}
	r.verdicts.rules = r.rules
	// Everything is stopped before anything is waited for, and before anyone is woken,
	// who would have the processor then.
	for _, f := range flows {
		r.flow(f)
	}
	r.conclude()
	return len(r.cut)
}

// A rejudgement is what one change of the rules has come to.
type rejudgement struct {
	p        *Proxy
	rules    Rules
	began    time.Time
	verdicts verdicts
	cut      []*flow
	busy     []*flow  // of those, which may still move something
	ended    []ending // requests on connections that stay
	log      tally
	live     []*request // scratch
}

// flow judges f, and what is on it.
func (r *rejudgement) flow(f *flow) {
	v := r.p.judge(&r.verdicts, f)
	if v.Allow {
		r.requests(f)
		return
	}
	r.stop(f, v)
}

// stop cuts f, and with it the requests on it.
func (r *rejudgement) stop(f *flow, v egress.Verdict) {
	first, idle := f.stop()
	if first { // else somebody has, or it has ended
		r.cut = append(r.cut, f)
		r.log.connection(cutting(r.rules, f, v))
	}
	if !idle {
		r.busy = append(r.busy, f)
	}
	// What was done for a request may go on without its connection.
	r.live, _ = f.live(r.live[:0])
	for _, q := range r.live {
		r.over(f, q, v)
	}
}

// cutting is what the log says of f when it is cut.
func cutting(rules Rules, f *flow, v egress.Verdict) audit.Decision {
	return audit.Decision{Phase: rules.Phase, Kind: audit.Cut, Verdict: audit.Deny, Host: f.host, Port: f.port, Protocol: "tcp",
		Rule: v.Rule, Source: v.Source, Why: v.Why}
}

// requests cancels the requests of f, which stays, that the rules do not allow.
func (r *rejudgement) requests(f *flow) {
	cut := false
	if r.live, cut = f.live(r.live[:0]); len(r.live) == 0 {
		return
	}
	to := r.verdicts.at(f.request(r.rules))
	for _, q := range r.live {
		v := to.DecideRequest(q.method, q.path)
		if names := q.proof.holds(); v.Allow && !r.p.granted(r.rules.Phase, names) {
			v = egress.Verdict{Why: notGranted(names)}
		}
		if v.Allow {
			continue
		}
		r.over(f, q, v)
		if cut {
			continue
		}
		c := q.cancel(&intercept.RefusedError{Why: v.Why})
		if c.Alone {
			r.stop(f, egress.Verdict{Rule: v.Rule, Source: v.Source, Why: "a request on it may not go on, and its answer ends with it"})
			return // that has looked at the rest
		}
		r.ended = append(r.ended, ending{f, c})
	}
}

// over says that q, a request on f, may not go on.
func (r *rejudgement) over(f *flow, q *request, v egress.Verdict) {
	f.mu.Lock()
	q.over = true
	f.mu.Unlock()
	q.proof.Revoke()
	d := cutting(r.rules, f, v)
	d.Protocol, d.Method, d.Path = "http", q.method, q.path
	r.log.request(d)
}

// conclude ends what was stopped.
func (r *rejudgement) conclude() {
	r.settle()
	// After the last cut, since a log may be slow, and before anyone learns of it.
	if len(r.log.lines) > 0 {
		r.p.Log(r.log.lines...)
	}
	r.p.drop(r.cut, r.ended)
}

// settle returns once nothing that was stopped moves a byte. What takes long for that
// on a connection that stays costs the connection.
func (r *rejudgement) settle() {
	soon := time.NewTimer(heedLeft(time.Since(r.began)))
	defer soon.Stop()
	for _, f := range outlive(r.ended, soon.C) {
		r.stop(f, egress.Verdict{Why: "a request on it may not go on, and its client or its host holds it up"})
	}
	if len(r.busy) == 0 {
		return
	}
	dials, late := time.NewTimer(heedDial), time.NewTimer(time.Second)
	defer dials.Stop()
	defer late.Stop()
	for _, f := range r.busy {
		if !f.undialled(dials.C) {
			break // it does not heed that it was cancelled, and is given to nobody
		}
	}
	for _, f := range r.busy {
		if !f.rest(late.C) {
			break // a system call that does not return; both sides are about to be closed
		}
	}
}

// heedLeft is how long requests are waited for that far into a change.
func heedLeft(into time.Duration) time.Duration { return max(heed-into, heedLeast) }

// A tally is lines of the log, of which those about connections to one destination are
// one. Its zero value has none.
type tally struct {
	lines []audit.Decision
	at    map[destination]int // where the line of each is
}

// A destination is what a connection that was cut led to, and why it was.
type destination struct {
	host, rule, source, why string
	port                    uint16
}

func (t *tally) connection(d audit.Decision) {
	to := destination{d.Host, d.Rule, d.Source, d.Why, d.Port}
	i, ok := t.at[to]
	if !ok {
		if t.at == nil {
			t.at = map[destination]int{}
		}
		i = len(t.lines)
		t.at[to] = i
		t.lines = append(t.lines, d)
	}
	t.lines[i].Count++
}

func (t *tally) request(d audit.Decision) {
	d.Count = 1
	t.lines = append(t.lines, d)
}

// verdicts is what rules say of destinations, each of which is asked for once, since
// there may be hundreds of connections to one.
type verdicts struct {
	rules Rules
	of    map[egress.Request]*egress.Destination
}

func (vs *verdicts) at(q egress.Request) *egress.Destination {
	d := vs.of[q]
	if d == nil {
		d = vs.rules.Policy.At(q)
		if vs.of == nil {
			vs.of = map[egress.Request]*egress.Destination{}
		}
		vs.of[q] = d
	}
	return d
}

// drop forgets flows that have been stopped, and sees to it that both ends of these
// and of requests that have been cancelled learn of it. That takes many times as long
// as to stop them, and wakes whoever carries them.
func (p *Proxy) drop(fs []*flow, es []ending) {
	if len(fs)+len(es) == 0 {
		return
	}
	tell := func() {
		for _, f := range fs {
			f.tell()
		}
		for _, e := range es {
			e.Tell()
		}
	}
	p.mu.Lock()
	for _, f := range fs {
		delete(p.flows, f)
	}
	served := p.served
	if !served {
		p.tells.Add(1)
		time.AfterFunc(afterwards, func() { defer p.tells.Done(); tell() })
	}
	p.mu.Unlock()
	if served {
		tell()
	}
}

// afterwards is how long the caller of [Proxy.Rejudge] has to go on before those learn of
// it who were cut. As they wake they take the processor, for milliseconds even from the
// thread that woke them.
const afterwards = time.Millisecond

// An ending is a request that was cancelled.
type ending struct {
	of *flow
	intercept.Cancelled
}

// outlive returns the flows of those of es that are not still when late comes. Those
// that were not at once are told, since others have to come to an end for them.
func outlive(es []ending, late <-chan time.Time) (of []*flow) {
	var busy []ending
	for _, e := range es {
		if e.Still != nil {
			busy = append(busy, e)
		}
	}
	for _, e := range busy {
		e.Tell()
	}
	for i, e := range busy {
		if await(e.Still, late) {
			continue
		}
		for _, e := range busy[i:] {
			select {
			case <-e.Still:
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

// judge says what rules think of f as far as it has got.
func (p *Proxy) judge(vs *verdicts, f *flow) egress.Verdict {
	rules := vs.rules
	req := f.request(rules)
	v := vs.at(req).Verdict
	if !v.Allow {
		return v
	}
	f.mu.Lock()
	ups, spliced := slices.Clone(f.ups), f.spliced
	f.mu.Unlock()
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
