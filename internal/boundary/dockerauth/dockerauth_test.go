package dockerauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
)

const (
	user, password = "real-user", "real-password"
	standIn        = "kitbox-login-1"
)

// A hub is a registry and its token service, as a boundary reaches them.
type hub struct {
	*httptest.Server
	challenge string // of the registry
	status    int    // of the token service; 0: 200
	answer    string // of the token service

	repeats bool // the registry answers with what it was sent

	log []line // what a log would have of the requests that were given something or failed

	mu   sync.Mutex
	seen []string // guarded by mu; host, path, authorization and form of each request
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{challenge: `Bearer realm="https://auth.test/token",service="registry.test"`, answer: `{"token":"REAL-TOKEN","access_token":"REAL-TOKEN","refresh_token":"REAL-REFRESH","expires_in":300,"issued_at":"2026-01-02T03:04:05Z","id_token":"ALSO-REAL"}`}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.seen = append(h.seen, r.Method+" "+r.Host+r.URL.String()+" "+r.Header.Get("Authorization")+" "+string(body))
		h.mu.Unlock()
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			if a := r.Header.Get("Authorization"); a != "Bearer REAL-TOKEN" && a != "Basic "+b64(user+":"+password) {
				w.Header().Set("Www-Authenticate", h.challenge)
				w.WriteHeader(http.StatusUnauthorized)
			} else if h.repeats {
				w.Header().Set("X-Echo", r.Header.Get("Authorization"))
				io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
			}
		default:
			w.Header().Set("X-Token", "REAL-TOKEN")
			if h.status != 0 {
				w.WriteHeader(h.status)
			}
			io.WriteString(w, h.answer)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// A line is what a presenter has said of a request.
type line struct {
	credential, why string
	failed          bool
}

func (h *hub) told(p *proxy.Proof) {
	names, why := p.Given()
	if len(names) > 0 || p.Failed() {
		h.log = append(h.log, line{strings.Join(names, ","), why, p.Failed()})
	}
}

func (h *hub) last() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.seen) == 0 {
		return ""
	}
	return h.seen[len(h.seen)-1]
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func source(l Login, err error) Source {
	return func(context.Context, plan.DockerAuth) (Login, error) { return l, err }
}

var realLogin = Login{Username: user, Password: secret.New([]byte(password))}

func presenter(t *testing.T, s Source) (*Presenter, *[]audit.Decision) {
	return presenterOf(t, s, "")
}

// presenterOf is one that remembers in state.
func presenterOf(t *testing.T, s Source, state string) (*Presenter, *[]audit.Decision) {
	t.Helper()
	var log []audit.Decision
	p, err := New([]plan.DockerAuth{{Registry: "registry.test", Placeholder: standIn}, {Registry: "other.test:5000", Placeholder: "kitbox-login-2"}}, s, state,
		func(d audit.Decision) { log = append(log, d) })
	if err != nil {
		t.Fatal(err)
	}
	return p, &log
}

// ask is a request of the sandbox to host, as packages proxy and intercept carry
// it.
func (h *hub) ask(t *testing.T, p *Presenter, host, method, target, auth, form string) (int, string, http.Header) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "https://"+host+target, strings.NewReader(form))
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Accept-Encoding", "gzip")
	send := func(q *http.Request) (*http.Response, error) {
		tr := h.Client().Transport.(*http.Transport).Clone()
		defer tr.CloseIdleConnections()
		q.URL.Scheme, q.Host = "https", host
		q.URL.Host = host
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", h.Listener.Addr().String())
		}
		tr.TLSClientConfig.ServerName = "example.com"
		resp, err := tr.RoundTrip(q)
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			resp.Body = io.NopCloser(strings.NewReader(string(b)))
		}
		return resp, err
	}
	proof := new(proxy.Proof)
	name, port := host, uint16(443)
	if n, ok := strings.CutSuffix(host, ":5000"); ok {
		name, port = n, 5000
	}
	if p.Interest(plan.Runtime, name, port) != proxy.None {
		path, _, _ := strings.Cut(target, "?")
		p.Present(t.Context(), plan.Runtime, name, port, intercept.Request{Method: method, Path: path, Header: r.Header, Proven: true}, proof)
		w := httptest.NewRecorder()
		taken := p.Take(plan.Runtime, name, port, w, r, send, proof)
		h.told(proof)
		if taken {
			return w.Code, w.Body.String(), w.Header()
		}
	}
	out := r.Clone(t.Context())
	out.RequestURI = ""
	resp, err := send(out)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if p.Interest(plan.Runtime, name, port) != proxy.None {
		proof.Answer(resp)
		p.Answered(plan.Runtime, name, port, resp)
	}
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Header
}

