// Package proxy carries the TCP connections of one sandbox to where policy
// lets them go. It is transparent: it is handed listeners on which connections
// to every address arrive, and the local address of a connection is what the
// sandbox asked for. A synthetic address stands for the name it was given out
// for; the real lookup, the check of every answer and the connect are one step
// on the host.
//
// Bytes are spliced unseen, but for one look: if the client begins with a TLS
// ClientHello, there must be a server name in it, the one that was asked for. Where
// only particular requests are allowed, package intercept carries the connection
// instead.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/dns"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Rules are what is in force at one moment. The zero value lets nothing out.
type Rules struct {
	Phase  plan.Phase
	Policy *egress.Policy
	Routes Routes
}

// A Proxy carries the connections of one sandbox. Set its fields before the
// first call and leave them alone afterwards; its methods can then be called
// concurrently.
type Proxy struct {
	// Rules returns what is in force. After a change, call [Proxy.Rejudge].
	// Required.
	Rules func() Rules

	// Names says which name a synthetic address stands for. Required.
	Names *dns.Table

	// Log is told of every decision. Required.
	Log func(audit.Decision)

	// Failing says why decisions cannot be logged now. While it does, nothing
	// that could carry a proof passes: nobody would learn what it was used for.
	// Nil: they always can.
	Failing func() error

	// Lookup resolves a name on the host. Nil asks the host's resolver.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

	// Dial connects on the host. Nil dials TCP.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

	// Upstream says through which proxy of the host's network host and port
	// are reached. Nil: all are reached directly.
	Upstream func(host string, port uint16) Way

	// Service connects to a service of a policy. Nil refuses all of them.
	Service func(ctx context.Context, s egress.Service) (net.Conn, error)

	// Intercept serves a connection that must be looked into, until its end.
	// Nil refuses such connections.
	Intercept func(context.Context, *intercept.Session)

	// Presenter puts proof into requests. Nil puts in none.
	Presenter Presenter

	// Own reports whether an address is the host's. Nil asks its interfaces.
	Own func(netip.Addr) bool

	// MaxFlows is how many connections are carried at a time; more are
	// reset. A flow takes up to six descriptors. Zero means 2048.
	MaxFlows int

	// MaxInspected is how many of them are looked into at a time; more are
	// reset. Each can make the process hold some megabytes of bodies that one
	// side sends and the other does not take. Zero means 256.
	MaxInspected int

	// DialTimeout bounds lookup and connect together. Zero means 30 seconds.
	DialTimeout time.Duration

	// HelloTimeout bounds a ClientHello from its first byte to its last.
	// Zero means 15 seconds.
	HelloTimeout time.Duration

	// Idle ends a connection on which no byte moved for so long. Zero means
	// two hours: databases and shells idle, and a dead peer is found by
	// keep-alive long before.
	Idle time.Duration

	own        ownAddrs
	unresolved names // that only proxies of the host's network resolve
	inspected  atomic.Int64

	mu    sync.Mutex
	flows map[*flow]struct{} // guarded by mu
}

// A flow is one connection from the sandbox.
type flow struct {
	host   string // the name, or the address in its one spelling
	named  bool   // host is a name
	v6     bool   // the client uses IPv6
	port   uint16
	client *net.TCPConn
	cancel context.CancelFunc // ends lookup and dialling
	ended  chan struct{}      // closed when it is cut, or has ended in order
	still  chan struct{}      // closed when the relay moves no byte any more
	done   chan struct{}      // closed when nothing of the flow is left

	gate gate // of what is looked into

	mu       sync.Mutex
	spliced  bool                  // guarded by mu; it is carried unseen
	relayed  bool                  // guarded by mu; and its bytes are being moved
	looked   bool                  // guarded by mu; it is looked into, through gates
	ups      []*upstream           // guarded by mu; more than one only if it is looked into
	requests map[*request]struct{} // guarded by mu; being carried
	cut      bool                  // guarded by mu; nothing may be attached any more
	later    <-chan struct{}       // guarded by mu; what a relay that was stopped waits for
	closed   bool                  // guarded by mu; both sides have been reset or closed
}

