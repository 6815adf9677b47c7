package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestRulesAreChangedForAllSandboxesOrOne(t *testing.T) {
	allow := func(phase, pattern string) sandbox.NetworkGrant {
		return sandbox.NetworkGrant{Phase: phase, Pattern: pattern, Allow: true}
	}
	for _, c := range []struct {
		args string
		did  string
		want sandbox.RuleChange
	}{
		{"policy allow a.example b.example:22", `change rules of ""`, sandbox.RuleChange{Add: []sandbox.NetworkGrant{allow("runtime", "a.example"), allow("runtime", "b.example:22")}}},
		{"policy allow --sandbox t --phase both a.example", `change rules of "t"`, sandbox.RuleChange{Add: []sandbox.NetworkGrant{allow("install", "a.example"), allow("runtime", "a.example")}}},
		{"policy deny a.example", `change rules of ""`, sandbox.RuleChange{Add: []sandbox.NetworkGrant{{Phase: "install", Pattern: "a.example"}, {Phase: "runtime", Pattern: "a.example"}}}},
		{"policy deny --phase runtime a.example", `change rules of ""`, sandbox.RuleChange{Add: []sandbox.NetworkGrant{{Phase: "runtime", Pattern: "a.example"}}}},
		{"policy rm --sandbox t a.example", `change rules of "t"`, sandbox.RuleChange{Remove: []sandbox.RuleMatch{{Pattern: "a.example"}}}},
		{"policy rm --phase install a.example", `change rules of ""`, sandbox.RuleChange{Remove: []sandbox.RuleMatch{{Pattern: "a.example", Phase: "install"}}}},
	} {
		var f fake
		if status, out, errs := f.command(strings.Fields(c.args)...); status != 0 || out != "" || errs != "" {
			t.Errorf("%s: status %d, %q, %q", c.args, status, out, errs)
		}
		if strings.Join(f.did, ",") != c.did || !reflect.DeepEqual(f.change, c.want) {
			t.Errorf("%s: %v, %+v", c.args, f.did, f.change)
		}
	}
}

func TestTheListEndsWithTheDefault(t *testing.T) {
	f := fake{rules: []sandbox.NetworkGrant{
		{Phase: "runtime", Pattern: "a.example", Allow: true, Source: "kit w:1", Scope: "kit"},
		{Phase: "runtime", Pattern: "b.example", Allow: true, Methods: []string{"GET", "HEAD"}, Paths: []string{"/x/**"}, Source: "operator (all sandboxes)", Scope: "global"},
		{Phase: "runtime", Pattern: "**", Source: "default", Scope: "default"}}}
	_, out, _ := f.command("policy", "ls", "t")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 || strings.Join(strings.Fields(lines[2]), " ") != "runtime allow b.example GET,HEAD /x/** operator (all sandboxes)" || strings.Join(strings.Fields(lines[3]), " ") != "runtime deny ** default" {
		t.Errorf("ls printed\n%s", out)
	}
	_, out, _ = f.command("policy", "ls", "--json")
	var back []sandbox.NetworkGrant
	if err := json.Unmarshal([]byte(out), &back); err != nil || !reflect.DeepEqual(back, f.rules) {
		t.Errorf("json: %v\n%s", err, out)
	}
	if strings.Join(f.did, ",") != `rules of "t",rules of ""` {
		t.Errorf("did %v", f.did)
	}
}