func clean(t *testing.T, what, body string, h http.Header) {
	t.Helper()
	all := body
	for k, vs := range h {
		all += k + strings.Join(vs, " ")
	}
	for _, s := range []string{"REAL", password, user, b64(user + ":" + password)} {
		if strings.Contains(all, s) {
			t.Errorf("%s shows %s: %s %v", what, s, body, h)
		}
	}
}

func TestALoginIsExchangedAndNothingOfItIsShown(t *testing.T) {
	h := newHub(t)
	p, _ := presenter(t, source(realLogin, nil))
	login := "Basic " + b64("kitbox:"+standIn)

	// Before the registry has named its token service, nobody is shown a
	// login, whatever he is called.
	if code, body, _ := h.ask(t, p, "auth.test", "GET", "/token?service=registry.test", login, ""); code != 200 || !strings.Contains(h.last(), login) {
		t.Errorf("an unknown service: %d %s, it saw %s", code, body, h.last())
	}
	if code, _, hd := h.ask(t, p, "registry.test", "GET", "/v2/", "", ""); code != 401 || hd.Get("Www-Authenticate") != h.challenge {
		t.Errorf("challenge: %d %v", code, hd)
	}
	code, body, hd := h.ask(t, p, "auth.test", "GET", "/token?service=registry.test&scope=repository:a/b:pull&account=kitbox", login, "")
	clean(t, "the exchange", body, hd)
	if want := "GET auth.test/token?account=real-user&scope=repository%3Aa%2Fb%3Apull&service=registry.test Basic " + b64(user+":"+password); code != 200 || !strings.HasPrefix(h.last(), want) {
		t.Errorf("the exchange: %d, the service saw %s, want %s", code, h.last(), want)
	}
	var tokens struct {
		Token   string `json:"token"`
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Expires int    `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(body), &tokens); err != nil || tokens.Token == "" || tokens.Token != tokens.Access || tokens.Refresh == "" || tokens.Refresh == tokens.Token || tokens.Expires != 300 {
		t.Errorf("tokens: %s, %v", body, err)
	}
	if len(h.log) != 1 || h.log[0].credential != "docker-auth registry.test" || h.log[0].failed || !strings.Contains(h.log[0].why, "shown to its token service") {
		t.Errorf("log: %+v", h.log)
	}

	// The token is for the registry and for nobody else.
	if code, _, _ := h.ask(t, p, "registry.test", "GET", "/v2/a/b/manifests/1", "Bearer "+tokens.Token, ""); code != 200 {
		t.Errorf("with the token: %d, it saw %s", code, h.last())
	}
	for _, host := range []string{"auth.test", "cdn.test", "other.test:5000", "registry.test:8443"} {
		h.ask(t, p, host, "GET", "/x", "Bearer "+tokens.Token, "")
		if strings.Contains(h.last(), "REAL") {
			t.Errorf("%s saw %s", host, h.last())
		}
	}
	for _, auth := range []string{"Bearer " + tokens.Refresh, "Bearer x" + tokens.Token, "Bearer " + standIn, "Basic " + b64("x:"+tokens.Token), "Token " + tokens.Token} {
		if code, _, _ := h.ask(t, p, "registry.test", "GET", "/v2/", auth, ""); code != 401 || strings.Contains(h.last(), "REAL") {
			t.Errorf("%s: %d, it saw %s", auth, code, h.last())
		}
	}

	// OAuth: with the password, and with what stands for a refresh token.
	code, body, hd = h.ask(t, p, "auth.test", "POST", "/token", "", url.Values{"grant_type": {"password"}, "username": {"kitbox"}, "password": {standIn}, "service": {"registry.test"}}.Encode())
	clean(t, "the password grant", body, hd)
	if code != 200 || !strings.Contains(h.last(), "password="+password) || !strings.Contains(h.last(), "username="+user) {
		t.Errorf("password grant: %d, it saw %s", code, h.last())
	}
	code, body, hd = h.ask(t, p, "auth.test", "POST", "/token", "", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {tokens.Refresh}}.Encode())
	clean(t, "the refresh", body, hd)
	if code != 200 || !strings.Contains(h.last(), "refresh_token=REAL-REFRESH") {
		t.Errorf("refresh: %d, it saw %s", code, h.last())
	}

	// Another path of that host, another login's stand-in and a login of
	// the sandbox's own are its own affair.
	for _, tt := range [][4]string{{"GET", "/other", login, ""}, {"GET", "/token", "Basic " + b64("kitbox:kitbox-login-2"), ""}, {"GET", "/token", "Basic " + b64("me:mine"), ""},
		{"POST", "/token", "", "grant_type=password&password=mine"}, {"POST", "/token", "", "grant_type=refresh_token&refresh_token=" + tokens.Token}, {"PUT", "/token", login, ""}} {
		h.ask(t, p, "auth.test", tt[0], tt[1], tt[2], tt[3])
		if s := h.last(); strings.Contains(s, "REAL") || strings.Contains(s, password) || !strings.Contains(s, tt[2]) || !strings.HasSuffix(s, tt[3]) {
			t.Errorf("%v: it saw %s", tt, s)
		}
	}
}

func TestAnAnswerThatRevealsIsNotPassedOn(t *testing.T) {
	h := newHub(t)
	p, _ := presenter(t, source(realLogin, nil))
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	login := "Basic " + b64("kitbox:"+standIn)
	for _, tt := range []struct {
		status       int
		answer, want string
		code         int
	}{
		{403, `{"errors":[{"message":"no such user"}]}`, "no such user", 403},
		{403, `{"you sent":"` + b64(user+":"+password) + `"}`, "{}", 403},
		{500, password, "{}", 500},
		{302, "moved", "{}", 302},
		{201, `{"token":"REAL-TOKEN"}`, "kitbox-token-", 201},
		{403, `{"token":"REAL-TOKEN"}`, "{}", 403},
		{403, `{"errors":[{"code":"DENIED","message":"not for ` + password + `","detail":"REAL-TOKEN"}],"access_token":"REAL-TOKEN"}`, `{"errors":[{"code":"DENIED","message":"not for *************"}]}`, 403},
		{401, `{"details":"incorrect username or password"}`, `{"details":"incorrect username or password"}`, 401},
		{400, `{"error":"invalid_grant","error_description":"expired ` + b64(user+":"+password) + `"}`, `{"error":"invalid_grant","error_description":"expired `, 400},
		{400, `{"error":"` + strings.Repeat("x", 301) + `","errors":"x"}`, "{}", 400},
		{0, `not json REAL-TOKEN`, "without a token", 502},
		{0, `{"id_token":"REAL-TOKEN"}`, "without a token", 502},
		{0, strings.Repeat("x", 2<<20), "too long", 502},
	} {
		h.status, h.answer = tt.status, tt.answer
		code, body, hd := h.ask(t, p, "auth.test", "GET", "/token", login, "")
		if code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%d %.40q: %d %q", tt.status, tt.answer, code, body)
		}
		hd.Del("Content-Length")
		clean(t, tt.answer[:min(len(tt.answer), 40)], strings.ReplaceAll(body, "no such user", ""), hd)
	}
}

