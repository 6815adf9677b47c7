package credential

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/echo"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// maxExchange bounds what is read of a token request and of its answer, in bytes.
const maxExchange = 1 << 20

// maxExchanges is how many there are at a time in a sandbox.
const maxExchanges = 4

// exchangeTime bounds an exchange with a token endpoint.
const exchangeTime = 60 * time.Second

// keepTime bounds keeping what was issued.
const keepTime = 10 * time.Second

// maxText bounds a text of the server's that the sandbox is told, in bytes.
const maxText = 300

// An endpoint is where tokens are issued.
type endpoint struct {
	of    int // index in Presenter.all
	hosts egress.Matcher
	path  string // empty: every one
}

// addOAuth adds the rules of credential i for its tokens.
func (p *Presenter) addOAuth(i int, o *plan.OAuth) error {
	var errs []error
	for _, host := range o.Hosts {
		m, err := egress.ParseMatcher(host)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.rules = append(p.rules, rule{i, m, o.Access, accessToken, plan.Injection{Domain: host, Header: "Authorization", Format: "Bearer %s"}})
		if o.Key != "" {
			p.rules = append(p.rules, rule{i, m, o.Key, tokenKey, plan.Injection{Domain: host, Header: "X-Api-Key", Format: "%s"}})
		}
	}
	if o.TokenHost != "" {
		m, err := egress.ParseMatcher(o.TokenHost)
		if err != nil {
			errs = append(errs, err)
		}
		p.endpoints = append(p.endpoints, endpoint{i, m, o.TokenPath})
	}
	return errors.Join(errs...)
}

// endpoint returns the token endpoint that a request is for, or nil.
func (p *Presenter) endpoint(phase plan.Phase, host string, port uint16, path string) *endpoint {
	for i := range p.endpoints {
		e := &p.endpoints[i]
		if e.hosts.Matches(host, port) && p.all[e.of].Granted(phase) && (e.path == "" || samePath(path, e.path)) {
			return e
		}
	}
	return nil
}

// Insists implements [proxy.Insister].
func (p *Presenter) Insists(phase plan.Phase, host string, port uint16, path string) bool {
	return p.endpoint(phase, host, port, path) != nil
}

// samePath reports whether a server may take a for b: escapes, case and slashes
// that some ignore must not lead around the endpoint.
func samePath(a, b string) bool {
	plain := func(s string) string {
		if u, err := url.PathUnescape(s); err == nil {
			s = u
		}
		var parts []string
		for _, seg := range strings.Split(strings.ReplaceAll(s, "\\", "/"), "/") {
			seg, _, _ = strings.Cut(seg, ";")
			switch seg {
			case "", ".":
			case "..":
				parts = parts[:max(len(parts)-1, 0)]
			default:
				parts = append(parts, strings.ToLower(seg))
			}
		}
		return strings.Join(parts, "/")
	}
	return plain(a) == plain(b)
}

// Take implements [proxy.Presenter]: it answers for token endpoints. The sandbox
// is given sentinels; the tokens stay here. A phase that ends takes what is under way
// with it.
func (p *Presenter) Take(phase plan.Phase, host string, port uint16, w http.ResponseWriter, r *http.Request, send intercept.Send, proof *proxy.Proof) bool {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	e := p.endpoint(phase, host, port, path)
	if e == nil {
		return false
	}
	x := &exchange{p: p, c: p.all[e.of], send: send, proof: proof}
	answer, err := x.run(r)
	if err != nil {
		// As OAuth servers say it (RFC 6749 §5.2).
		var d *declined
		if !errors.As(err, &d) {
			// What is wrong with the host's files is not for the sandbox.
			d = failing("the host cannot give tokens for " + x.c.Service + " now")
		}
		if proof.Revoked() {
			d = x.ungranted() // whatever broke, it broke by that
		}
		proof.Note("no token is given: " + d.text)
		writeJSON(w, d.status, map[string]any{"error": d.code, "error_description": d.text})
		return true
	}
	writeJSON(w, http.StatusOK, answer)
	return true
}

