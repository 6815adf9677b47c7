package dockerauth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/echo"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
)

const (
	maxForm   = 64 << 10 // bytes of a request for a token
	maxAnswer = 1 << 20  // bytes of its answer

	maxComplaint  = 300 // bytes of a text in an answer without a token
	maxComplaints = 8   // of them

	// lasting is for how long a token is good whose service does not say
	// (the distribution registry's token specification).
	lasting = 60 * time.Second

	// grace is how much longer a stand-in is known than its token is said to
	// be good: the registry decides, and clocks differ.
	grace = time.Minute
)

// Take implements [proxy.Presenter]. It answers a request for a token that shows a
// stand-in: the token service is shown what that stands for, and the client
// gets stand-ins for the tokens. A registry that asks for a password gets it in
// the requests of its protocol, and nowhere else: another path could issue a token.
// All others pass as they are.
func (p *Presenter) Take(phase plan.Phase, host string, port uint16, w http.ResponseWriter, r *http.Request, send intercept.Send, proof *proxy.Proof) bool {
	at := place{host, port}
	p.mu.Lock()
	s := p.services[at]
	var grants []*grant
	if s != nil && slices.Contains(s.paths, r.URL.Path) {
		grants = slices.Clone(s.grants)
	}
	p.mu.Unlock()
	if len(grants) == 0 {
		p.basic(phase, at, r, send, proof)
		return false
	}
	e, err := p.read(r, grants)
	if e == nil && err == nil {
		return false
	}
	if err == nil {
		err = p.exchange(w, r, e, send, proof)
	}
	if err != nil {
		proof.Fail(err.Error())
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Kitbox-Boundary", "unreachable")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprintf(w, "kitbox: no token for %s: %s\n", at, err)
		return true
	}
	proof.Note("the login of " + e.of.Registry + " was shown to its token service")
	return true
}

// basic puts the login into a request that shows its stand-in to a registry
// which asks for it.
func (p *Presenter) basic(phase plan.Phase, at place, r *http.Request, send intercept.Send, proof *proxy.Proof) {
	g := p.at(at.host, at.port)
	scheme, payload, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if g == nil || len(r.Header["Authorization"]) != 1 || !strings.EqualFold(scheme, "basic") || !g.stands(strings.TrimSpace(payload)) || !inProtocol(r.URL.EscapedPath()) {
		return
	}
	switch g.scheme() {
	case "":
		if err := p.discover(phase, at, r, send); err != nil {
			proof.Note("what " + g.Registry + " asks for cannot be found out: " + err.Error())
			return
		}
		if g.scheme() == "basic" {
			break
		}
		return
	case "bearer":
		return // its challenge says where the login is shown
	}
	l, err := g.find(r.Context(), p.source)
	if err == nil && l.Password.Empty() {
		err = errors.New("it is a token for a token service alone")
	}
	if err != nil {
		proof.Note(fmt.Sprintf("the login of %s is not presented: %v", g.Registry, err))
		return
	}
	if !proof.Give(g.name(), string(l.Password.Expose()), l.basic()) {
		return
	}
	r.Header["Authorization"] = []string{l.basic()}
	proof.Note("the login of " + g.Registry + " was shown to it")
}

func (g *grant) scheme() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asks
}

// discover asks a registry without a login, to see what it asks for.
func (p *Presenter) discover(phase plan.Phase, at place, r *http.Request, send intercept.Send) error {
	q, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "https://registry.invalid/v2/", http.NoBody)
	if err != nil {
		return err
	}
	q.Header.Set("User-Agent", r.UserAgent())
	resp, err := send(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // so that the connection can be used again
	p.Answered(phase, at.host, at.port, resp)
	return nil
}

// An exchange is one request for a token.
type exchange struct {
	of      *grant
	form    url.Values   // of a POST; nil for a GET
	refresh secret.Value // what the form's refresh token stands for
	from    Login        // that the refresh token was issued for
}

// again asks with the login in the place of a refresh token. The client does not
// notice.
func (e *exchange) again() {
	e.refresh = secret.Value{}
	e.form.Del("refresh_token")
	e.form.Set("grant_type", "password")
	e.form.Set("password", e.of.Placeholder)
}