// TestARegistryThatRepeatsWhatItWasSent has one that shows everybody his own request,
// as pages that say what is wrong with one do.
func TestARegistryThatRepeatsWhatItWasSent(t *testing.T) {
	h := newHub(t)
	h.repeats = true
	p, _ := presenter(t, source(realLogin, nil))
	login := "Basic " + b64("kitbox:"+standIn)
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	_, body, _ := h.ask(t, p, "auth.test", "GET", "/token", login, "")
	var tokens struct{ Token string }
	if err := json.Unmarshal([]byte(body), &tokens); err != nil || tokens.Token == "" {
		t.Fatalf("%s, %v", body, err)
	}
	code, body, hd := h.ask(t, p, "registry.test", "GET", "/v2/echo", "Bearer "+tokens.Token, "")
	clean(t, "a token", body, hd)
	if code != 200 || !strings.Contains(body, "Bearer **********") || !strings.Contains(h.last(), "REAL-TOKEN") {
		t.Errorf("%d %s; it saw %s", code, body, h.last())
	}
	// Outside the protocol it is nobody's business to know the token.
	for _, path := range []string{"/", "/v1/echo", "/v2x", "/v2/../echo", "/v2/%2e%2e/echo"} {
		h.ask(t, p, "registry.test", "GET", path, "Bearer "+tokens.Token, "")
		if strings.Contains(h.last(), "REAL") {
			t.Errorf("%s: it saw %s", path, h.last())
		}
	}
	h.challenge = `Basic realm="Registry"`
	p, _ = presenter(t, source(realLogin, nil))
	code, body, hd = h.ask(t, p, "registry.test", "GET", "/v2/echo", login, "")
	clean(t, "a password", body, hd)
	if code != 200 || !strings.Contains(body, "Basic ****") || !strings.Contains(h.last(), b64(user+":"+password)) {
		t.Errorf("%d %s; it saw %s", code, body, h.last())
	}
}