func TestCheckNamesTheRuleAndAnswersByItsStatus(t *testing.T) {
	f := fake{verdict: sandbox.PolicyVerdict{Phase: "runtime", Host: "a.example", Port: 443, Reason: "denied by *.example", Rule: "*.example", Source: "kit w:1"}}
	status, out, errs := f.command("policy", "check", "t", "a.example")
	if status != kiterr.StatusRefused || out != "refused runtime a.example:443: denied by *.example; rule *.example of kit w:1\n" || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	f.verdict.Allowed = true
	if status, out, _ = f.command("policy", "check", "--json", "t", "a.example"); status != 0 || !strings.Contains(out, `"allowed": true`) {
		t.Errorf("status %d, %s", status, out)
	}
	f.verdict.Credentials = []string{"one", "two"}
	if _, out, _ = f.command("policy", "check", "t", "a.example"); !strings.HasSuffix(out, "; rule *.example of kit w:1; requests over TLS may carry the credential one, two\n") {
		t.Errorf("%s", out)
	}
	for arg, want := range map[string]sandbox.PolicyQuery{
		"a.example":         {Phase: "runtime", Host: "a.example"},
		"a.example:22":      {Phase: "runtime", Host: "a.example", Port: 22},
		"2001:db8::1":       {Phase: "runtime", Host: "2001:db8::1"},
		"[2001:db8::1]":     {Phase: "runtime", Host: "2001:db8::1"},
		"[2001:db8::1]:443": {Phase: "runtime", Host: "2001:db8::1", Port: 443},
	} {
		if f.command("policy", "check", "t", arg); f.query != want {
			t.Errorf("%s asks for %+v", arg, f.query)
		}
	}
}

func TestTheFloorIsPassedOnAndItsRefusalHasAStatusOfItsOwn(t *testing.T) {
	f := fake{noSandbox: true, createErr: &sandbox.ConsentError{Sandbox: "t", Grants: []sandbox.NetworkGrant{{Phase: "runtime", Pattern: "a.example", Source: "kit w:1"}}}}
	status, _, errs := f.command("create", "--deny-all", "./k")
	if status != kiterr.StatusWidening || !strings.Contains(errs, "runtime a.example, asked for by kit w:1") || !strings.Contains(errs, "--approve") {
		t.Errorf("status %d, %s", status, errs)
	}
	if !f.options.DenyAll || f.options.Approve {
		t.Errorf("options %+v", f.options)
	}
	f = fake{}
	if f.command("run", "--deny-all", "--approve", "./k"); !f.options.DenyAll || !f.options.Approve {
		t.Errorf("options %+v", f.options)
	}
}

func TestRulesForTheSandboxItselfAreWarnedOf(t *testing.T) {
	for pattern, want := range map[string]bool{
		"localhost": true, "LOCALHOST:8080": true, "localhost.": true, "api.localhost": true, "127.0.0.1": true, "127.0.0.1:80": true, "127.0.0.0/8": true,
		"::1": true, "[::1]:80": true, "::ffff:127.0.0.1": true,
		"localhost.example": false, "192.0.2.1": false, "192.0.2.0/24": false, "**": false,
	} {
		var f fake
		status, out, errs := f.command("policy", "allow", pattern)
		if status != 0 || out != "" || len(f.change.Add) != 1 || want != (strings.Contains(errs, "host-port@1") && strings.Contains(errs, "--route")) || !want && errs != "" {
			t.Errorf("%s: status %d, %q", pattern, status, errs)
		}
	}
	var f fake
	if _, _, errs := f.command("policy", "deny", "localhost"); errs != "" {
		t.Errorf("a denial is warned of: %s", errs)
	}
}

func TestAPathInAPatternHasAnOptionOfItsOwn(t *testing.T) {
	for _, pattern := range []string{"api.example.com/v1", "api.example.com:443/v1", "a.example/"} {
		for _, verb := range []string{"allow", "deny"} {
			var f fake
			status, _, errs := f.command("policy", verb, pattern)
			if status != kiterr.StatusFailed || !strings.Contains(errs, "write the host alone; paths go with --path") || len(f.did) > 0 {
				t.Errorf("%s %s: status %d, %q, did %v", verb, pattern, status, errs, f.did)
			}
		}
	}
	for _, pattern := range []string{"192.0.2.0/24", "2001:db8::/32", "[2001:db8::/32]:443"} {
		var f fake
		if status, _, errs := f.command("policy", "allow", pattern); status != 0 {
			t.Errorf("%s: status %d, %q", pattern, status, errs)
		}
	}
}