// An upstream is the other side of a flow.
type upstream struct {
	net.Conn
	f *flow
	route
}

// A route is where a connection leads.
type route struct {
	to     netip.AddrPort // what was connected to, if it has an address
	routed bool           // to is not what policy is about
	via    string         // the proxy of the host's network that it goes through
	behind []netip.Addr   // what a name resolves to that the proxy resolves again
	unseen bool           // it does not resolve here
}

// Close implements [net.Conn].
func (u *upstream) Close() error {
	u.f.mu.Lock()
	u.f.ups = slices.DeleteFunc(u.f.ups, func(o *upstream) bool { return o == u })
	u.f.mu.Unlock()
	return u.Conn.Close()
}

// A request is an HTTP request that is being carried.
type request struct {
	method, path string
	proof        *Proof
	cancel       func(error) (still <-chan struct{})
	over         bool // it was cancelled, though it may not have ended yet; guarded by flow.mu
}

// Serve carries what ln accepts until ctx is done or ln is closed. It then
// resets its connections and returns nil once all have ended.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.reap(ctx) })
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return nil
			}
			select { // out of descriptors: the next accept would fail at once too
			case <-ctx.Done():
				return nil
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		client, ok := c.(*net.TCPConn)
		if !ok {
			c.Close()
			return fmt.Errorf("proxy: a listener of %T is not transparent TCP", c)
		}
		p.start(ctx, &wg, client)
	}
}

// start judges nothing itself, so that a slow log never delays an accept.
func (p *Proxy) start(ctx context.Context, wg *sync.WaitGroup, client *net.TCPConn) {
	to := client.LocalAddr().(*net.TCPAddr).AddrPort()
	to = netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{port: to.Port(), host: to.Addr().String(), v6: to.Addr().Is6(), client: client, cancel: cancel, ended: make(chan struct{}), still: make(chan struct{}), done: make(chan struct{})}
	if name, ok := p.Names.Name(to.Addr()); ok {
		f.host, f.named = name, true
	}
	max := p.MaxFlows
	if max <= 0 {
		max = 2048
	}
	// The flow is registered before the rules are read: a change that comes
	// between the two either finds the flow or is seen by it.
	p.mu.Lock()
	full := len(p.flows) >= max
	if !full {
		if p.flows == nil {
			p.flows = map[*flow]struct{}{}
		}
		p.flows[f] = struct{}{}
	}
	p.mu.Unlock()
	if full {
		cancel()
		reset(client)
		rules := p.Rules()
		p.Log(audit.Decision{Phase: rules.Phase, Kind: audit.Connect, Verdict: audit.Deny, Host: "*", Protocol: "tcp",
			Why: fmt.Sprintf("the sandbox has %d connections open, the most it may have", max)})
		return
	}
	wg.Go(func() {
		defer close(f.done)
		defer f.settle()
		defer func() {
			p.mu.Lock()
			delete(p.flows, f)
			p.mu.Unlock()
		}()
		defer cancel()
		stop := context.AfterFunc(ctx, func() { f.end() })
		defer stop()
		p.carry(ctx, f, to)
	})
}

// Flows returns how many connections are carried now.
func (p *Proxy) Flows() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flows)
}

// heed is how long requests that may not go on may take to fall still, all of them
// together. Then their connections are cut: a client that takes no byte of an answer
// could else hold one for as long as it likes.
const heed = 3 * time.Millisecond

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
	// First no byte, then what tells both ends: that takes many times as long.
	later := make(chan struct{})
	tell := sync.OnceFunc(func() { close(later) })
	defer tell()
	for _, f := range flows {
		if v := p.judge(rules, f); !v.Allow && f.stop(later) {
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
		if f.stop(later) {
			cut, why = append(cut, f), append(why, egress.Verdict{Why: "a request on it may not go on, and its client or its host holds it up"})
		}
	}
	for _, f := range cut {
		if !f.rest(late.C) {
			break // a system call that does not return; both sides are about to be closed
		}
	}
	p.mu.Lock()
	for _, f := range cut {
		delete(p.flows, f)
	}
	p.mu.Unlock()
	tell()
	for _, f := range cut {
		f.tell()
	}
	// After the last cut: a log may be slow.
	for i, v := range why {
		p.logCut(rules, cut[i], v)
	}
	for _, d := range lines {
		p.Log(d)
	}
	return len(cut)
}

