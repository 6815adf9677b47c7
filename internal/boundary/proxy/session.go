package proxy

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// session is f for package intercept, which asks here before it does anything.
func (p *Proxy) session(f *flow) *intercept.Session {
	s := &intercept.Session{
		Client: f.side(f.client), Host: f.host, Port: f.port,
		Dial:    func(ctx context.Context) (net.Conn, error) { return p.dialInspected(ctx, f, nil) },
		Forward: p.forward(f),
		Begin: func(ctx context.Context, r intercept.Request, cancel intercept.Cancel) (egress.Verdict, intercept.Turn) {
			return p.begin(ctx, f, r, cancel)
		},
		Refuse: func(protocol, method, path, why string) {
			p.Log(audit.Decision{Phase: p.Rules().Phase, Kind: kindOf(method), Verdict: audit.Deny, Host: f.host, Port: f.port,
				Protocol: protocol, Method: method, Path: path, Why: why})
		},
	}
	return s
}

func kindOf(method string) audit.Kind {
	if method == "" {
		return audit.Connect
	}
	return audit.Request
}

// dialInspected is dial under the rules of now: a session outlives those that it
// began under.
func (p *Proxy) dialInspected(ctx context.Context, f *flow, plain *intercept.Forward) (net.Conn, error) {
	rules := p.Rules()
	v := rules.Policy.Decide(f.request(rules))
	if !v.Allow {
		return nil, &intercept.RefusedError{Why: v.Why}
	}
	u, err := p.dial(ctx, f, rules, audit.Decision{Phase: rules.Phase, Kind: audit.Connect, Host: f.host, Port: f.port,
		Protocol: "tcp", Rule: v.Rule, Source: v.Source, Why: v.Why}, plain)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return nil, &intercept.RefusedError{Why: refused.text}
	case err != nil:
		return nil, err
	}
	return f.side(u), nil
}

// begin judges a request of f and, if it is allowed, lets a change of the rules
// end it. What is allowed gets the proof that is presented to its host.
func (p *Proxy) begin(ctx context.Context, f *flow, q intercept.Request, cancel intercept.Cancel) (egress.Verdict, intercept.Turn) {
	r := &request{method: q.Method, path: q.Path, cancel: cancel}
	r.proof = NewProof(func(name string) bool { return p.Presenter.Grants(p.Rules().Phase, name) })
	// As with flows: a change either finds the request or is seen by it.
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	t := intercept.Turn{End: func() {
		f.mu.Lock()
		if i := slices.Index(f.requests, r); i >= 0 { // else it has been told already
			f.requests = slices.Delete(f.requests, i, i+1)
		}
		f.mu.Unlock()
	}}
	rules := p.Rules()
	v := rules.Policy.DecideRequest(f.request(rules), q.Method, q.Path)
	d := audit.Decision{Phase: rules.Phase, Kind: audit.Request, Verdict: audit.Allow, Host: f.host, Port: f.port, Protocol: "http",
		Method: q.Method, Path: q.Path, Rule: v.Rule, Source: v.Source, Why: v.Why}
	later := false
	if v.Allow && q.Header != nil {
		v, later = p.present(ctx, f, r, rules, q, v, &d, &t)
	}
	if !v.Allow {
		d.Verdict = audit.Deny
		t.End()
		t = intercept.Turn{}
	}
	if !later {
		p.Log(d)
	}
	return v, t
}
