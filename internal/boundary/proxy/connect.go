package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// dial makes another side of f, which rules allow, and logs what became of it as
// d. plain, if not nil, is whom to connect to if it is reached through a proxy.
// After an error f may have been cut.
func (p *Proxy) dial(ctx context.Context, f *flow, rules Rules, d audit.Decision, plain *intercept.Forward) (*upstream, error) {
	dialCtx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	if !f.dials() {
		return nil, net.ErrClosed
	}
	up, r, err := p.connect(dialCtx, rules, f.request(rules), f.named, plain)
	f.dialled()
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
		if v := p.judge(&verdicts{rules: now}, f); !v.Allow {
			r := rejudgement{p: p, rules: now, began: time.Now()}
			r.stop(f, v)
			r.conclude()
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
