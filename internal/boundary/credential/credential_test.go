package credential_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// store is a Source; a service that is not in it has no secret.
type store map[string]string

func (s store) Tokens(ctx context.Context, c plan.Credential) (vault.Tokens, error) {
	v, err := s.Token(ctx, c)
	return vault.Tokens{Access: v}, err
}

func (s store) Refresh(ctx context.Context, c plan.Credential, _ func(secret.Value) (vault.Tokens, error)) (vault.Tokens, bool, error) {
	t, err := s.Tokens(ctx, c)
	return t, false, err
}

func (s store) Keep(context.Context, plan.Credential, vault.Tokens) error { return nil }

func (s store) Token(_ context.Context, c plan.Credential) (secret.Value, error) {
	text, ok := s[c.Service]
	if !ok {
		return secret.Value{}, fmt.Errorf("secret %s: %w", c.Service, kiterr.ErrNotFound)
	}
	if text == "broken" {
		return secret.Value{}, errors.New("its helper failed: the command ended with exit status 1")
	}
	return secret.New([]byte(text)), nil
}

const (
	runtime = plan.Runtime
	install = plan.Install
)

func presenter(t testing.TB, s store, cs ...plan.Credential) *credential.Presenter {
	t.Helper()
	p, err := credential.New(cs, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// present gives a request with header h what p has for it.
func present(t testing.TB, p *credential.Presenter, phase plan.Phase, host string, port uint16, h http.Header) (names []string, missing string) {
	t.Helper()
	var proof proxy.Proof
	p.Present(t.Context(), phase, host, port, intercept.Request{Method: "GET", Path: "/", Header: h, Proven: true}, &proof)
	return proof.Given()
}

func bearer(domain string) plan.Injection {
	return plan.Injection{Domain: domain, Header: "Authorization", Format: "Bearer %s"}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

var (
	github = plan.Credential{Service: "github", Phases: []plan.Phase{install, runtime}, Variable: "GH_TOKEN", Sentinel: "kitbox-github-1",
		Inject: []plan.Injection{bearer("api.github.example"), {Domain: "github.example", Header: "Authorization", Basic: true, Username: "x-access-token"}}}
	other = plan.Credential{Service: "other", Phases: []plan.Phase{runtime}, Variable: "OTHER", Sentinel: "kitbox-other-2",
		Inject: []plan.Injection{bearer("api.github.example")}}
	keyed = plan.Credential{Service: "keyed", Phases: []plan.Phase{runtime}, Variable: "KEY", Sentinel: "kitbox-keyed-3",
		Inject: []plan.Injection{{Domain: "*.keyed.example", Header: "X-Api-Key", Format: "%s"}}}
	silent = plan.Credential{Service: "silent", Phases: []plan.Phase{runtime},
		Inject: []plan.Injection{{Domain: "silent.example:8443", Header: "X-Token", Format: "t=%s;"}}}
)

var secrets = store{"github": "REAL1", "other": "REAL2", "keyed": "REAL3", "silent": "REAL4"}

func TestPresent(t *testing.T) {
	for _, c := range []struct {
		name   string
		of     []plan.Credential
		phase  plan.Phase
		host   string
		port   uint16
		header string
		value  string // empty: none is sent
		want   string
		names  string
	}{
		{"a sentinel in its header", []plan.Credential{github}, runtime, "api.github.example", 443, "Authorization", "Bearer kitbox-github-1", "Bearer REAL1", "github"},
		{"the other spelling of a scheme", []plan.Credential{github}, runtime, "api.github.example", 443, "Authorization", "token kitbox-github-1", "Bearer REAL1", "github"},
		{"a second phase", []plan.Credential{github}, install, "api.github.example", 443, "Authorization", "Bearer kitbox-github-1", "Bearer REAL1", "github"},
		{"another host", []plan.Credential{github}, runtime, "evil.example", 443, "Authorization", "Bearer kitbox-github-1", "Bearer kitbox-github-1", ""},
		{"below the host", []plan.Credential{github}, runtime, "x.api.github.example", 443, "Authorization", "Bearer kitbox-github-1", "Bearer kitbox-github-1", ""},
		{"another header", []plan.Credential{github}, runtime, "api.github.example", 443, "X-Other", "kitbox-github-1", "kitbox-github-1", "github"},
		{"a phase that is not its own", []plan.Credential{other}, install, "api.github.example", 443, "Authorization", "Bearer kitbox-other-2", "Bearer kitbox-other-2", ""},
		{"no header and one credential", []plan.Credential{github}, runtime, "api.github.example", 443, "Authorization", "", "Bearer REAL1", "github"},
		{"the client's own", []plan.Credential{github}, runtime, "api.github.example", 443, "Authorization", "Bearer mine", "Bearer mine", ""},

		{"basic without a header", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "", "Basic " + b64("x-access-token:REAL1"), "github"},
		{"basic with the sentinel as password", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "Basic " + b64("me:kitbox-github-1"), "Basic " + b64("x-access-token:REAL1"), "github"},
		{"basic with the sentinel as user", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "basic " + b64("kitbox-github-1:"), "Basic " + b64("x-access-token:REAL1"), "github"},
		{"basic where a bearer is declared", []plan.Credential{github}, runtime, "api.github.example", 443, "Authorization", "Basic " + b64("me:kitbox-github-1"), "Basic " + b64("me:REAL1"), "github"},
		{"a bearer where basic is declared", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "Bearer kitbox-github-1", "Basic " + b64("x-access-token:REAL1"), "github"},
		{"basic of the client's own", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "Basic " + b64("me:mine"), "Basic " + b64("me:mine"), ""},
		{"basic that is none", []plan.Credential{github}, runtime, "github.example", 443, "Authorization", "Basic !!!", "Basic !!!", ""},

		{"the first of two on one host", []plan.Credential{github, other}, runtime, "api.github.example", 443, "Authorization", "Bearer kitbox-github-1", "Bearer REAL1", "github"},
		{"the second of two on one host", []plan.Credential{github, other}, runtime, "api.github.example", 443, "Authorization", "Bearer kitbox-other-2", "Bearer REAL2", "other"},
		{"neither of two on one host", []plan.Credential{github, other}, runtime, "api.github.example", 443, "Authorization", "", "", ""},
		{"the only one of its phase", []plan.Credential{github, other}, install, "api.github.example", 443, "Authorization", "", "Bearer REAL1", "github"},

		{"another header and a wildcard", []plan.Credential{keyed}, runtime, "a.keyed.example", 443, "X-Api-Key", "kitbox-keyed-3", "REAL3", "keyed"},
		{"the wildcard's own domain", []plan.Credential{keyed}, runtime, "keyed.example", 443, "X-Api-Key", "kitbox-keyed-3", "kitbox-keyed-3", ""},
		{"inject only", []plan.Credential{silent}, runtime, "silent.example", 8443, "X-Token", "", "t=REAL4;", "silent"},
		{"inject only over what was sent", []plan.Credential{silent}, runtime, "silent.example", 8443, "X-Token", "dummy", "t=REAL4;", "silent"},
		{"inject only on another port", []plan.Credential{silent}, runtime, "silent.example", 443, "X-Token", "dummy", "dummy", ""},
		{"inject only in another phase", []plan.Credential{silent}, install, "silent.example", 8443, "X-Token", "dummy", "dummy", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"gzip"}}
			if c.value != "" {
				h.Set(c.header, c.value)
			}
			names, missing := present(t, presenter(t, secrets, c.of...), c.phase, c.host, c.port, h)
			if got := h.Get(c.header); got != c.want {
				t.Errorf("%s: %q, want %q", c.header, got, c.want)
			}
			if got := strings.Join(names, ","); got != c.names || missing != "" {
				t.Errorf("presented %q, missing %q", got, missing)
			}
			if h.Get("Accept") != "*/*" {
				t.Error("another header changed")
			}
			if asks := h.Get("Accept-Encoding") != ""; asks == (c.names != "") {
				t.Errorf("the request asks for a compressed answer: %v", asks)
			}
		})
	}
}