// An ending is a request that was cancelled.
type ending struct {
	of    *flow
	still <-chan struct{} // closed when it moves no byte any more
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
			ended = append(ended, ending{f, r.cancel(&intercept.RefusedError{Why: v.Why})})
		}
		lines = append(lines, audit.Decision{Phase: rules.Phase, Kind: audit.Cut, Verdict: audit.Deny, Host: f.host, Port: f.port, Protocol: "http",
			Method: r.method, Path: r.path, Rule: v.Rule, Source: v.Source, Why: v.Why})
	}
	return ended, lines
}

// request is f as a question about policy.
func (f *flow) request(rules Rules) egress.Request {
	return egress.Request{Phase: rules.Phase, Host: f.host, Port: f.port, Protocol: egress.TCP, V6: f.v6}
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

// end resets both sides and ends what is under way. It can be called at any
// time and more than once; only the call that cut f returns true.
func (f *flow) end() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.mark()
	if !f.closed {
		f.closed = true
		f.cancel() // after the mark: what runs when ctx is done comes here too
		reset(f.client)
		for _, u := range f.ups {
			reset(u.Conn)
		}
	}
	return first
}

// mark cuts f and reports whether it had not been; f.mu is held.
func (f *flow) mark() bool {
	if f.cut {
		return false
	}
	f.cut = true
	f.gate.shut.Store(true)
	close(f.ended)
	return true
}

// stop is end, except that what is relayed or looked into is only kept from moving
// another byte: the goroutine of a relay resets both sides once later is closed, and
// who looks into a flow, or the end of its context, does.
func (f *flow) stop(later <-chan struct{}) bool {
	f.mu.Lock()
	if f.looked {
		defer f.mu.Unlock()
		return f.mark()
	}
	if !f.relayed {
		f.mu.Unlock()
		return f.end()
	}
	defer f.mu.Unlock()
	if !f.mark() {
		return false
	}
	f.later = later
	past := time.Unix(1, 0)
	_ = f.client.SetDeadline(past) // fails when it is closed, which is as good
	for _, u := range f.ups {
		u.Conn.SetDeadline(past)
	}
	return true
}

// tell resets both sides of f, which has been stopped, if it is looked into. It takes
// little: another goroutine makes the system calls.
func (f *flow) tell() {
	f.mu.Lock()
	looked := f.looked
	f.mu.Unlock()
	if looked {
		f.cancel()
	}
}

// rest waits until f, which has been stopped, moves no byte any more; not longer than
// until late comes, and then it reports false.
func (f *flow) rest(late <-chan time.Time) bool {
	f.mu.Lock()
	relayed, looked := f.relayed, f.looked
	f.mu.Unlock()
	switch {
	case relayed:
		return await(f.still, late)
	case !looked || f.gate.idle():
		return true // where there is neither, both sides are closed already
	}
	past := time.Unix(1, 0)
	f.mu.Lock()
	if !f.closed {
		_ = f.client.SetWriteDeadline(past)
		for _, u := range f.ups {
			u.Conn.SetWriteDeadline(past)
		}
	}
	f.mu.Unlock()
	for !f.gate.idle() {
		select {
		case <-late:
			return false
		case <-time.After(50 * time.Microsecond):
		}
	}
	return true
}

// until bounds reads from the client, unless f has been stopped.
func (f *flow) until(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.cut {
		_ = f.client.SetReadDeadline(t)
	}
}

// settle says that f moves no byte any more.
func (f *flow) settle() {
	select {
	case <-f.still:
	default:
		close(f.still)
	}
}

