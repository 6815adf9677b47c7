package credential_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/capability"
	grammar "github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func ask(config string) capability.Contribution {
	return capability.Contribution{Kit: "k", Request: capability.Request{Type: grammar.Type, Config: []byte(config)}}
}

// host has a secret for svc and two, and nothing for others.
func host() *credential.Handler {
	return &credential.Handler{
		Stored: func(service, identity, sandbox string) (credential.Binding, error) {
			if identity != "repository k" || sandbox != "t" {
				return credential.Binding{}, fmt.Errorf("asked for %q in %q", identity, sandbox)
			}
			switch service {
			case "svc", "two":
				return credential.Binding{Form: credential.Secret}, nil
			case "tokens":
				return credential.Binding{Form: credential.Tokens, Expires: time.UnixMilli(1893456000123), Scopes: []string{"a", "b"}}, nil
			case "keyed":
				return credential.Binding{Form: credential.Tokens, Key: true}, nil
			case "broken":
				return credential.Binding{}, errors.New("the vault cannot be read")
			}
			return credential.Binding{}, nil
		},
		Domain: func(p string) error { _, err := egress.ParseMatcher(p); return err },
	}
}

func scene() *handler.Scene {
	return &handler.Scene{Name: "t", ID: "id-1", Identities: map[string]string{"k": "repository k"},
		Image: handler.Image{Identity: plan.Identity{UID: 1000, Home: "/home/agent"}}}
}

func planned(t *testing.T, configs ...string) plan.Plan {
	t.Helper()
	var p plan.Plan
	var cs []capability.Contribution
	for _, c := range configs {
		if err := host().Accept(t.Context(), scene(), ask(c)); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		cs = append(cs, ask(c))
	}
	if err := host().Plan(t.Context(), scene(), cs, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestHowASecretIsPresented(t *testing.T) {
	p := planned(t, `{"service":"svc","phase":["install","runtime"],"apiKey":{"name":"TOKEN","proxyManaged":true,"inject":[
		{"domain":"a.example","header":"x-api-key"},
		{"domain":"b.example"},
		{"domain":"c.example:8443","header":"authorization","format":"token %s"},
		{"domain":"*.d.example","scheme":"basic","username":"me"},
		{"domain":"e.example","scheme":"bearer"}]}}`)
	want := []plan.Injection{
		{Domain: "a.example", Header: "X-Api-Key", Format: "%s"},
		{Domain: "b.example", Header: "Authorization", Format: "Bearer %s"},
		{Domain: "c.example:8443", Header: "Authorization", Format: "token %s"},
		{Domain: "*.d.example", Header: "Authorization", Basic: true, Username: "me"},
		{Domain: "e.example", Header: "Authorization", Format: "Bearer %s"},
	}
	if len(p.Credentials) != 1 || !reflect.DeepEqual(p.Credentials[0].Inject, want) {
		t.Fatalf("%+v", p.Credentials)
	}
	c := p.Credentials[0]
	if c.Variable != "TOKEN" || !strings.HasPrefix(c.Sentinel, "kitbox-svc-") || len(c.Phases) != 2 || c.Identity != "repository k" {
		t.Errorf("%+v", c)
	}
}

func TestPhasesThatMergingTookApartBecomeOneAgain(t *testing.T) {
	p := planned(t, `{"service":"svc","phase":"runtime","apiKey":{"name":"A","proxyManaged":true,"inject":[{"domain":"a.example"}]}}`,
		`{"service":"svc","phase":"install","apiKey":{"name":"A","proxyManaged":true,"inject":[{"domain":"a.example"}]}}`,
		`{"service":"two","phase":"install","apiKey":{"inject":[{"domain":"a.example"}]}}`)
	if len(p.Credentials) != 2 || len(p.Credentials[0].Phases) != 2 || p.Credentials[1].Sentinel != "" || p.Credentials[1].Variable != "" {
		t.Errorf("%+v", p.Credentials)
	}
}

func TestTheVariableIsThereInItsPhases(t *testing.T) {
	p := planned(t, `{"service":"svc","phase":"install","apiKey":{"name":"A","proxyManaged":true}}`,
		`{"service":"two","phase":"runtime","apiKey":{"name":"B","proxyManaged":true}}`)
	p.Launch.Env = []string{"A=of the image", "B=of the image", "C=c"}
	a, b := p.Credentials[0].Sentinel, p.Credentials[1].Sentinel
	for phase, want := range map[plan.Phase][]string{
		plan.Install: {"A=" + a, "B=of the image", "C=c"},
		plan.Runtime: {"A=of the image", "B=" + b, "C=c"},
	} {
		if got := p.Environ(phase); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q", phase, got)
		}
	}
	if a == b || a == "" {
		t.Errorf("sentinels %q and %q", a, b)
	}
}

func TestRefusals(t *testing.T) {
	key := func(rest string) string { return `{"service":"svc","phase":"runtime","apiKey":{` + rest + `}}` }
	for config, want := range map[string]string{
		`{"service":"unknown","phase":"runtime","apiKey":{"name":"A","proxyManaged":true}}`: "'kitbox secret set unknown'",
		key(`"name":"A"`):                                                          "no secret enters a sandbox",
		key(`"inject":[{"domain":"*"}]`):                                           "named hosts only",
		key(`"inject":[{"domain":"192.0.2.1"}]`):                                   "named hosts only",
		key(`"inject":[{"domain":"a.example","scheme":"digest"}]`):                 "digest",
		key(`"inject":[{"domain":"a.example","header":"Host"}]`):                   "Host",
		key(`"inject":[{"domain":"a.example","header":"transfer-encoding"}]`):      "transfer-encoding",
		key(`"inject":[{"domain":"a.example","header":"a b"}]`):                    "a b",
		key(`"inject":[{"domain":"a.example","header":"A","format":"%s\n"}]`):      "format",
		key(`"inject":[{"domain":"a.example","scheme":"basic","username":"a:b"}]`): "colon",
	} {
		err := host().Accept(context.Background(), scene(), ask(config))
		var refused *capability.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, want) || refused.Kit != "k" {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
	err := host().Accept(context.Background(), scene(), ask(`{"service":"broken","phase":"runtime","apiKey":{"name":"A","proxyManaged":true}}`))
	if err == nil || errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a vault that cannot be read is %v, which is no refusal", err)
	}
	var p plan.Plan
	if err := host().Plan(context.Background(), scene(), []capability.Contribution{
		ask(`{"service":"svc","phase":"runtime","apiKey":{"name":"A","proxyManaged":true}}`),
		ask(`{"service":"two","phase":["install","runtime"],"apiKey":{"name":"A","proxyManaged":true}}`),
	}, &p); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "variable A") {
		t.Errorf("two in one variable: %v", err)
	}
	p = plan.Plan{Launch: plan.Launch{Owned: []string{"SANDBOX_ID"}}}
	if err := host().Plan(context.Background(), scene(), []capability.Contribution{
		ask(`{"service":"svc","phase":"runtime","apiKey":{"name":"SANDBOX_ID","proxyManaged":true}}`)}, &p); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a variable of the host's: %v", err)
	}
}
