package credential_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func oauth(service, phase, rest string) string {
	return fmt.Sprintf(`{"service":%q,"phase":%s,"oauth":{"tokenEndpoint":{"host":"auth.example","path":"/token"},"resourceHosts":["api.example"]%s}}`, service, phase, rest)
}

const both = `["install","runtime"]`

func TestTokens(t *testing.T) {
	p := planned(t, oauth("tokens", both, ""))
	o := p.Credentials[0].OAuth
	if o == nil || o.TokenHost != "auth.example" || o.TokenPath != "/token" || !reflect.DeepEqual(o.Hosts, []string{"api.example"}) ||
		o.AccessField != "access_token" || o.RefreshField != "refresh_token" || o.ExpiresField != "expires_in" || o.Access == o.Refresh || o.Access == "" || o.Key != "" {
		t.Errorf("%+v", o)
	}
	p = planned(t, oauth("keyed", both, `,"sentinels":{"accessToken":"sk-proxy-managed"},"responseFields":{"accessToken":"tok","refreshToken":"tok","expiresIn":"ttl"}`))
	o = p.Credentials[0].OAuth
	if o.Access != "sk-proxy-managed" || o.Refresh == "" || o.Key == "" || o.AccessField != "tok" || o.RefreshField != "tok" || o.ExpiresField != "ttl" {
		t.Errorf("%+v", o)
	}
}

// TestWhatIsStoredDecidesHowItIsPresented has a Kit that takes a key or tokens.
func TestWhatIsStoredDecidesHowItIsPresented(t *testing.T) {
	config := func(service string) string {
		return `{"service":"` + service + `","phase":"runtime","apiKey":{"name":"KEY","proxyManaged":true,"inject":[{"domain":"a.example"}]},"oauth":{"resourceHosts":["a.example"]}}`
	}
	if c := planned(t, config("svc")).Credentials[0]; c.Variable != "KEY" || c.OAuth != nil {
		t.Errorf("with a key: %+v", c)
	}
	if c := planned(t, config("tokens")).Credentials[0]; c.Variable != "" || len(c.Inject) > 0 || c.OAuth == nil {
		t.Errorf("with tokens: %+v", c)
	}
	// A plain secret is a token that nobody refreshes.
	if c := planned(t, oauth("svc", `"runtime"`, "")).Credentials[0]; c.OAuth == nil {
		t.Errorf("a plain token: %+v", c)
	}
}

func structure(format, s string) string {
	return `,"sentinels":{"accessToken":"ACCESS-TOKEN","refreshToken":"REFRESH-TOKEN"},"credentialFile":{"path":"~/.agent/auth","format":"` + format + `","structure":` + s + `}`
}

const shape = `{"oauth":{"accessToken":"{{.AccessToken}}","bearer":"Bearer {{.AccessToken}}","refreshToken":"{{.RefreshToken}}","expiresAt":"{{.ExpiresAt}}",
	"until":"until {{.ExpiresAt}}","scopes":"{{.Scopes}}","scope":"{{.Scopes}}","joined":"s={{.Scopes}}","deep":{"n":1.50,"yes":true,"odd key \"x\"":"a\nb\u007f"}},
	"primaryApiKey":"{{.PrimaryApiKey}}","list":["x",{"k":"{{.RefreshToken}}"},[1,2],"{{.PrimaryApiKey}}"],"empty":{},"last":"kit"}`