// read finds the stand-in that r shows; without one, r is as it was and the
// exchange nil.
func (p *Presenter) read(r *http.Request, grants []*grant) (*exchange, error) {
	shown := func(password string) *grant {
		for _, g := range grants {
			if password != "" && password == g.Placeholder {
				return g
			}
		}
		return nil
	}
	var of *grant
	if scheme, payload, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "basic") {
		for _, g := range grants {
			if g.stands(strings.TrimSpace(payload)) {
				of = g
			}
		}
	}
	switch r.Method {
	case http.MethodGet:
		if of == nil {
			return nil, nil
		}
		return &exchange{of: of}, nil
	case http.MethodPost:
		if typ, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); typ != "application/x-www-form-urlencoded" {
			return nil, nil
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxForm+1))
		if err != nil || len(body) > maxForm {
			return nil, errors.New("the request for a token is too long or broke off")
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, nil //nolint:nilerr // nothing of ours is in it; the service judges it
		}
		e := &exchange{of: of, form: form}
		if g := shown(form.Get("password")); g != nil {
			e.of = g
		}
		for _, g := range grants {
			token := form.Get("refresh_token")
			if t, ok := p.redeem(token, g, true); ok {
				e.of, e.refresh, e.from = g, t.value, t.login
			} else if strings.HasPrefix(token, g.refreshes()) {
				e.of = g // a keeper ago
				e.again()
			}
		}
		if e.of == nil {
			return nil, nil
		}
		return e, nil
	}
	return nil, nil
}