// attach makes up another side of f, unless f has been cut meanwhile.
func (f *flow) attach(up net.Conn, r route) *upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		reset(up)
		return nil
	}
	u := &upstream{up, f, r}
	f.ups = append(f.ups, u)
	return u
}

// reset closes c with a RST, so that the other end learns that this was not an
// ordinary end.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// carry takes f from its first packet to its last.
func (p *Proxy) carry(ctx context.Context, f *flow, to netip.AddrPort) {
	defer f.end()
	rules := p.Rules()
	req := f.request(rules)
	d := audit.Decision{Phase: rules.Phase, Kind: audit.Connect, Host: f.host, Port: to.Port(), Protocol: "tcp"}

	v := rules.Policy.Decide(req)
	if !f.named && dns.Synthetic(to.Addr()) {
		v = egress.Verdict{Why: "an address of the boundary that stands for no name; ask for the name again"}
	}
	if v.Allow && (v.Inspect || p.shows(f, rules)) {
		if p.Intercept != nil {
			p.inspect(ctx, f, d)
			return
		}
		v = egress.Verdict{Rule: v.Rule, Source: v.Source, Why: "the requests there have to be looked at, and this boundary cannot look into connections"}
	}
	if v.Allow && p.forwards(f) && p.inspected.Load() < p.maxInspected() {
		p.inspect(ctx, f, d)
		return
	}
	f.mu.Lock()
	f.spliced = true
	f.mu.Unlock()
	d.Rule, d.Source, d.Why = v.Rule, v.Source, v.Why
	if !v.Allow {
		d.Verdict = audit.Deny
		p.Log(d)
		return
	}

	up, err := p.dial(ctx, f, rules, d, nil)
	if err != nil {
		return
	}
	p.relay(f, up.Conn, d, v.Service == nil)
}

// inspect has f looked into, unless that is done with too many already.
func (p *Proxy) inspect(ctx context.Context, f *flow, d audit.Decision) {
	max := p.maxInspected()
	defer p.inspected.Add(-1)
	if p.inspected.Add(1) > max {
		d.Verdict, d.Host, d.Port = audit.Deny, "*", 0
		d.Why = fmt.Sprintf("%d connections of the sandbox are looked into, the most that may be", max)
		p.Log(d)
		return
	}
	f.mu.Lock()
	f.looked = true
	f.mu.Unlock()
	p.Intercept(ctx, p.session(f))
}

func (p *Proxy) maxInspected() int64 {
	if p.MaxInspected > 0 {
		return int64(p.MaxInspected)
	}
	return 256
}

// dial makes another side of f, which rules allow, and logs what became of it as
// d. plain, if not nil, is whom to connect to if it is reached through a proxy.
// After an error f may have been cut.
func (p *Proxy) dial(ctx context.Context, f *flow, rules Rules, d audit.Decision, plain *intercept.Forward) (*upstream, error) {
	dialCtx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	up, r, err := p.connect(dialCtx, rules, f.request(rules), f.named, plain)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err // cut, which has been logged, or the end of the boundary
		}
		d.Verdict, d.Why = audit.Failed, err.Error()
		var refused *refusal
		if errors.As(err, &refused) {
			d.Verdict, d.Rule, d.Source = audit.Deny, refused.v.Rule, refused.v.Source
		}
		p.Log(d)
		return nil, err
	}
	u := f.attach(up, r)
	if u == nil {
		return nil, net.ErrClosed
	}
	d.Verdict = audit.Allow
	if r.to.IsValid() {
		d.Dialled = r.to.String()
	}
	if r.via != "" {
		d.Why += "; through the proxy " + r.via
	}
	if r.unseen {
		d.Why += ", which alone resolves the name: its addresses are not judged"
	}
	p.Log(d)
	// The rules may have changed while the address was being dialled, when
	// there was none yet to judge.
	if now := p.Rules(); now.Policy != rules.Policy || now.Phase != rules.Phase {
		if v := p.judge(now, f); !v.Allow {
			if f.end() {
				p.logCut(now, f, v)
			}
			return nil, &refusal{v.Why, v}
		}
	}
	return u, nil
}