func writeJSON(w http.ResponseWriter, status int, v map[string]any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// declined is an answer that gives no tokens.
type declined struct {
	status int
	code   string // of OAuth
	text   string
}

func (d *declined) Error() string { return d.code + ": " + d.text }

// failing is the fault of nobody who asks.
func failing(text string) *declined {
	return &declined{http.StatusBadGateway, "temporarily_unavailable", text}
}

// An exchange is one request to a token endpoint.
type exchange struct {
	p     *Presenter
	c     plan.Credential
	send  intercept.Send
	proof *proxy.Proof

	issued map[string]any // what the server said when it issued tokens
	real   echo.Secrets   // what the sandbox must not be told
}

// ungranted is what is answered when the phase of the credential is over.
func (x *exchange) ungranted() *declined {
	return &declined{http.StatusForbidden, "access_denied", "the credential " + x.c.Service + " is not granted in this phase"}
}

func (x *exchange) run(r *http.Request) (map[string]any, error) {
	if !x.proof.Hold(x.c.Service) {
		return nil, x.ungranted()
	}
	// Bodies are held whole: a sandbox must not have many of them.
	select {
	case x.p.exchanges <- struct{}{}:
		defer func() { <-x.p.exchanges }()
	case <-r.Context().Done():
		return nil, failing("the request has ended")
	}
	return x.answer(r)
}

func (x *exchange) answer(r *http.Request) (map[string]any, error) {
	if r.Method != http.MethodPost {
		return nil, &declined{http.StatusMethodNotAllowed, "invalid_request", "a token endpoint takes POST"}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxExchange+1))
	if err != nil {
		return nil, &declined{http.StatusBadRequest, "invalid_request", "the request did not arrive whole"}
	}
	q, err := parseQuestion(r.Header, body)
	if err != nil {
		return nil, err
	}
	// What was begun is ended although the client has gone: the server may
	// have made the old token void. The end of its phase ends it all the same.
	ctx, end := x.proof.Outlive(r.Context())
	defer end()
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	if !x.proof.Hold(x.c.Service) {
		return nil, x.ungranted() // it waited, and its client took its time
	}
	if q.get("grant_type") == "refresh_token" {
		return x.refresh(ctx, r, q)
	}
	return x.login(ctx, r, q)
}

// refresh answers a request that shows the sentinel of the refresh token.
func (x *exchange) refresh(ctx context.Context, r *http.Request, q *question) (map[string]any, error) {
	if shown := q.get("refresh_token"); shown != x.c.OAuth.Refresh && !x.passedOn(ctx, shown) {
		return nil, &declined{http.StatusBadRequest, "invalid_grant", "this is not the refresh token of the sandbox"}
	}
	t, fresh, err := x.p.source.Refresh(ctx, x.c, func(refresh secret.Value) (vault.Tokens, error) {
		q.set("refresh_token", string(refresh.Expose()))
		if !x.proof.Give(x.c.Service, string(refresh.Expose())) {
			return vault.Tokens{}, x.ungranted()
		}
		t, err := x.ask(ctx, r, q)
		if err == nil {
			if id := q.get("client_id"); id != "" {
				t.Params = map[string]string{"client_id": id}
			}
		}
		return t, err
	})
	if errors.Is(err, kiterr.ErrNotFound) {
		return nil, &declined{http.StatusBadRequest, "invalid_grant", "no tokens are stored for " + x.c.Service}
	}
	if err != nil {
		return nil, err
	}
	if !fresh {
		x.issued = nil
	}
	return x.shown(t), nil
}

// passedOn reports whether token is the refresh token that the sandbox was given
// with the operator's consent.
func (x *exchange) passedOn(ctx context.Context, token string) bool {
	if !x.c.OAuth.Passthrough || token == "" {
		return false
	}
	t, err := x.p.source.Tokens(ctx, x.c)
	return err == nil && subtle.ConstantTimeCompare(t.Refresh.Expose(), []byte(token)) == 1
}

// login answers any other grant: whoever logs in inside does so for this sandbox
// alone, since the account is one that the sandbox chose.
func (x *exchange) login(ctx context.Context, r *http.Request, q *question) (map[string]any, error) {
	t, err := x.ask(ctx, r, q)
	if err != nil {
		return nil, err
	}
	if id := q.get("client_id"); id != "" {
		t.Params = map[string]string{"client_id": id}
	}
	// What was issued is kept, whatever has ended meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	if err := x.p.source.Keep(ctx, x.c, t); err != nil {
		return nil, failing("the tokens were issued and could not be kept")
	}
	return x.shown(t), nil
}