// exchange asks the token service and answers the client.
func (p *Presenter) exchange(w http.ResponseWriter, r *http.Request, e *exchange, send intercept.Send, proof *proxy.Proof) error {
	login, err := e.of.find(r.Context(), p.source)
	if err != nil {
		return fmt.Errorf("the login of %s is not presented: %w", e.of.Registry, err)
	}
	if !e.refresh.Empty() && !login.is(e.from) {
		e.again()
	}
	out, err := e.request(r, login)
	if err != nil {
		return err
	}
	if !proof.Give(e.of.name(), string(login.Password.Expose()), string(login.Identity.Expose()), string(e.refresh.Expose()), login.basic()) {
		return errors.New(e.of.name() + " is not granted in this phase")
	}
	resp, err := send(out)
	if err != nil {
		var refused *intercept.RefusedError
		if errors.As(err, &refused) {
			return errors.New(refused.Why)
		}
		return fmt.Errorf("the token service cannot be reached: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil || len(body) > maxAnswer {
		return errors.New("the answer of the token service is too long or broke off")
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		if body, err = p.replace(e.of, login, body); err != nil {
			return err
		}
	} else {
		body = complaint(body, proof.Secrets())
	}
	// Nothing else of the answer's header: what it could hold, a token for
	// example, is not known.
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if a := resp.Header.Get("Retry-After"); a != "" && len(a) < 64 {
		h.Set("Retry-After", a)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body) // a client that is gone asks again
	return nil
}

// request is what the token service is asked.
func (e *exchange) request(r *http.Request, l Login) (*http.Request, error) {
	form := e.form
	if form == nil && !l.Identity.Empty() {
		// An identity token is no password: it is exchanged by OAuth.
		q := r.URL.Query()
		form = url.Values{"grant_type": {"refresh_token"}, "service": q["service"], "client_id": {"kitbox"}, "refresh_token": {string(l.Identity.Expose())}}
		if len(q["scope"]) > 0 {
			form.Set("scope", strings.Join(q["scope"], " "))
		}
	}
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		form = cloneForm(form)
		switch {
		case e.form == nil: // made above
		case !e.refresh.Empty():
			form.Set("refresh_token", string(e.refresh.Expose()))
		case !l.Identity.Empty():
			form.Del("username")
			form.Del("password")
			form.Set("grant_type", "refresh_token")
			form.Set("refresh_token", string(l.Identity.Expose()))
		case form.Get("password") != "":
			form.Set("username", l.Username)
			form.Set("password", string(l.Password.Expose()))
		}
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	out, err := http.NewRequestWithContext(r.Context(), method, "https://token.invalid/", body)
	if err != nil {
		return nil, err
	}
	out.URL.Path, out.URL.RawPath = r.URL.Path, r.URL.RawPath
	out.URL.RawQuery = account(r.URL.RawQuery, l)
	if form != nil {
		out.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if e.form == nil {
			out.URL.RawQuery = ""
		}
	}
	if r.Header.Get("Authorization") != "" && l.Identity.Empty() {
		out.Header.Set("Authorization", l.basic())
	}
	out.Header.Set("Accept", "application/json")
	out.Header.Set("User-Agent", r.UserAgent())
	return out, nil
}

// account puts the real name in the place of the one that a client was told,
// which some services compare with the login.
func account(query string, l Login) string {
	q, err := url.ParseQuery(query)
	if err != nil || q.Get("account") != plan.DockerUser || l.Username == "" {
		return query
	}
	q.Set("account", l.Username)
	return q.Encode()
}

func cloneForm(f url.Values) url.Values {
	out := url.Values{}
	for k, v := range f {
		out[k] = slices.Clone(v)
	}
	return out
}

// replace puts stand-ins in the place of the tokens of an answer. What it does
// not know of is left out: it could be a token too.
func (p *Presenter) replace(g *grant, login Login, body []byte) ([]byte, error) {
	var in struct {
		Token     string      `json:"token"`
		Access    string      `json:"access_token"`
		Refresh   string      `json:"refresh_token"`
		ExpiresIn json.Number `json:"expires_in"`
		IssuedAt  string      `json:"issued_at"`
		Type      string      `json:"token_type"`
		Scope     string      `json:"scope"`
	}
	if err := json.Unmarshal(body, &in); err != nil || in.Token == "" && in.Access == "" {
		return nil, errors.New("the token service answered without a token")
	}
	good := lasting
	if n, err := in.ExpiresIn.Int64(); err == nil && n > 0 && n < 365*24*3600 {
		good = max(time.Duration(n)*time.Second, lasting)
	}
	made := map[string]string{}
	standIn := func(value string, refresh bool) string {
		if value == "" {
			return ""
		}
		if made[value] == "" || refresh {
			t := &token{of: g, value: secret.New([]byte(value)), login: login, refresh: refresh}
			if !refresh {
				t.expires = time.Now().Add(good + grace)
			}
			made[value] = p.keep(t)
		}
		return made[value]
	}
	out := map[string]any{}
	put := func(name, value string) {
		if value != "" {
			out[name] = value
		}
	}
	put("token", standIn(in.Token, false))
	put("access_token", standIn(in.Access, false))
	put("refresh_token", standIn(in.Refresh, true))
	if in.ExpiresIn != "" {
		out["expires_in"] = in.ExpiresIn
	}
	if _, err := time.Parse(time.RFC3339, in.IssuedAt); err == nil {
		put("issued_at", in.IssuedAt)
	}
	return json.Marshal(out)
}

// complaint is what an answer without a token says, in the fields of OAuth (RFC 6749
// §5.2), of the distribution specification and of Docker Hub, without secrets. What it
// does not know of is left out: a token can come with any status.
func complaint(body []byte, secrets echo.Secrets) []byte {
	var in struct {
		Error       string `json:"error,omitempty"`
		Description string `json:"error_description,omitempty"`
		Details     string `json:"details,omitempty"`
		Message     string `json:"message,omitempty"`
		Errors      []struct {
			Code    string `json:"code,omitempty"`
			Message string `json:"message,omitempty"`
		} `json:"errors,omitempty"`
	}
	if json.Unmarshal(body, &in) != nil {
		return []byte("{}")
	}
	tell := func(s *string) {
		if len(*s) > maxComplaint {
			*s = ""
		}
		*s = secrets.Mask(*s)
	}
	in.Errors = in.Errors[:min(len(in.Errors), maxComplaints)]
	for _, s := range []*string{&in.Error, &in.Description, &in.Details, &in.Message} {
		tell(s)
	}
	for i := range in.Errors {
		tell(&in.Errors[i].Code)
		tell(&in.Errors[i].Message)
	}
	out, err := json.Marshal(in)
	if err != nil {
		return []byte("{}")
	}
	return out
}