// A refusal is a verdict on the addresses behind an allowed name.
type refusal struct {
	text string
	v    egress.Verdict
}

func (r *refusal) Error() string { return r.text }

// connect finds the address behind an allowed request and dials it. Every
// answer of the lookup is judged; only those that pass are dialled. A name that is
// reached through a proxy of the host's network is resolved there again, so there
// every answer has to pass.
func (p *Proxy) connect(ctx context.Context, rules Rules, req egress.Request, named bool, plain *intercept.Forward) (up net.Conn, r route, err error) {
	dial := p.Dial
	if dial == nil {
		dial = hostDial
	}
	if v := rules.Policy.Decide(req); v.Service != nil {
		if p.Service == nil {
			return nil, r, &refusal{"this boundary has no services", v}
		}
		if up, err = p.Service(ctx, *v.Service); err == nil {
			r.to = remote(up)
		}
		r.routed = true
		return up, r, err
	}
	if to, ok := rules.Routes.to(req.Host, req.Port); ok && named {
		up, err = dial(ctx, to)
		return up, route{to: to, routed: true}, err
	}
	name, through := p.upstream(req, plain)
	if name != "" && named {
		r = route{routed: true, via: name}
		if r.behind, err = p.behind(ctx, rules, req, name); err != nil {
			return nil, r, err
		}
		r.unseen = len(r.behind) == 0
		if up, err = through(ctx); err == nil {
			r.to = remote(up)
		}
		return up, r, err
	}
	var addrs []netip.Addr
	if named {
		if addrs, err = p.lookup(ctx, req.Host); err != nil {
			return nil, r, err
		}
	} else {
		a, err := netip.ParseAddr(req.Host)
		if err != nil {
			return nil, r, err
		}
		addrs = []netip.Addr{a}
	}
	var good []netip.AddrPort
	var why error
	for i, a := range interleave(addrs) {
		if i == maxAddrs {
			break
		}
		a = a.Unmap()
		if err := p.judgeAddr(rules, req, named, a); err == nil {
			good = append(good, netip.AddrPortFrom(a, req.Port))
		} else if why == nil {
			why = err
		}
	}
	if len(good) == 0 {
		if why == nil {
			why = fmt.Errorf("%s has no address", req.Host)
		}
		return nil, r, why
	}
	if name != "" {
		up, err = through(ctx)
		return up, route{to: good[0], via: name}, err
	}
	up, r.to, err = race(ctx, good, dial)
	return up, r, err
}

// judgeAddr says why a must not be connected to for req.
func (p *Proxy) judgeAddr(rules Rules, req egress.Request, named bool, a netip.Addr) error {
	v := rules.Policy.DecideAddr(req, a, p.isOwn(a))
	if v.Allow {
		return nil
	}
	text := v.Why
	if named {
		text = fmt.Sprintf("%s resolves to %s: %s", req.Host, a, v.Why)
	}
	return &refusal{text, v}
}

// remote is the other end of c, if it has an address.
func remote(c net.Conn) (to netip.AddrPort) {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		to = a.AddrPort()
	}
	return to
}

// relay moves bytes both ways until both ends are done or one breaks. The
// server's bytes flow from the start: many protocols begin with the server.
// look says that the server name of a TLS client must be the name of the flow.
func (p *Proxy) relay(f *flow, up net.Conn, d audit.Decision, look bool) {
	f.mu.Lock()
	f.relayed = !f.cut
	cut := f.cut
	f.mu.Unlock()
	if cut {
		return
	}
	down := make(chan struct{})
	go func() {
		defer close(down)
		pump(f, f.client, up)
	}()
	if !f.named || !look || p.opening(f, up, d) {
		pump(f, up, f.client)
	} else {
		f.end()
	}
	<-down
	f.settle()
	f.mu.Lock()
	later := f.later
	if !f.cut {
		// Both directions have ended in order: the kernel delivers what is
		// left.
		f.mark()
		f.closed = true
		f.client.Close()
		up.Close()
	}
	f.mu.Unlock()
	if later != nil {
		<-later
	}
}

