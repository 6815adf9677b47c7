package oversight

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A stopped sandbox has a plan and a directory, and no keeper in it.
type stopped struct {
	plan *plan.Plan
	dir  string
}

func (s stopped) Plan() (*plan.Plan, error) { return s.plan, nil }
func (s stopped) Logins(p *plan.Plan, host string, _ uint16) (names []string, err error) {
	for _, a := range p.DockerAuth {
		if a.Registry == host {
			names = append(names, "docker-auth "+a.Registry)
		}
	}
	return names, nil
}
func (s stopped) Book() string { return filepath.Join(s.dir, "rules.json") }
func (s stopped) Reload(ctx context.Context) error {
	return link.Client{Dir: s.dir}.Reload(ctx)
}

func over(t *testing.T, p *plan.Plan) *Oversight {
	dir := t.TempDir()
	return New(Config{Book: filepath.Join(dir, "policy.json"), Ready: func() error { return nil }, Told: time.Second,
		List: func() ([]string, error) { return []string{"s"}, nil },
		Open: func(name string) (Subject, error) {
			if name != "s" {
				return nil, fmt.Errorf("sandbox %s: %w", name, kiterr.ErrNotFound)
			}
			return stopped{p, dir}, nil
		}})
}

func TestTheOperatorsRulesStandBesideThoseOfKits(t *testing.T) {
	p := &plan.Plan{Name: "s"}
	p.Egress.Rules = []plan.EgressRule{{Phase: plan.Runtime, Pattern: "api.example", Allow: true, Source: "kit w"}}
	o := over(t, p)
	ctx := t.Context()
	ask := func(host string) bool {
		t.Helper()
		v, err := o.Check(ctx, "s", sandbox.PolicyQuery{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		return v.Allowed
	}
	if !ask("api.example") || ask("own.example") {
		t.Error("what the Kit says is not what holds")
	}
	own := sandbox.NetworkGrant{Phase: "runtime", Pattern: "own.example", Allow: true}
	if err := o.ChangeRules(ctx, "s", sandbox.RuleChange{Add: []sandbox.NetworkGrant{own}}); err != nil {
		t.Fatal(err)
	}
	if err := o.ChangeRules(ctx, "", sandbox.RuleChange{Add: []sandbox.NetworkGrant{{Phase: "runtime", Pattern: "api.example"}}}); err != nil {
		t.Fatal(err)
	}
	if ask("api.example") || !ask("own.example") {
		t.Error("what the operator says does not hold")
	}
	rules, err := o.Rules(ctx, "s")
	if err != nil || len(rules) != 5 || rules[0].Scope != sandbox.ScopeKit || rules[1].Scope != sandbox.ScopeGlobal || rules[2].Scope != sandbox.ScopeSandbox {
		t.Errorf("%+v, %v", rules, err)
	}
	err = o.ChangeRules(ctx, "s", sandbox.RuleChange{Remove: []sandbox.RuleMatch{{Pattern: "api.example"}}})
	if !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("removing what is a Kit's: %v", err)
	}
	if _, err := o.Rules(ctx, "other"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
}

func TestUnderAFloorAKitNeedsConsent(t *testing.T) {
	p := &plan.Plan{Name: "s"}
	p.Egress.DenyAll = true
	p.Egress.Rules = []plan.EgressRule{{Phase: plan.Runtime, Pattern: "api.example", Allow: true}, {Phase: plan.Runtime, Pattern: "bad.example"}}
	o := over(t, p)
	var lacking *sandbox.ConsentError
	if err := Consent(p, o.c.Book, false); !errors.As(err, &lacking) || len(lacking.Grants) != 1 || lacking.Grants[0].Pattern != "api.example" {
		t.Fatalf("nobody consented: %v", err)
	}
	if err := Consent(p, o.c.Book, true); err != nil || len(p.Egress.Rules) != 2 {
		t.Errorf("approved: %v, %v", err, p.Egress.Rules)
	}
	if err := o.ChangeRules(t.Context(), "", sandbox.RuleChange{Add: []sandbox.NetworkGrant{{Phase: "runtime", Pattern: "*.example", Allow: true}, {Phase: "runtime", Pattern: "api.example", Allow: true}}}); err != nil {
		t.Fatal(err)
	}
	// His rule is what allows it then, and nothing of the Kit's.
	if err := Consent(p, o.c.Book, false); err != nil || len(p.Egress.Rules) != 1 || p.Egress.Rules[0].Allow {
		t.Errorf("%v, %v", err, p.Egress.Rules)
	}
}

func TestRulesThatCannotBeUnderstoodAreNamedEachOnce(t *testing.T) {
	o := over(t, &plan.Plan{Name: "s"})
	bad := func(phase, pattern string) sandbox.NetworkGrant {
		return sandbox.NetworkGrant{Phase: phase, Pattern: pattern, Allow: true}
	}
	good := bad("runtime", "good.example")
	err := o.ChangeRules(t.Context(), "", sandbox.RuleChange{Add: []sandbox.NetworkGrant{good, bad("install", "x:0"), bad("runtime", "x:0"),
		{Phase: "runtime", Pattern: "y.example", Allow: true, Methods: []string{"a b"}}}})
	var r *sandbox.RuleError
	if !errors.As(err, &r) || len(r.Faults) != 2 || !strings.HasPrefix(r.Faults[0], `pattern "x:0": `) || !errors.Is(err, kiterr.ErrRefused) {
		t.Fatalf("%v", err)
	}
	rules, err := o.Rules(t.Context(), "")
	if err != nil || slices.ContainsFunc(rules, func(g sandbox.NetworkGrant) bool { return g.Pattern == good.Pattern }) {
		t.Errorf("something was recorded: %v, %v", rules, err)
	}
	// What is no rule for another reason is a refusal, and not of a pattern's.
	if err := o.ChangeRules(t.Context(), "", sandbox.RuleChange{Add: []sandbox.NetworkGrant{bad("later", "x.example")}}); !errors.Is(err, kiterr.ErrRefused) || errors.As(err, &r) {
		t.Errorf("%v", err)
	}
}

func TestCheckNamesCredentialsAndLogins(t *testing.T) {
	p := &plan.Plan{Name: "s", DockerAuth: []plan.DockerAuth{{Registry: "registry.example"}},
		Credentials: []plan.Credential{{Service: "api", Phases: []plan.Phase{plan.Runtime}, Inject: []plan.Injection{{Domain: "registry.example", Header: "X-Key"}}}}}
	p.Egress.Rules = []plan.EgressRule{{Phase: plan.Runtime, Pattern: "*.example", Allow: true}}
	o := over(t, p)
	for host, want := range map[string][]string{"registry.example": {"api", "docker-auth registry.example"}, "other.example": nil} {
		v, err := o.Check(t.Context(), "s", sandbox.PolicyQuery{Host: host})
		if err != nil || !slices.Equal(v.Credentials, want) {
			t.Errorf("%s: %q, %v, want %q", host, v.Credentials, err, want)
		}
	}
}