func TestTheFileInJSON(t *testing.T) {
	p := planned(t, oauth("tokens", both, structure("json", shape)))
	if len(p.Files) != 1 {
		t.Fatalf("files %+v", p.Files)
	}
	f := p.Files[0]
	if f.Path != "/home/agent/.agent/auth" || f.Mode != 0o600 || !f.Overwrite || !f.In(plan.Install) || !f.In(plan.Runtime) {
		t.Errorf("%+v", f)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(f.Content), &got); err != nil {
		t.Fatalf("%v\n%s", err, f.Content)
	}
	want := map[string]any{"oauth": map[string]any{"accessToken": "ACCESS-TOKEN", "bearer": "Bearer ACCESS-TOKEN", "refreshToken": "REFRESH-TOKEN",
		"expiresAt": 1893456000123.0, "until": "until 1893456000123", "scopes": []any{"a", "b"}, "scope": []any{"a", "b"}, "joined": "s=a b",
		"deep": map[string]any{"n": 1.5, "yes": true, `odd key "x"`: "a\nb\x7f"}},
		"list": []any{"x", map[string]any{"k": "REFRESH-TOKEN"}, []any{1.0, 2.0}}, "empty": map[string]any{}, "last": "kit"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if !strings.Contains(f.Content, "1.50") {
		t.Errorf("a number changed its spelling:\n%s", f.Content)
	}
	with := planned(t, oauth("keyed", `"runtime"`, structure("json", `{"k":"{{.PrimaryApiKey}}"}`)))
	if !strings.Contains(with.Files[0].Content, with.Credentials[0].OAuth.Key) {
		t.Errorf("with a key:\n%s", with.Files[0].Content)
	}
}

func TestTheFileInTOML(t *testing.T) {
	p := planned(t, oauth("tokens", `"runtime"`, structure("toml", shape)))
	const want = `last = "kit"
list = ["x", {k = "REFRESH-TOKEN"}, [1, 2]]

[empty]

[oauth]
accessToken = "ACCESS-TOKEN"
bearer = "Bearer ACCESS-TOKEN"
expiresAt = 1893456000123
joined = "s=a b"
refreshToken = "REFRESH-TOKEN"
scope = ["a", "b"]
scopes = ["a", "b"]
until = "until 1893456000123"

[oauth.deep]
n = 1.50
"odd key \"x\"" = "a\u000Ab\u007F"
yes = true
`
	if got := p.Files[0].Content; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if p.Files[0].In(plan.Install) {
		t.Error("a file of the runtime phase is there while installing")
	}
}

func TestPassthroughNeedsConsent(t *testing.T) {
	s := scene()
	s.AllowPassthrough = true
	var p plan.Plan
	if err := host().Plan(t.Context(), s, []capability.Contribution{ask(oauth("tokens", `"runtime"`, `,"passthrough":true`))}, &p); err != nil || !p.Credentials[0].OAuth.Passthrough {
		t.Errorf("%+v, %v", p.Credentials, err)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	for config, want := range map[string]string{
		oauth("nothing", `"runtime"`, ""):                                                                         "'kitbox secret set nothing --oauth'",
		oauth("tokens", `"runtime"`, `,"passthrough":true`):                                                       "--allow-passthrough",
		oauth("tokens", `"runtime"`, `,"sentinels":{"accessToken":"short"}`):                                      "cannot stand for a token",
		oauth("tokens", `"runtime"`, `,"sentinels":{"accessToken":"with a blank"}`):                               "cannot stand for a token",
		oauth("tokens", `"runtime"`, `,"sentinels":{"accessToken":"the-same-one","refreshToken":"the-same-one"}`): "cannot stand for the access token and the refresh token",
		`{"service":"tokens","phase":"runtime","oauth":{"resourceHosts":["*"]}}`:                                  "named hosts only",
		`{"service":"tokens","phase":"runtime","oauth":{"tokenEndpoint":{"host":"10.0.0.1"}}}`:                    "named hosts only",
		oauth("tokens", `"runtime"`, structure("toml", `{"a":123456789012345678901234567890}`)):                   "too large",
	} {
		err := host().Accept(t.Context(), scene(), ask(config))
		var refused *capability.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

func TestTwoCredentialsCannotHaveOneFile(t *testing.T) {
	one := oauth("tokens", `"runtime"`, structure("json", `{"a":"{{.AccessToken}}"}`))
	two := oauth("keyed", `"runtime"`, structure("json", `{"b":"{{.AccessToken}}"}`))
	err := host().Plan(t.Context(), scene(), []capability.Contribution{ask(one), ask(two)}, new(plan.Plan))
	var refused *capability.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "/home/agent/.agent/auth") {
		t.Errorf("err = %v", err)
	}
}