func TestWhatCannotBePresentedIsLeftAndSaid(t *testing.T) {
	for _, c := range []struct {
		secrets store
		want    string
	}{
		{store{}, "credential github is not presented: no secret is stored"},
		{store{"github": "broken"}, "credential github is not presented: its helper failed: the command ended with exit status 1"},
	} {
		p := presenter(t, c.secrets, github)
		h := http.Header{"Authorization": {"Bearer kitbox-github-1"}}
		names, missing := present(t, p, runtime, "api.github.example", 443, h)
		if len(names) > 0 || missing != c.want || h.Get("Authorization") != "Bearer kitbox-github-1" {
			t.Errorf("%v, %q, %v", names, missing, h)
		}
	}
	// One that is there does not wait for one that is not.
	h := http.Header{}
	names, missing := present(t, presenter(t, store{"silent": "REAL4"}, silent, plan.Credential{Service: "gone", Phases: silent.Phases,
		Inject: []plan.Injection{{Domain: "silent.example", Header: "X-Gone", Format: "%s"}}}), runtime, "silent.example", 8443, h)
	if fmt.Sprint(names) != "[silent]" || !strings.Contains(missing, "gone") || h.Get("X-Gone") != "" {
		t.Errorf("%v, %q, %v", names, missing, h)
	}
}

