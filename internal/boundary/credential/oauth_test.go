package credential_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	accessIs  = "ACCESS-SENTINEL"
	refreshIs = "REFRESH-SENTINEL"
)

// agent is a credential with tokens.
func agent() plan.Credential {
	return plan.Credential{Service: "svc", Identity: "repository k", Phases: []plan.Phase{runtime}, OAuth: &plan.OAuth{
		TokenHost: "auth.example", TokenPath: "/oauth/token", Hosts: []string{"api.example"}, Access: accessIs, Refresh: refreshIs, Key: "KEY-SENTINEL",
		AccessField: "access_token", RefreshField: "refresh_token", ExpiresField: "expires_in"}}
}

// A lab is a presenter over a vault, and a token endpoint that answers as it is
// told to.
type lab struct {
	t     *testing.T
	vault *vault.Vault
	p     *credential.Presenter
	hits  atomic.Int32

	mu   sync.Mutex
	body string      // of the last request
	head http.Header // of the last request
	to   string

	answer func(w http.ResponseWriter, q url.Values)
}

var global = vault.Scope{Kind: vault.Global}

func newLab(t *testing.T, c plan.Credential) *lab {
	t.Helper()
	l := &lab{t: t, vault: vault.Open(t.TempDir())}
	var err error
	if l.p, err = credential.New([]plan.Credential{c}, &credential.Wallet{Vault: l.vault, Sandbox: "t"}); err != nil {
		t.Fatal(err)
	}
	l.set(vault.Tokens{Access: secret.New([]byte("real-access-0")), Refresh: secret.New([]byte("real-refresh-0")), Key: secret.New([]byte("real-key"))})
	l.answer = func(w http.ResponseWriter, q url.Values) {
		fmt.Fprintf(w, `{"access_token":"real-access-%d","refresh_token":"real-refresh-%[1]d","expires_in":3600,"scope":"a b","token_type":"bearer",
			"id_token":"real-id","account":{"uuid":"u-1","session_key":"real-session"},"note":"has real-access-%[1]d in it"}`, l.hits.Load())
	}
	return l
}

func (l *lab) set(tokens vault.Tokens) {
	l.t.Helper()
	if err := l.vault.Put(l.t.Context(), vault.Entry{Service: "svc", Scope: global, Source: "test"}, vault.Secret{Tokens: &tokens}); err != nil {
		l.t.Fatal(err)
	}
}

// send is the host of the session.
func (l *lab) send(r *http.Request) (*http.Response, error) {
	l.hits.Add(1)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.body, l.head, l.to = string(b), r.Header.Clone(), r.URL.RequestURI()
	l.mu.Unlock()
	q, _ := url.ParseQuery(string(b))
	if strings.HasPrefix(string(b), "{") {
		var doc map[string]string
		_ = json.Unmarshal(b, &doc)
		q = url.Values{}
		for k, v := range doc {
			q.Set(k, v)
		}
	}
	w := httptest.NewRecorder()
	l.answer(w, q)
	return w.Result(), nil
}

// ask sends a request to the token endpoint and returns its answer.
func (l *lab) ask(r *http.Request) (status int, text string, doc map[string]any) {
	l.t.Helper()
	w := httptest.NewRecorder()
	if !l.p.Take(runtime, "auth.example", 443, w, r, l.send, new(proxy.Proof)) {
		l.t.Fatalf("%s %s was not taken", r.Method, r.RequestURI)
	}
	text = w.Body.String()
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		l.t.Errorf("the answer is %q", text)
	}
	if strings.Contains(text, "real-") {
		l.t.Errorf("a secret is in the answer: %s", text)
	}
	return w.Code, text, doc
}

