// Package oversight is the operator's say over sandboxes: his rules beside those
// of the Kits, whether he consents to what a Kit asks, and what would be
// decided about a connection. It implements [sandbox.Overseer].
//
// His rules are not part of any plan, since they can change at any time. The
// books they are in are internal/boundary/rulebook, and the boundary of a
// sandbox is what enforces them.
package oversight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/rulebook"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Subject is a sandbox, as far as rules are concerned.
type Subject interface {
	// Plan is what was granted.
	Plan() (*plan.Plan, error)

	// Logins names the registry logins of p that requests to host and port
	// may be given.
	Logins(p *plan.Plan, host string, port uint16) ([]string, error)

	// Book is the file of the operator's rules for this sandbox alone.
	Book() string

	// Reload has who runs it read its rules again. Without one it is
	// [link.ErrNone].
	Reload(ctx context.Context) error
}

// Config is what an oversight is made of. All fields are required.
type Config struct {
	Book string // the file of the rules for every sandbox

	// Ready makes the home, before a rule is recorded in it.
	Ready func() error

	// Open finds the sandbox of a name, as [sandbox.Runtime.Open] does.
	Open func(name string) (Subject, error)

	// List names all sandboxes.
	List func() ([]string, error)

	// Told bounds telling the sandboxes of a change.
	Told time.Duration
}

// An Oversight is the operator's say over the sandboxes of one home. Its methods
// can be called concurrently.
type Oversight struct{ c Config }

// New returns an oversight.
func New(c Config) *Oversight { return &Oversight{c} }

var _ sandbox.Overseer = (*Oversight)(nil)

// Of returns all that the sandbox of p, whose own book is the file own, is judged
// by, as it is recorded now. global is the book for every sandbox.
func Of(p *plan.Plan, global, own string) ([]plan.EgressRule, error) {
	every, err := rulebook.Read(global, rulebook.Everywhere)
	if err != nil {
		return nil, err
	}
	mine, err := rulebook.Read(own, rulebook.Here)
	if err != nil {
		return nil, err
	}
	return slices.Concat(p.Egress.Rules, every, mine), nil
}

// Consent fails, under a floor, if a Kit is to be allowed what neither approve
// nor a rule in the operator's global book consents to.
func Consent(p *plan.Plan, global string, approve bool) error {
	if !p.Egress.DenyAll || approve {
		return nil
	}
	mine, err := rulebook.Read(global, rulebook.Everywhere)
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

// Offer is p as it is shown before it is made: with the operator's rules, which
// are not part of the plan since they can change at any time.
func Offer(p *plan.Plan, global string) (*sandbox.Plan, error) {
	shown, err := display.Plan(p)
	if err != nil {
		return nil, err
	}
	mine, err := rulebook.Read(global, rulebook.Everywhere)
	if err != nil {
		return nil, err
	}
	for _, r := range mine {
		shown.Network = append(shown.Network, display.Grant(r, sandbox.ScopeGlobal))
	}
	return shown, nil
}

// Rules implements [sandbox.Overseer].
func (o *Oversight) Rules(_ context.Context, name string) ([]sandbox.NetworkGrant, error) {
	rules, services, err := o.recorded(name)
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
func (o *Oversight) recorded(name string) ([]plan.EgressRule, []egress.Service, error) {
	if name == "" {
		rules, err := rulebook.Read(o.c.Book, rulebook.Everywhere)
		return rules, nil, err
	}
	b, err := o.c.Open(name)
	if err != nil {
		return nil, nil, err
	}
	p, err := b.Plan()
	if err != nil {
		return nil, nil, err
	}
	rules, err := Of(p, o.c.Book, b.Book())
	return rules, egress.ServicesOf(p), err
}

// ChangeRules implements [sandbox.Overseer].
func (o *Oversight) ChangeRules(ctx context.Context, name string, c sandbox.RuleChange) error {
	if err := o.c.Ready(); err != nil {
		return err
	}
	path, names := o.c.Book, []string{name}
	if name != "" {
		b, err := o.c.Open(name)
		if err != nil {
			return err
		}
		path = b.Book()
	}
	if err := rulebook.Change(ctx, path, func(rules []plan.EgressRule) ([]plan.EgressRule, error) { return edited(rules, c) }); err != nil {
		return err
	}
	if name == "" {
		// After the change is recorded: a sandbox that is made meanwhile
		// begins with it.
		var err error
		if names, err = o.c.List(); err != nil {
			return err
		}
	}
	return o.enforce(ctx, names)
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
	var faults []string
	for _, g := range c.Add {
		r := plan.EgressRule{Phase: plan.Phase(g.Phase), Pattern: g.Pattern, Allow: g.Allow, Methods: g.Methods, Paths: g.Paths}
		if err := egress.CheckRule(r); err == nil {
			rules = rulebook.Add(rules, r)
		} else if !slices.Contains(faults, err.Error()) { // a rule for each phase has the same
			faults = append(faults, err.Error())
		}
	}
	if len(faults) > 0 {
		return nil, &sandbox.RuleError{Faults: faults}
	}
	return rules, nil
}

// enforce makes every running sandbox among names read its rules. One that
// cannot be told keeps no other from it.
func (o *Oversight) enforce(ctx context.Context, names []string) error {
	bound, cancel := context.WithTimeout(ctx, o.c.Told)
	defer cancel()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			b, err := o.c.Open(name)
			if err != nil {
				return // removed since
			}
			err = b.Reload(bound)
			if err != nil && !errors.Is(err, link.ErrNone) {
				errs[i] = fmt.Errorf("sandbox %s: the rules are recorded and not in force there: %w; 'kitbox stop %s' cuts it off", name, err, name)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Check implements [sandbox.Overseer].
func (o *Oversight) Check(_ context.Context, name string, q sandbox.PolicyQuery) (sandbox.PolicyVerdict, error) {
	rules, services, err := o.recorded(name)
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
		out.Credentials, err = o.presentedAt(name, r)
	}
	return out, err
}

// presentedAt returns the services whose credentials requests to r may be given, and
// the registry logins.
func (o *Oversight) presentedAt(name string, r egress.Request) ([]string, error) {
	b, err := o.c.Open(name)
	if err != nil {
		return nil, err
	}
	p, err := b.Plan()
	if err != nil {
		return nil, err
	}
	host, err := egress.ParseHost(r.Host)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range p.Credentials {
		if !c.Granted(r.Phase) || slices.Contains(out, c.Service) {
			continue
		}
		for _, pattern := range display.Credential(c).Hosts {
			if m, err := egress.ParseMatcher(pattern); err == nil && m.Matches(host.Name, r.Port) {
				out = append(out, c.Service)
				break
			}
		}
	}
	logins, err := b.Logins(p, host.Name, r.Port)
	return append(out, logins...), err
}