// TestSeveralHeadersOfOneName is a client that hopes that the second one passes.
func TestSeveralHeadersOfOneName(t *testing.T) {
	h := http.Header{"Authorization": {"Bearer mine", "Bearer kitbox-github-1"}}
	present(t, presenter(t, secrets, github), runtime, "api.github.example", 443, h)
	if !reflect.DeepEqual(h["Authorization"], []string{"Bearer REAL1"}) {
		t.Errorf("%q", h["Authorization"])
	}
}

func TestInterest(t *testing.T) {
	p := presenter(t, secrets, github, keyed, silent)
	for _, c := range []struct {
		phase plan.Phase
		host  string
		port  uint16
		want  proxy.Interest
	}{
		{runtime, "api.github.example", 443, proxy.All},
		{runtime, "api.github.example", 22, proxy.TLS},
		{install, "api.github.example", 443, proxy.All},
		{install, "a.keyed.example", 443, proxy.None},
		{runtime, "a.keyed.example", 443, proxy.All},
		{runtime, "silent.example", 8443, proxy.All},
		{runtime, "silent.example", 443, proxy.None},
		{runtime, "example.com", 443, proxy.None},
	} {
		if got := p.Interest(c.phase, c.host, c.port); got != c.want {
			t.Errorf("%s %s:%d: %v, want %v", c.phase, c.host, c.port, got, c.want)
		}
	}
	if !p.Grants(install, "github") || p.Grants(install, "keyed") || p.Grants(runtime, "unknown") {
		t.Error("Grants")
	}
	if _, err := credential.New([]plan.Credential{{Service: "s", Inject: []plan.Injection{bearer("*")}}}, secrets); err == nil {
		t.Error("a secret for every host was accepted")
	}
}

// FuzzPresent holds the promise for any header: the secret is in the declared
// header only, one that holds no sentinel is not changed when it was sent, and
// what comes out can be sent.
func FuzzPresent(f *testing.F) {
	for _, s := range []string{"Bearer kitbox-github-1", "Basic " + b64("a:kitbox-github-1"), "Basic " + b64("kitbox-github-1"), "basic  " + b64(":"), "", "kitbox-github-1kitbox-other-2", "Basic =", "Digest x"} {
		f.Add(s, "api.github.example")
		f.Add(s, "github.example")
		f.Add(s, "evil.example")
	}
	p := presenter(f, secrets, github, other)
	f.Fuzz(func(t *testing.T, value, host string) {
		h := http.Header{"Authorization": {value}, "X-Copy": {value}}
		names, _ := present(t, p, runtime, host, 443, h)
		if h.Get("X-Copy") != value || len(h) != 2 || len(h["Authorization"]) != 1 {
			t.Fatalf("%q", h)
		}
		got := h.Get("Authorization")
		if len(names) == 0 && got != value {
			t.Fatalf("%q became %q without a credential", value, got)
		}
		if len(names) > 0 && host != "api.github.example" && host != "github.example" {
			t.Fatalf("presented to %q", host)
		}
		if len(names) > 1 {
			t.Fatalf("one header, two credentials: %v", names)
		}
		if len(got) > 2*len(value)+200 {
			t.Fatalf("%d bytes became %d", len(value), len(got))
		}
	})
}

func BenchmarkPresent(b *testing.B) {
	p := presenter(b, secrets, github, other, keyed, silent)
	for b.Loop() {
		h := http.Header{"Authorization": {"Bearer kitbox-github-1"}}
		if names, _ := present(b, p, runtime, "api.github.example", 443, h); len(names) != 1 {
			b.Fatal(names)
		}
	}
}