func TestARegistryThatAsksForAPasswordGetsIt(t *testing.T) {
	h := newHub(t)
	h.challenge = `Basic realm="Registry"`
	p, _ := presenter(t, source(realLogin, nil))
	login := "Basic " + b64("kitbox:"+standIn)
	// At once: what it asks for is found out first, without a login.
	if code, _, _ := h.ask(t, p, "registry.test", "GET", "/v2/a/tags/list", login, ""); code != 200 || !strings.Contains(h.last(), "Basic "+b64(user+":"+password)) {
		t.Errorf("%d, it saw %s", code, h.last())
	}
	if len(h.log) != 1 || h.log[0].credential == "" || h.log[0].failed {
		t.Errorf("log: %+v", h.log)
	}
	for _, path := range []string{"/token", "/", "/v2x", "/v2/../token", "/v2/%2e%2e/token", "/v2/a//b"} {
		h.ask(t, p, "registry.test", "GET", path, login, "")
		if strings.Contains(h.last(), b64(user+":"+password)) {
			t.Errorf("%s was shown the login: %s", path, h.last())
		}
	}
	// One that asks for tokens never gets it in the protocol.
	h.challenge = `Bearer realm="https://registry.test/token"`
	p, _ = presenter(t, source(realLogin, nil))
	h.ask(t, p, "registry.test", "GET", "/v2/", login, "")
	if strings.Contains(h.last(), b64(user+":"+password)) {
		t.Errorf("it saw %s", h.last())
	}
	// Its token service is at the same host here.
	code, body, hd := h.ask(t, p, "registry.test", "GET", "/token", login, "")
	clean(t, "a token service at the registry", body, hd)
	if code != 200 || !strings.Contains(body, "kitbox-token-") {
		t.Errorf("%d %s", code, body)
	}
}

func TestIdentityTokensAreExchangedByOAuth(t *testing.T) {
	h := newHub(t)
	p, _ := presenter(t, source(Login{Identity: secret.New([]byte("REAL-IDENTITY"))}, nil))
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	code, body, hd := h.ask(t, p, "auth.test", "GET", "/token?service=s&scope=x&scope=y", "Basic "+b64("kitbox:"+standIn), "")
	clean(t, "identity", body, hd)
	if want := "POST auth.test/token  client_id=kitbox&grant_type=refresh_token&refresh_token=REAL-IDENTITY&scope=x+y&service=s"; code != 200 || h.last() != want {
		t.Errorf("%d, it saw %s", code, h.last())
	}
}