// pump copies src to dst. The end of src is passed on as half a close; if
// either breaks, both are reset, so that a truncated stream never looks whole.
func pump(f *flow, dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if err == nil {
		if h, ok := dst.(interface{ CloseWrite() error }); ok {
			err = h.CloseWrite()
		}
	}
	if err == nil || errors.Is(err, unix.ENOTCONN) {
		return
	}
	select {
	case <-f.ended: // stopped, or ended already
	default:
		f.drain(dst)
		f.end()
	}
}

// maxDrain is how long a side that reads slowly may take to read what came
// before a reset.
const maxDrain = 5 * time.Second

// drain waits until the kernel has delivered what was written to c. A reset
// discards the rest, and what src sent before it broke was sent: without the
// boundary it would have arrived. A flow that is cut does not wait.
func (f *flow) drain(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	for deadline := time.Now().Add(maxDrain); time.Now().Before(deadline); {
		left := 0
		err := raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || left == 0 {
			return
		}
		select {
		case <-f.ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// opening passes on the first bytes of the client and reports whether the rest
// may follow. If they are a ClientHello, its server name is looked at first.
func (p *Proxy) opening(f *flow, up net.Conn, d audit.Decision) bool {
	r := &recorder{Conn: f.client}
	for {
		yes, more := looksTLS(r.read)
		if !yes || !more {
			break
		}
		if len(r.read) > 0 {
			f.until(time.Now().Add(p.helloTimeout()))
		}
		if err := r.more(); err != nil {
			if !errors.Is(err, io.EOF) {
				return false
			}
			break // the client says no more; what it said is passed on
		}
	}
	if yes, more := looksTLS(r.read); yes && !more {
		f.until(time.Now().Add(p.helloTimeout()))
		sni, err := r.serverName()
		why := ""
		switch {
		case err != nil:
			why = fmt.Sprintf("unreadable ClientHello: %v", err)
		case sni == "":
			// Whatever else the server has at its address could be meant.
			why = "the TLS client names no server (SNI)"
		case !strings.EqualFold(sni, f.host):
			why = fmt.Sprintf("TLS server name %q is not the name that was asked for", sni)
		}
		if why != "" {
			d.Verdict, d.Protocol, d.Dialled, d.Why = audit.Deny, "tls", "", why
			p.Log(d)
			return false
		}
	}
	f.until(time.Time{})
	if len(r.read) == 0 {
		return true
	}
	_, err := up.Write(r.read)
	return err == nil
}

// reap ends connections on which nothing moved for the idle time. The kernel
// knows when that was, so carrying a byte costs no clock.
func (p *Proxy) reap(ctx context.Context) {
	idle := p.Idle
	if idle <= 0 {
		idle = 2 * time.Hour
	}
	tick := time.NewTicker(max(idle/8, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		var old []*flow
		for f := range p.flows {
			if quiet(f.client) > idle {
				old = append(old, f)
			}
		}
		p.mu.Unlock()
		for _, f := range old {
			f.end()
		}
	}
}

// quiet returns for how long c has neither sent nor received a byte.
func quiet(c *net.TCPConn) (d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			d = time.Duration(min(info.Last_data_sent, info.Last_data_recv)) * time.Millisecond
		}
	})
	return d
}

func (p *Proxy) isOwn(a netip.Addr) bool {
	if p.Own != nil {
		return p.Own(a)
	}
	return p.own.has(a)
}

func (p *Proxy) dialTimeout() time.Duration {
	if p.DialTimeout > 0 {
		return p.DialTimeout
	}
	return 30 * time.Second
}

func (p *Proxy) helloTimeout() time.Duration {
	if p.HelloTimeout > 0 {
		return p.HelloTimeout
	}
	return 15 * time.Second
}
