package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/rulebook"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// globalRules is the book of the rules for every sandbox.
func (e *Engine) globalRules() string { return filepath.Join(e.c.Home, "policy.json") }

// rules is everything that p's sandbox is judged by, as it is recorded now.
func (b *box) rules(p *plan.Plan) ([]plan.EgressRule, error) {
	global, err := rulebook.Read(b.e.globalRules(), rulebook.Everywhere)
	if err != nil {
		return nil, err
	}
	own, err := rulebook.Read(b.sb.Path(rulesFile), rulebook.Here)
	if err != nil {
		return nil, err
	}
	return slices.Concat(p.Egress.Rules, global, own), nil
}

// consent fails, under a floor, if a Kit is to be allowed what neither approve
// nor a rule of the operator consents to.
func (e *Engine) consent(p *plan.Plan, approve bool) error {
	if !p.Egress.DenyAll || approve {
		return nil
	}
	mine, err := rulebook.Read(e.globalRules(), rulebook.Everywhere)
	if err != nil {
		return err
	}
	lacking := &sandbox.ConsentError{Sandbox: p.Name}
	for _, r := range p.Egress.Rules {
		if r.Allow && !slices.ContainsFunc(mine, func(m plan.EgressRule) bool {
			return m.Allow && m.Phase == r.Phase && !m.Bounded() && egress.Covers(m.Pattern, r.Pattern) || rulebook.Same(m, r)
		}) {
			lacking.Grants = append(lacking.Grants, display.Grant(r, sandbox.ScopeKit))
		}
	}
	for _, s := range egress.ServicesOf(p) {
		lacking.Grants = append(lacking.Grants, display.Service(s)[:1]...)
	}
	if len(lacking.Grants) > 0 {
		return lacking
	}
	// What is left to allow anything are the operator's rules alone: if he
	// takes one back, nothing of a Kit's stands behind it.
	p.Egress.Rules = slices.DeleteFunc(p.Egress.Rules, func(r plan.EgressRule) bool { return r.Allow })
	return nil
}

// offer is p as it is shown before it is made: with the operator's rules, which
// are not part of the plan since they can change at any time.
func (e *Engine) offer(p *plan.Plan) (*sandbox.Plan, error) {
	shown, err := display.Plan(p)
	if err != nil {
		return nil, err
	}
	mine, err := rulebook.Read(e.globalRules(), rulebook.Everywhere)
	if err != nil {
		return nil, err
	}
	for _, r := range mine {
		shown.Network = append(shown.Network, display.Grant(r, sandbox.ScopeGlobal))
	}
	return shown, nil
}

// Rules implements [sandbox.Overseer].
func (e *Engine) Rules(_ context.Context, name string) ([]sandbox.NetworkGrant, error) {
	rules, services, err := e.recorded(name)
	if err != nil {
		return nil, err
	}
	grants := []sandbox.NetworkGrant{}
	for _, r := range rules {
		grants = append(grants, display.Grant(r, sandbox.ScopeKit))
	}
	for _, s := range services {
		grants = append(grants, display.Service(s)...)
	}
	for _, phase := range []plan.Phase{plan.Install, plan.Runtime} {
		grants = append(grants, sandbox.NetworkGrant{Phase: string(phase), Pattern: "**", Source: sandbox.ScopeDefault, Scope: sandbox.ScopeDefault})
	}
	return grants, nil
}

// recorded is what a sandbox is judged by, or the global rules alone.
func (e *Engine) recorded(name string) ([]plan.EgressRule, []egress.Service, error) {
	if name == "" {
		rules, err := rulebook.Read(e.globalRules(), rulebook.Everywhere)
		return rules, nil, err
	}
	b, err := e.openName(name)
	if err != nil {
		return nil, nil, err
	}
	p, err := b.plan()
	if err != nil {
		return nil, nil, err
	}
	rules, err := b.rules(p)
	return rules, egress.ServicesOf(p), err
}

// ChangeRules implements [sandbox.Overseer].
func (e *Engine) ChangeRules(ctx context.Context, name string, c sandbox.RuleChange) error {
	if err := e.ready(); err != nil {
		return err
	}
	path, names := e.globalRules(), []string{name}
	if name != "" {
		b, err := e.openName(name)
		if err != nil {
			return err
		}
		path = b.sb.Path(rulesFile)
	}
	if err := rulebook.Change(ctx, path, func(rules []plan.EgressRule) ([]plan.EgressRule, error) { return edited(rules, c) }); err != nil {
		return err
	}
	if name == "" {
		// After the change is recorded: a sandbox that is made meanwhile
		// begins with it.
		var err error
		if names, err = e.state.List(); err != nil {
			return err
		}
	}
	return e.enforce(ctx, names)
}

// edited is rules with c done to them.
func edited(rules []plan.EgressRule, c sandbox.RuleChange) ([]plan.EgressRule, error) {
	for _, m := range c.Remove {
		before := len(rules)
		rules = slices.DeleteFunc(rules, func(r plan.EgressRule) bool {
			return strings.EqualFold(r.Pattern, m.Pattern) && (m.Phase == "" || string(r.Phase) == m.Phase)
		})
		if len(rules) == before {
			return nil, fmt.Errorf("rule for %s: %w among the operator's here; 'kitbox policy ls' shows all", m.Pattern, kiterr.ErrNotFound)
		}
	}
	for _, g := range c.Add {
		rules = rulebook.Add(rules, plan.EgressRule{Phase: plan.Phase(g.Phase), Pattern: g.Pattern, Allow: g.Allow, Methods: g.Methods, Paths: g.Paths})
	}
	return rules, nil
}

// enforce makes every running sandbox among names read its rules. One that
// cannot be told keeps no other from it.
func (e *Engine) enforce(ctx context.Context, names []string) error {
	bound, cancel := context.WithTimeout(ctx, keeperBound)
	defer cancel()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			sb, err := e.state.Sandbox(name)
			if err != nil {
				return // removed since
			}
			err = link.Client{Dir: sb.Dir()}.Reload(bound)
			if err != nil && !errors.Is(err, link.ErrNone) {
				errs[i] = fmt.Errorf("sandbox %s: the rules are recorded and not in force there: %w; 'kitbox stop %s' cuts it off", name, err, name)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Check implements [sandbox.Overseer].
func (e *Engine) Check(_ context.Context, name string, q sandbox.PolicyQuery) (sandbox.PolicyVerdict, error) {
	rules, services, err := e.recorded(name)
	if err != nil {
		return sandbox.PolicyVerdict{}, err
	}
	policy, err := egress.New(rules)
	if err != nil {
		return sandbox.PolicyVerdict{}, err
	}
	policy = policy.WithServices(services)
	phase, port := plan.Phase(cmp.Or(q.Phase, string(plan.Runtime))), q.Port
	if port == 0 {
		port = 443
	}
	out := sandbox.PolicyVerdict{Phase: string(phase), Host: q.Host, Port: port}
	r := egress.Request{Phase: phase, Host: q.Host, Port: port, Protocol: egress.TCP}
	if q.Transport == "udp" {
		r.Protocol = egress.UDP
	}
	v := policy.Decide(r)
	if q.Method != "" || q.Path != "" {
		out.Method, out.Path = cmp.Or(q.Method, "GET"), cmp.Or(q.Path, "/")
		v = policy.DecideRequest(r, out.Method, out.Path)
	}
	out.Allowed, out.Inspected, out.Rule, out.Source, out.Reason = v.Allow, v.Inspect, v.Rule, v.Source, v.Why
	if name != "" && v.Allow {
		out.Credentials, err = e.presentedAt(name, r)
	}
	return out, err
}