func TestWithoutALoginNothingIsShown(t *testing.T) {
	h := newHub(t)
	p, _ := presenter(t, source(Login{}, errors.New("no login")))
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	if code, body, _ := h.ask(t, p, "auth.test", "GET", "/token", "Basic "+b64("kitbox:"+standIn), ""); code != 502 || !strings.Contains(body, "no login") {
		t.Errorf("%d %s", code, body)
	}
	if len(h.log) != 1 || !h.log[0].failed || h.log[0].credential != "" || !strings.Contains(h.log[0].why, "registry.test is not presented") {
		t.Errorf("log: %+v", h.log)
	}
}

func TestChallenges(t *testing.T) {
	for value, want := range map[string]string{
		`Bearer realm="https://auth.test/token",service="x"`:     "https://auth.test/token",
		`bearer service="a,b=\"c\"", realm="https://auth.test/"`: "https://auth.test/",
		`Bearer realm=https://a.test/t,scope="x"`:                "https://a.test/t",
		`Basic realm="https://auth.test/"`:                       "",
		`Bearer`:                                                 "",
		`Bearer realm="unfinished`:                               "",
		`Bearer x, Basic realm="https://b.test/"`:                "",
		`Bearer realm="https://a.test/", Basic realm="b"`:        "https://a.test/",
	} {
		if got, _ := parseBearer(value); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	for realm, want := range map[string]string{
		"https://Auth.test/token": "auth.test:443/token", "https://auth.test:8443": "auth.test:8443/",
		"http://auth.test/token": "", "https://10.0.0.1/token": "", "https://[::1]/token": "", "https://u@auth.test/": "", "//auth.test/": "", "https:auth.test": "", "https://auth.test:0/": "", "https:///x": "",
	} {
		at, path, ok := locate(realm)
		got := ""
		if ok {
			got = at.String() + path
		}
		if got != want {
			t.Errorf("%s: %q, want %q", realm, got, want)
		}
	}
}

func TestOnlyVerifiedAnswersAndFewServicesCount(t *testing.T) {
	p, _ := presenter(t, source(realLogin, nil))
	answer := func(realm string) *http.Response {
		r := httptest.NewRecorder()
		r.Header().Set("Www-Authenticate", `Bearer realm="`+realm+`"`)
		r.WriteHeader(http.StatusUnauthorized)
		return r.Result()
	}
	plain := answer("https://evil.test/token")
	defer plain.Body.Close()
	p.Answered(plan.Runtime, "registry.test", 443, plain)
	if p.Interest(plan.Runtime, "evil.test", 443) != proxy.None {
		t.Error("a challenge without TLS was believed")
	}
	h := newHub(t)
	for i := range 20 {
		h.challenge = `Bearer realm="https://auth` + string(rune('a'+i)) + `.test/token"`
		h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	}
	if n := len(p.services); n != maxServices {
		t.Errorf("%d services", n)
	}
	h.challenge = `Bearer realm="https://other.test:5000/token"`
	p, _ = presenter(t, source(realLogin, nil))
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	if len(p.services) != 0 {
		t.Error("another registry became a token service")
	}
}

func TestTokensAreBoundedAndEnd(t *testing.T) {
	p, _ := presenter(t, source(realLogin, nil))
	g := p.grants[0]
	first := p.keep(&token{of: g, value: secret.New([]byte("v")), expires: time.Now().Add(time.Hour)})
	for range maxTokens {
		p.keep(&token{of: g, value: secret.New([]byte("v")), expires: time.Now().Add(time.Hour)})
	}
	if _, ok := p.redeem(first, g, false); ok || len(p.tokens) != maxTokens {
		t.Errorf("%d tokens; the oldest: %v", len(p.tokens), ok)
	}
	old := p.keep(&token{of: g, value: secret.New([]byte("v")), expires: time.Now().Add(-time.Second)})
	if _, ok := p.redeem(old, g, false); ok {
		t.Error("a token that is over is redeemed")
	}
}

func TestPlaces(t *testing.T) {
	for registry, want := range map[string]string{"docker.io": "registry-1.docker.io:443", "ghcr.io": "ghcr.io:443", "r.test:5000": "r.test:5000", "10.0.0.1": "", "[::1]:5000": "", "localhost:5000": "", "localhost": ""} {
		got, err := Places(registry)
		if want == "" {
			if err == nil {
				t.Errorf("%s: %v", registry, got)
			}
			continue
		}
		if err != nil || got[0] != want {
			t.Errorf("%s: %v, %v", registry, got, err)
		}
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://auth.test/token",service="x"`)
	f.Add(`Bearer realm="\"`)
	f.Fuzz(func(t *testing.T, s string) {
		realm, ok := parseBearer(s)
		if ok && realm == "" {
			t.Error("a challenge without a realm")
		}
		locate(realm)
	})
}

func TestTheNextPresenterGoesOn(t *testing.T) {
	h := newHub(t)
	state := filepath.Join(t.TempDir(), "registries.json")
	login := "Basic " + b64("kitbox:"+standIn)
	p, _ := presenterOf(t, source(realLogin, nil), state)
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	_, body, _ := h.ask(t, p, "auth.test", "POST", "/token", "", "grant_type=password&username=kitbox&service=s&password="+standIn)
	var tokens struct {
		Token   string `json:"token"`
		Refresh string `json:"refresh_token"`
	}
	if err := json.Unmarshal([]byte(body), &tokens); err != nil || tokens.Refresh == "" {
		t.Fatalf("%s, %v", body, err)
	}
	if b, err := os.ReadFile(state); err != nil || strings.Contains(string(b), "REAL") || strings.Contains(string(b), password) {
		t.Errorf("the state: %s, %v", b, err)
	}

	p, _ = presenterOf(t, source(realLogin, nil), state)
	// A client that remembers where tokens are issued asks there at once.
	code, body, _ := h.ask(t, p, "auth.test", "GET", "/token?service=s", login, "")
	if code != 200 || strings.Contains(body, "REAL") || !strings.Contains(h.last(), b64(user+":"+password)) {
		t.Errorf("a known token service: %d %s; it saw %s", code, body, h.last())
	}
	// One that has a refresh token of before, as well.
	code, body, _ = h.ask(t, p, "auth.test", "POST", "/token", "", "grant_type=refresh_token&service=s&scope=x&refresh_token="+tokens.Refresh)
	if code != 200 || strings.Contains(body, "REAL") || !strings.Contains(h.last(), "grant_type=password&password="+password+"&scope=x&service=s&username="+user) {
		t.Errorf("a refresh: %d %s; it saw %s", code, body, h.last())
	}
	// An access token of before is refused, with the challenge that clients log
	// in upon.
	code, _, hd := h.ask(t, p, "registry.test", "GET", "/v2/x/manifests/1", "Bearer "+tokens.Token, "")
	if code != 401 || hd.Get("Www-Authenticate") == "" {
		t.Errorf("an access token: %d %v", code, hd)
	}

	// Whose stand-in it is decides, and at which service.
	other, err := New([]plan.DockerAuth{{Registry: "registry.test", Placeholder: "kitbox-login-9"}}, source(realLogin, nil), state, func(audit.Decision) {})
	if err != nil {
		t.Fatal(err)
	}
	h.ask(t, other, "auth.test", "POST", "/token", "", "grant_type=refresh_token&refresh_token="+tokens.Refresh)
	if !strings.Contains(h.last(), tokens.Refresh) || strings.Contains(h.last(), password) {
		t.Errorf("another sandbox's stand-in: it saw %s", h.last())
	}
	h.ask(t, p, "elsewhere.test", "POST", "/token", "", "grant_type=refresh_token&refresh_token="+tokens.Refresh)
	if strings.Contains(h.last(), password) {
		t.Errorf("another service: it saw %s", h.last())
	}

	// What is no memory is refused, and says so.
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(nil, nil, state, nil); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a broken state: %v", err)
	}
}
