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
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

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

	// Log is told of every decision, of those that were made together at once. Required.
	Log func(...audit.Decision)

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
	pipes      pipes

	rejudging sync.Mutex // held by a Rejudge

	mu     sync.Mutex
	flows  map[*flow]struct{} // guarded by mu
	served bool               // guarded by mu; a Serve is about to return
	tells  sync.WaitGroup     // mu is held to add to it, and served is false
}

// Serve carries what ln accepts until ctx is done or ln is closed. It then
// resets its connections and returns nil once all have ended.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	defer p.over()
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

// over waits for what no flow does.
func (p *Proxy) over() {
	p.mu.Lock()
	p.served = true
	p.mu.Unlock()
	p.tells.Wait()
	p.pipes.close()
}

// start judges nothing itself, so that a slow log never delays an accept.
func (p *Proxy) start(ctx context.Context, wg *sync.WaitGroup, client *net.TCPConn) {
	to := client.LocalAddr().(*net.TCPAddr).AddrPort()
	to = netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{port: to.Port(), host: to.Addr().String(), v6: to.Addr().Is6(), client: client, cancel: cancel, ended: make(chan struct{})}
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

// heed is how long after a change of the rules has begun to be carried out requests that
// may not go on may take to fall still, all of them together, but for heedLeast of it.
// Then their connections are cut: a client that takes no byte of an answer could else
// hold one for as long as it likes.
const (
	heed      = 3 * time.Millisecond
	heedLeast = 500 * time.Microsecond // however long it took to get there
)

// heedDial is the same of dials that were cancelled. They wait for no client.
const heedDial = 50 * time.Millisecond

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
	p.Intercept(ctx, p.session(f))
}

func (p *Proxy) maxInspected() int64 {
	if p.MaxInspected > 0 {
		return int64(p.MaxInspected)
	}
	return 256
}

// maxDrain is how long a side that reads slowly may take to read what came
// before a reset.
const maxDrain = 5 * time.Second