// ask sends q to the server and reads the tokens out of its answer.
func (x *exchange) ask(ctx context.Context, r *http.Request, q *question) (vault.Tokens, error) {
	body := q.encode()
	defer clear(body)
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		return vault.Tokens{}, err
	}
	out.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	for _, name := range []string{"Content-Type", "Authorization", "Accept", "User-Agent", "Origin", "Dpop"} {
		if v, ok := r.Header[name]; ok {
			out.Header[name] = v
		}
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // and not Go's
	}
	// What is kept for the sandbox, and what the server is shown: neither may
	// come back, in whichever field.
	if t, err := x.p.source.Tokens(ctx, x.c); err == nil {
		x.real.Add(string(t.Access.Expose()), string(t.Refresh.Expose()), string(t.Key.Expose()))
	}
	x.real.Add(q.get("refresh_token"))
	x.real.Join(x.proof.Secrets())
	if !x.proof.Hold(x.c.Service) {
		return vault.Tokens{}, x.ungranted()
	}
	resp, err := x.send(out)
	if err != nil {
		return vault.Tokens{}, failing("the token endpoint cannot be reached") // the cause may hold what was sent
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxExchange+1))
	defer clear(text)
	var doc map[string]any
	if err != nil || len(text) > maxExchange || resp.Header.Get("Content-Encoding") != "" || json.Unmarshal(text, &doc) != nil {
		return vault.Tokens{}, failing(fmt.Sprintf("the token endpoint answered %d with what is no JSON object", resp.StatusCode))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return vault.Tokens{}, x.refusal(resp.StatusCode, doc)
	}
	return x.tokens(doc)
}

// refusal is what the server said, without what it may have repeated.
func (x *exchange) refusal(status int, doc map[string]any) error {
	code, _ := doc["error"].(string)
	text, _ := doc["error_description"].(string)
	if status < 400 {
		status = http.StatusBadGateway
	}
	for _, s := range []*string{&code, &text} {
		if len(*s) > maxText {
			*s = ""
		}
		*s = x.real.Mask(*s)
	}
	if code == "" {
		code = "server_error"
	}
	return &declined{status, code, text}
}

// tokens reads the answer of a server by the names that the Kit gave its fields.
func (x *exchange) tokens(doc map[string]any) (vault.Tokens, error) {
	o := x.c.OAuth
	var t vault.Tokens
	read := func(name string) (secret.Value, error) {
		text, _ := doc[name].(string)
		if text == "" {
			return secret.Value{}, nil
		}
		v := secret.New([]byte(text))
		if err := v.Check(); err != nil {
			return secret.Value{}, failing("the token endpoint issued a token that no header can hold: " + err.Error())
		}
		return v, nil
	}
	var err error
	if t.Access, err = read(o.AccessField); err != nil {
		return t, err
	}
	if t.Access.Empty() {
		return t, failing("the answer of the token endpoint has no field " + o.AccessField)
	}
	if t.Refresh, err = read(o.RefreshField); err != nil {
		return t, err
	}
	switch n := doc[o.ExpiresField].(type) {
	case float64:
		t.Expires = time.Now().Add(vault.Seconds(n))
	case string:
		if s, err := strconv.ParseFloat(n, 64); err == nil {
			t.Expires = time.Now().Add(vault.Seconds(s))
		}
	}
	if scope, ok := doc["scope"].(string); ok {
		t.Scopes = strings.Fields(scope)
	}
	x.issued = doc
	x.real.Add(string(t.Access.Expose()), string(t.Refresh.Expose()))
	return t, nil
}

// shown is what the sandbox is told of t: sentinels in the place of the tokens,
// and of what the server said besides, what is known to be no secret.
func (x *exchange) shown(t vault.Tokens) map[string]any {
	o := x.c.OAuth
	if o.Passthrough {
		return x.passed(t)
	}
	// Those that are kept need not be those that were issued.
	x.real.Add(string(t.Access.Expose()), string(t.Refresh.Expose()), string(t.Key.Expose()))
	out := told(x.issued, x.real)
	out["token_type"] = "Bearer"
	if kind, ok := x.issued["token_type"].(string); ok && len(kind) < 64 {
		out["token_type"] = x.real.Mask(kind)
	}
	if !t.Expires.IsZero() {
		out[o.ExpiresField] = max(int64(time.Until(t.Expires).Seconds()), 1)
	}
	if len(t.Scopes) > 0 {
		out["scope"] = x.real.Mask(strings.Join(t.Scopes, " "))
	}
	if !t.Refresh.Empty() {
		out[o.RefreshField] = o.Refresh
	}
	out[o.AccessField] = o.Access // last: one field may stand for both
	return out
}

// passed is what the sandbox is told of t where tokens are passed on.
func (x *exchange) passed(t vault.Tokens) map[string]any {
	o, out := x.c.OAuth, map[string]any{"token_type": "Bearer"}
	maps.Copy(out, x.issued)
	if !t.Expires.IsZero() {
		out[o.ExpiresField] = max(int64(time.Until(t.Expires).Seconds()), 1)
	}
	if !t.Refresh.Empty() {
		out[o.RefreshField] = string(t.Refresh.Expose())
	}
	out[o.AccessField] = string(t.Access.Expose())
	return out
}