func form(pairs ...string) *http.Request {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, "/oauth/token?x=1", strings.NewReader(v.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

func document(text string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/oauth/token", strings.NewReader(text))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	return r
}

// shows returns what the API gets for a header that the agent sends.
func (l *lab) shows(header, value string) string {
	l.t.Helper()
	h := http.Header{header: {value}}
	present(l.t, l.p, runtime, "api.example", 443, h)
	return h.Get(header)
}

func TestARefreshIsMadeHere(t *testing.T) {
	for name, request := range map[string]func() *http.Request{
		"form": func() *http.Request {
			r := form("grant_type", "refresh_token", "refresh_token", refreshIs, "client_id", "c-1")
			r.Header.Set("Accept-Encoding", "gzip")
			r.Header.Set("Cookie", "x=y")
			return r
		},
		"json": func() *http.Request {
			return document(`{"grant_type":"refresh_token","refresh_token":"` + refreshIs + `","client_id":"c-1"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, agent())
			if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-access-0" {
				t.Errorf("before: the API gets %q", got)
			}
			status, _, doc := l.ask(request())
			if status != http.StatusOK || doc["access_token"] != accessIs || doc["refresh_token"] != refreshIs || doc["token_type"] != "bearer" || doc["scope"] != "a b" {
				t.Errorf("%d %v", status, doc)
			}
			if n, ok := doc["expires_in"].(float64); !ok || n < 3590 || n > 3600 {
				t.Errorf("expires_in is %v", doc["expires_in"])
			}
			if a, _ := doc["account"].(map[string]any); a["uuid"] != "u-1" || len(a) != 1 {
				t.Errorf("account is %v", doc["account"])
			}
			for _, gone := range []string{"id_token", "note"} {
				if _, there := doc[gone]; there {
					t.Errorf("the answer has %s", gone)
				}
			}
			if !strings.Contains(l.body, "real-refresh-0") || !strings.Contains(l.body, "c-1") || strings.Contains(l.body, refreshIs) {
				t.Errorf("the server was asked %s", l.body)
			}
			if l.head.Get("Accept-Encoding") != "" || l.head.Get("Cookie") != "" {
				t.Errorf("with %v", l.head)
			}
			if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-access-1" {
				t.Errorf("after: the API gets %q", got)
			}
			e, s, err := l.vault.Get("svc", global)
			if err != nil || string(s.Tokens.Refresh.Expose()) != "real-refresh-1" || s.Tokens.Params["client_id"] != "c-1" || string(s.Tokens.Key.Expose()) != "real-key" || e.Source != "test" {
				t.Errorf("kept %+v, %v, %v", e, s.Tokens, err)
			}
			// A second one at once gets the same, without asking.
			if _, _, doc := l.ask(request()); doc["access_token"] != accessIs || doc["refresh_token"] != refreshIs || l.hits.Load() != 1 {
				t.Errorf("again: %v after %d requests", doc, l.hits.Load())
			}
		})
	}
}

func TestTokensAreShownByTheirSentinelsOnly(t *testing.T) {
	l := newLab(t, agent())
	for _, c := range []struct{ header, value, want string }{
		{"Authorization", "Bearer " + accessIs, "Bearer real-access-0"},
		{"X-Api-Key", "KEY-SENTINEL", "real-key"},
		{"Authorization", "Bearer " + refreshIs, "Bearer " + refreshIs},
		{"X-Api-Key", accessIs, accessIs},
		{"Authorization", "Bearer mine", "Bearer mine"},
		{"Authorization", "", ""},
	} {
		if got := l.shows(c.header, c.value); got != c.want {
			t.Errorf("%s: %q becomes %q, want %q", c.header, c.value, got, c.want)
		}
	}
	h := http.Header{}
	if names, _ := present(t, l.p, runtime, "api.example", 443, h); len(names) > 0 || len(h) > 0 {
		t.Errorf("a request that shows nothing was given %v", names)
	}
	for port, want := range map[uint16]proxy.Interest{443: proxy.All, 8443: proxy.All} {
		if got := l.p.Interest(runtime, "auth.example", port); got != want {
			t.Errorf("interest in the endpoint at %d: %v", port, got)
		}
	}
	if l.p.Interest(install, "auth.example", 443) != proxy.None {
		t.Error("an interest outside its phase")
	}
	if l.p.Take(install, "auth.example", 443, httptest.NewRecorder(), form(), l.send, new(proxy.Proof)) {
		t.Error("taken outside its phase")
	}
}

func TestALoginInsideIsForThatSandbox(t *testing.T) {
	l := newLab(t, agent())
	status, _, doc := l.ask(form("grant_type", "authorization_code", "code", "c-9", "client_id", "c-2"))
	if status != http.StatusOK || doc["access_token"] != accessIs || doc["refresh_token"] != refreshIs {
		t.Errorf("%d %v", status, doc)
	}
	if !strings.Contains(l.body, "code=c-9") || l.to != "/oauth/token?x=1" {
		t.Errorf("the server was asked %s at %s", l.body, l.to)
	}
	if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-access-1" {
		t.Errorf("the API gets %q", got)
	}
	if _, s, err := l.vault.Get("svc", global); err != nil || string(s.Tokens.Access.Expose()) != "real-access-0" {
		t.Errorf("the tokens of all sandboxes changed: %v", err)
	}
	if e, _, err := l.vault.Get("svc", vault.Scope{Kind: vault.Sandbox, Name: "t"}); err != nil || !strings.Contains(e.Source, "login") {
		t.Errorf("%+v %v", e, err)
	}
}

func TestFieldsAreNamedAsTheKitSays(t *testing.T) {
	c := agent()
	c.OAuth.AccessField, c.OAuth.RefreshField, c.OAuth.ExpiresField = "tok", "tok", "ttl"
	l := newLab(t, c)
	l.answer = func(w http.ResponseWriter, q url.Values) {
		if q.Get("refresh_token") != "real-refresh-0" {
			t.Errorf("asked with %v", q)
		}
		io.WriteString(w, `{"tok":"real-both","ttl":"90"}`)
	}
	_, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs))
	if doc["tok"] != accessIs || doc["ttl"] == nil || doc["access_token"] != nil {
		t.Errorf("%v", doc)
	}
	_, s, err := l.vault.Get("svc", global)
	if err != nil || string(s.Tokens.Access.Expose()) != "real-both" || string(s.Tokens.Refresh.Expose()) != "real-both" || time.Until(s.Tokens.Expires) > 91*time.Second {
		t.Errorf("%v %v", s.Tokens, err)
	}
}

func TestExchangesThatGiveNothing(t *testing.T) {
	refresh := func() *http.Request { return form("grant_type", "refresh_token", "refresh_token", refreshIs) }
	says := func(status int, header, text string) func(http.ResponseWriter, url.Values) {
		return func(w http.ResponseWriter, _ url.Values) {
			if header != "" {
				w.Header().Set("Content-Encoding", header)
			}
			w.WriteHeader(status)
			io.WriteString(w, text)
		}
	}
	broken := refresh()
	broken.Header.Set("Content-Encoding", "gzip")
	text := refresh()
	text.Header.Set("Content-Type", "text/plain")
	get := httptest.NewRequest(http.MethodGet, "/oauth/token?grant_type=refresh_token", nil)
	for name, c := range map[string]struct {
		r      *http.Request
		answer func(http.ResponseWriter, url.Values)
		status int
		code   string
		hits   int32
	}{
		"another refresh token": {form("grant_type", "refresh_token", "refresh_token", "mine"), nil, 400, "invalid_grant", 0},
		"none":                  {form("grant_type", "refresh_token"), nil, 400, "invalid_grant", 0},
		"two": {func() *http.Request {
			r := refresh()
			r.Body = io.NopCloser(strings.NewReader("grant_type=refresh_token&refresh_token=" + refreshIs + "&refresh_token=x"))
			return r
		}(), nil, 400, "invalid_request", 0},
		"GET":                      {get, nil, 405, "invalid_request", 0},
		"an encoding":              {broken, nil, 400, "invalid_request", 0},
		"another type":             {text, nil, 415, "invalid_request", 0},
		"JSON that is none":        {document("{"), nil, 400, "invalid_request", 0},
		"JSON null":                {document("null"), nil, 400, "invalid_request", 0},
		"too long":                 {document(strings.Repeat(" ", 1<<20) + "{}"), nil, 413, "invalid_request", 0},
		"refused by the server":    {refresh(), says(400, "", `{"error":"invalid_grant","error_description":"revoked"}`), 400, "invalid_grant", 1},
		"refused with an echo":     {refresh(), says(401, "", `{"error":"x","error_description":"no such token real-refresh-0"}`), 401, "x", 1},
		"refused without words":    {refresh(), says(500, "", `{}`), 500, "server_error", 1},
		"not JSON":                 {refresh(), says(200, "", `real-access`), 502, "temporarily_unavailable", 1},
		"compressed unasked":       {refresh(), says(200, "gzip", `{"access_token":"real-a"}`), 502, "temporarily_unavailable", 1},
		"no token":                 {refresh(), says(200, "", `{"ok":true}`), 502, "temporarily_unavailable", 1},
		"a token with a line feed": {refresh(), says(200, "", `{"access_token":"real\n-a"}`), 502, "temporarily_unavailable", 1},
		"endless":                  {refresh(), says(200, "", `{"access_token":"`+strings.Repeat("real-", 1<<18)+`"}`), 502, "temporarily_unavailable", 1},
		"a redirect":               {refresh(), says(302, "", `{}`), 502, "server_error", 1},
		"a login that is pending":  {form("grant_type", "urn:ietf:params:oauth:grant-type:device_code"), says(400, "", `{"error":"authorization_pending"}`), 400, "authorization_pending", 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, agent())
			if c.answer != nil {
				l.answer = c.answer
			}
			status, _, doc := l.ask(c.r)
			if status != c.status || doc["error"] != c.code || l.hits.Load() != c.hits {
				t.Errorf("%d %v after %d requests", status, doc, l.hits.Load())
			}
			if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-access-0" {
				t.Errorf("afterwards the API gets %q", got)
			}
		})
	}
}

// TestNoSpellingLeadsAroundTheEndpoint has paths that servers take for it.
func TestNoSpellingLeadsAroundTheEndpoint(t *testing.T) {
	l := newLab(t, agent())
	for path, want := range map[string]bool{
		"/oauth/token": true, "/oauth/token/": true, "//oauth/token": true, "/oauth/./token": true, "/x/../oauth/token": true, "/OAuth/Token": true,
		"/oauth%2Ftoken": true, "/oauth/tok%65n": true, "/oauth/token;x=1": true, `/oauth\token`: true, "/oauth/token?x": true,
		"/oauth/tokens": false, "/oauth": false, "/": false, "/v1/oauth/token": false,
	} {
		r := form("grant_type", "refresh_token", "refresh_token", "mine")
		r.RequestURI = path
		if got := l.p.Take(runtime, "auth.example", 443, httptest.NewRecorder(), r, l.send, new(proxy.Proof)); got != want {
			t.Errorf("%s: taken %v, want %v", path, got, want)
		}
	}
}

func TestManyRefreshesAreOne(t *testing.T) {
	l := newLab(t, agent())
	inner := l.answer
	l.answer = func(w http.ResponseWriter, q url.Values) { time.Sleep(20 * time.Millisecond); inner(w, q) }
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs)); doc["access_token"] != accessIs {
				t.Errorf("%v", doc)
			}
		})
	}
	wg.Wait()
	if l.hits.Load() != 1 {
		t.Errorf("ten refreshes asked the server %d times", l.hits.Load())
	}
}

func TestWhatIsTakenBackDuringARefreshStaysSo(t *testing.T) {
	l := newLab(t, agent())
	inner := l.answer
	l.answer = func(w http.ResponseWriter, q url.Values) {
		if err := l.vault.Remove(t.Context(), "svc", global); err != nil {
			t.Error(err)
		}
		inner(w, q)
	}
	status, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs))
	if status != http.StatusBadRequest || doc["error"] != "invalid_grant" {
		t.Errorf("%d %v", status, doc)
	}
	if _, _, err := l.vault.Get("svc", global); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("it is back: %v", err)
	}
	// And what is set again meanwhile is what counts.
	l.set(vault.Tokens{Access: secret.New([]byte("real-access-x")), Refresh: secret.New([]byte("real-refresh-x"))})
	l.answer = func(w http.ResponseWriter, q url.Values) {
		l.set(vault.Tokens{Access: secret.New([]byte("real-access-y")), Refresh: secret.New([]byte("real-refresh-y"))})
		inner(w, q)
	}
	l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs))
	if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-access-y" {
		t.Errorf("the API gets %q", got)
	}
}

// TestAPlainTokenNeedsNoServer is a token that was stored once and lasts.
func TestAPlainTokenNeedsNoServer(t *testing.T) {
	l := newLab(t, agent())
	if err := l.vault.Put(t.Context(), vault.Entry{Service: "svc", Scope: global, Source: "test"}, vault.Secret{Value: secret.New([]byte("real-plain"))}); err != nil {
		t.Fatal(err)
	}
	if got := l.shows("Authorization", "Bearer "+accessIs); got != "Bearer real-plain" {
		t.Errorf("the API gets %q", got)
	}
	if _, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs)); doc["access_token"] != accessIs || l.hits.Load() != 0 {
		t.Errorf("%v after %d requests", doc, l.hits.Load())
	}
	if err := l.vault.Remove(t.Context(), "svc", global); err != nil {
		t.Fatal(err)
	}
	if status, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs)); status != 400 || doc["error"] != "invalid_grant" {
		t.Errorf("%d %v", status, doc)
	}
}

// TestTokensArePassedOnWithConsentOnly is the downgrade that the operator allowed.
func TestTokensArePassedOnWithConsentOnly(t *testing.T) {
	c := agent()
	c.OAuth.Passthrough = true
	l := newLab(t, c)
	ask := func(refresh string) map[string]any {
		t.Helper()
		w := httptest.NewRecorder()
		l.p.Take(runtime, "auth.example", 443, w, form("grant_type", "refresh_token", "refresh_token", refresh), l.send, new(proxy.Proof))
		var doc map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		return doc
	}
	if doc := ask(refreshIs); doc["access_token"] != "real-access-1" || doc["refresh_token"] != "real-refresh-1" || doc["id_token"] != "real-id" {
		t.Errorf("%v", doc)
	}
	if doc := ask("real-refresh-1"); doc["access_token"] != "real-access-1" || l.hits.Load() != 1 {
		t.Errorf("%v", doc)
	}
	if doc := ask("mine"); doc["error"] != "invalid_grant" {
		t.Errorf("%v", doc)
	}
}

// TestASandboxIsToldWhatIsKnownToBeNoSecret has an answer whose fields hold secrets
// under names that nobody would look for them under.
func TestASandboxIsToldWhatIsKnownToBeNoSecret(t *testing.T) {
	l := newLab(t, agent())
	l.answer = func(w http.ResponseWriter, _ url.Values) {
		io.WriteString(w, `{"access_token":"real-access-1","refresh_token":"real-refresh-1","expires_in":3600,"scope":"a real-access-1","token_type":"bearer",
			"ticket":"real-1","code":"real-2","data":{"value":"real-3"},"list":["real-4"],"id_jag":"real-5","private":"real-6","auth":{"x":"real-7"},
			"created_at":1700000000,"account_id":"a-1","organization":{"uuid":"o-1","name":"of real-access-1","settings":"real-8","id":{"x":"real-9"}},
			"account":{"uuid":"u-1","email_address":"me@x.example","pin":"real-10","name":["real-11"]},"user":"real-refresh-0","organization_id":["real-12"],
			"expires_at":"`+strings.Repeat("real-", 100)+`"}`)
	}
	status, _, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs))
	var want map[string]any
	if err := json.Unmarshal([]byte(`{"access_token":"ACCESS-SENTINEL","refresh_token":"REFRESH-SENTINEL","scope":"a *************","token_type":"bearer","created_at":1700000000,
		"account_id":"a-1","organization":{"uuid":"o-1","name":"of *************"},"account":{"uuid":"u-1","email_address":"me@x.example"},"user":"**************"}`), &want); err != nil {
		t.Fatal(err)
	}
	delete(doc, "expires_in")
	if status != http.StatusOK || !reflect.DeepEqual(doc, want) {
		t.Errorf("%d %v, want %v", status, doc, want)
	}
}

// TestWhatARefusalRepeatsIsMasked has a server that names every token it knows of.
func TestWhatARefusalRepeatsIsMasked(t *testing.T) {
	for _, r := range []*http.Request{form("grant_type", "refresh_token", "refresh_token", refreshIs), form("grant_type", "authorization_code", "code", "x")} {
		l := newLab(t, agent())
		l.answer = func(w http.ResponseWriter, _ url.Values) {
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"error":"no_real-access-0","error_description":"real-refresh-0, real-access-0 and real-key are void","access_token":"real-x"}`)
		}
		status, text, doc := l.ask(r)
		if status != http.StatusForbidden || doc["error"] != "no_*************" || doc["error_description"] != "**************, ************* and ******** are void" || len(doc) != 2 {
			t.Errorf("%d %s", status, text)
		}
	}
}

// gate is a source that holds a refresh up, as a lock that another one has would.
type gate struct {
	credential.Source
	wait func()
}

func (g gate) Refresh(ctx context.Context, c plan.Credential, exchange func(secret.Value) (vault.Tokens, error)) (vault.Tokens, bool, error) {
	g.wait()
	return g.Source.Refresh(ctx, c, exchange)
}

// TestNoExchangeBeginsAfterItsPhase ends the phase at every moment before the server is
// asked.
func TestNoExchangeBeginsAfterItsPhase(t *testing.T) {
	for what, revoked := range map[string]bool{"before it is seen": false, "as a change of the rules does": true} {
		for _, when := range []string{"at once", "while the body comes", "while it waits for a lock"} {
			l := newLab(t, agent())
			var over atomic.Bool
			proof := proxy.NewProof(func(name string) bool { return name == "svc" && !over.Load() })
			end := func(at string) {
				if at == when {
					over.Store(true)
					if revoked {
						proof.Revoke()
					}
				}
			}
			p, err := credential.New([]plan.Credential{agent()}, gate{&credential.Wallet{Vault: l.vault, Sandbox: "t"}, func() { end("while it waits for a lock") }})
			if err != nil {
				t.Fatal(err)
			}
			r := form("grant_type", "refresh_token", "refresh_token", refreshIs)
			body := r.Body
			r.Body = struct {
				io.Reader
				io.Closer
			}{readerFunc(func(b []byte) (int, error) { end("while the body comes"); return body.Read(b) }), body}
			end("at once")
			w := httptest.NewRecorder()
			if !p.Take(runtime, "auth.example", 443, w, r, l.send, proof) {
				t.Errorf("%s, %s: not taken", when, what)
			}
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "not granted in this phase") || l.hits.Load() != 0 {
				t.Errorf("%s, %s: %d %s; the server was asked %d times", when, what, w.Code, w.Body, l.hits.Load())
			}
			if names, notes := proof.Given(); len(names) > 0 || !strings.Contains(notes, "not granted") {
				t.Errorf("%s, %s: logged as %q, %s", when, what, names, notes)
			}
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestWhatWasIssuedIsKeptWhenThePhaseEnds ends it when the answer is here: the old
// token may be void.
func TestWhatWasIssuedIsKeptWhenThePhaseEnds(t *testing.T) {
	l := newLab(t, agent())
	proof := proxy.NewProof(func(string) bool { return true })
	inner := l.answer
	l.answer = func(w http.ResponseWriter, q url.Values) { inner(w, q); proof.Revoke() }
	w := httptest.NewRecorder()
	l.p.Take(runtime, "auth.example", 443, w, form("grant_type", "refresh_token", "refresh_token", refreshIs), l.send, proof)
	if _, s, err := l.vault.Get("svc", global); err != nil || string(s.Tokens.Refresh.Expose()) != "real-refresh-1" {
		t.Errorf("%v, %v", s.Tokens, err)
	}
	if names, _ := proof.Given(); !slices.Equal(names, []string{"svc"}) || !proof.Secrets().In("real-refresh-0") {
		t.Errorf("the use of the refresh token is logged as %v", names)
	}
}

func FuzzExchange(f *testing.F) {
	f.Add("application/json", `{"grant_type":"refresh_token","refresh_token":"`+refreshIs+`"}`, `{"access_token":"a"}`)
	f.Add("application/x-www-form-urlencoded", "grant_type=refresh_token&refresh_token="+refreshIs, `{"access_token":"a","x":[{"y":"real-access-0"}],"deep":{"deep":{}}}`)
	f.Add("application/x-www-form-urlencoded", "grant_type=x", `{"error":"real-refresh-0"}`)
	c := agent()
	w := &credential.Wallet{Vault: vault.Open(f.TempDir()), Sandbox: "t"}
	tokens := &vault.Tokens{Access: secret.New([]byte("real-access-0")), Refresh: secret.New([]byte("real-refresh-0"))}
	if err := w.Vault.Put(f.Context(), vault.Entry{Service: "svc", Scope: global, Source: "test"}, vault.Secret{Tokens: tokens}); err != nil {
		f.Fatal(err)
	}
	p, err := credential.New([]plan.Credential{c}, w)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, kind, body, answer string) {
		r := httptest.NewRequest(http.MethodPost, "/oauth/token", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		out := httptest.NewRecorder()
		p.Take(runtime, "auth.example", 443, out, r, func(q *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, q.Body)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
		}, new(proxy.Proof))
		if out.Code == 0 || bytes.Contains(out.Body.Bytes(), []byte("real-refresh-0")) {
			t.Fatalf("%d %s", out.Code, out.Body)
		}
	})
}

// TestTheSandboxLearnsNothingOfTheHostsFiles breaks the vault.
func TestTheSandboxLearnsNothingOfTheHostsFiles(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, agent())
	p, err := credential.New([]plan.Credential{agent()}, &credential.Wallet{Vault: vault.Open(dir), Sandbox: "t"})
	if err != nil {
		t.Fatal(err)
	}
	l.p = p
	if err := os.WriteFile(filepath.Join(dir, "svc.global.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, text, doc := l.ask(form("grant_type", "refresh_token", "refresh_token", refreshIs))
	if status != http.StatusBadGateway || doc["error"] != "temporarily_unavailable" || strings.Contains(text, dir) {
		t.Errorf("%d %s", status, text)
	}
}
