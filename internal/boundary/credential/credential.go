// Package credential presents secrets of the host in requests of one sandbox. In
// the sandbox there is at most a sentinel, a text that stands for the secret; at
// the boundary the header that a Kit declared gets the secret, for the hosts that
// it declared and in the phases that it was granted.
//
// It is given headers, and nothing but headers, by package proxy, which has made
// sure that the name that was resolved, the TLS server name and the authority of
// the request are one. Where secrets are kept is in internal/secret/vault.
package credential

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Source finds secrets. No error of it says anything of one.
type Source interface {
	// Token returns what proves the right to c's service now. None stored is
	// [kiterr.ErrNotFound].
	Token(ctx context.Context, c plan.Credential) (secret.Value, error)

	// Tokens returns the tokens of c; a secret that is none of an OAuth
	// server is an access token that nobody refreshes.
	Tokens(ctx context.Context, c plan.Credential) (vault.Tokens, error)

	// Refresh replaces the tokens of c by what exchange gets for the refresh
	// token, unless somebody has just done so, and returns those that are
	// kept then, with whether they are new.
	Refresh(ctx context.Context, c plan.Credential, exchange func(refresh secret.Value) (vault.Tokens, error)) (t vault.Tokens, fresh bool, err error)

	// Keep keeps tokens that were issued to the sandbox, for it alone.
	Keep(ctx context.Context, c plan.Credential, t vault.Tokens) error
}

// A Presenter presents the credentials of one sandbox. Make it with [New]. Its
// methods can be called concurrently; it implements [proxy.Presenter].
type Presenter struct {
	source    Source
	all       []plan.Credential
	rules     []rule // in the order they were declared
	endpoints []endpoint
	exchanges chan struct{} // holds a value for each that is going on
}

// A rule is one injection of one credential.
type rule struct {
	of       int // index in Presenter.all
	hosts    egress.Matcher
	sentinel string // empty: nothing inside stands for the secret
	what     what
	plan.Injection
}

// what says which secret of a credential a rule presents.
type what int

const (
	secretItself what = iota
	accessToken
	tokenKey // that came with the tokens
)

// New returns the presenter of cs. The error names every pattern of hosts that
// cannot be understood.
func New(cs []plan.Credential, source Source) (*Presenter, error) {
	p := &Presenter{source: source, all: slices.Clone(cs), exchanges: make(chan struct{}, maxExchanges)}
	var errs []error
	for i, c := range cs {
		for _, in := range c.Inject {
			m, err := egress.ParseMatcher(in.Domain)
			if err != nil {
				errs = append(errs, fmt.Errorf("credential %s: %w", c.Service, err))
				continue
			}
			p.rules = append(p.rules, rule{i, m, c.Sentinel, secretItself, in})
		}
		if c.OAuth != nil {
			if err := p.addOAuth(i, c.OAuth); err != nil {
				errs = append(errs, fmt.Errorf("credential %s: %w", c.Service, err))
			}
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// Interest implements [proxy.Presenter]. On the port of HTTPS, and on one that a
// Kit names, a connection that is not looked into would carry a sentinel to
// somebody who cannot use it; elsewhere other protocols are as likely.
func (p *Presenter) Interest(phase plan.Phase, host string, port uint16) proxy.Interest {
	interest := proxy.None
	for i := range p.rules {
		r := &p.rules[i]
		if !r.hosts.Matches(host, port) || !p.all[r.of].Granted(phase) {
			continue
		}
		if port == 443 || r.hosts.Port() != 0 {
			return proxy.All
		}
		interest = proxy.TLS
	}
	for _, e := range p.endpoints {
		if e.hosts.Matches(host, port) && p.all[e.of].Granted(phase) {
			return proxy.All // what answers with tokens is never passed unseen
		}
	}
	return interest
}

// Grants implements [proxy.Presenter].
func (p *Presenter) Grants(phase plan.Phase, name string) bool {
	return slices.ContainsFunc(p.all, func(c plan.Credential) bool { return c.Service == name && c.Granted(phase) })
}

// Present implements [proxy.Presenter].
func (p *Presenter) Present(ctx context.Context, phase plan.Phase, host string, port uint16, q intercept.Request, proof *proxy.Proof) {
	var absent []string
	given := false
	for _, use := range p.choose(phase, host, port, q.Header) {
		c := p.all[use.of]
		value, err := p.value(ctx, use.rule)
		if err != nil {
			why := err.Error()
			if errors.Is(err, kiterr.ErrNotFound) {
				why = "no secret is stored"
			}
			absent = append(absent, fmt.Sprintf("credential %s is not presented: %s", c.Service, why))
			continue
		}
		text := use.render(value)
		if !proof.Give(c.Service, string(value.Expose()), text) {
			return // the request is not sent
		}
		q.Header[use.Header] = []string{text}
		given = true
	}
	if given {
		delete(q.Header, "Accept-Encoding") // so that what the answer repeats can be found
	}
	for _, why := range slices.Compact(absent) {
		proof.Note(why)
	}
}

// value is the secret that r presents.
func (p *Presenter) value(ctx context.Context, r *rule) (secret.Value, error) {
	c := p.all[r.of]
	if r.what == secretItself {
		return p.source.Token(ctx, c)
	}
	t, err := p.source.Tokens(ctx, c)
	switch {
	case err != nil:
		return secret.Value{}, err
	case r.what == tokenKey && t.Key.Empty():
		return secret.Value{}, fmt.Errorf("the key of %s: %w", c.Service, kiterr.ErrNotFound)
	case r.what == tokenKey:
		return t.Key, nil
	}
	return t.Access, nil
}

// A use is a decision to put the secret of a rule into its header.
type use struct {
	*rule
	login *login // of the client's Basic header, if that is what holds the sentinel
	at    string // sentinel that is replaced in login
}

// choose decides by which rules the request with header h is changed. A sentinel
// in a declared header says which credential is meant. A credential that nothing
// inside knows of is put into its header whatever is there. A request that proves
// nothing in any declared header gets the credential of the host, if there is one
// alone: many tools do not read variables. All else stays as it was sent.
func (p *Presenter) choose(phase plan.Phase, host string, port uint16, h http.Header) []use {
	var here []*rule
	for i := range p.rules {
		if r := &p.rules[i]; r.hosts.Matches(host, port) && p.all[r.of].Granted(phase) {
			here = append(here, r)
		}
	}
	if len(here) == 0 {
		return nil
	}
	var uses []use
	settled := map[string]bool{} // headers
	sent := false                // something in a declared header
	for _, r := range here {
		values := h[r.Header]
		sent = sent || len(values) > 0
		if settled[r.Header] {
			continue
		}
		if u, ok := bySentinel(here, r.Header, values); ok {
			uses = append(uses, u)
			settled[r.Header] = true
		}
	}
	for _, r := range here {
		if r.sentinel == "" && !settled[r.Header] {
			uses = append(uses, use{rule: r})
			settled[r.Header] = true
		}
	}
	if sent || len(uses) > 0 || slices.ContainsFunc(here, func(r *rule) bool { return r.of != here[0].of }) {
		return uses
	}
	for _, r := range here {
		// An agent that has tokens shows them itself.
		if r.what == secretItself && !settled[r.Header] {
			uses = append(uses, use{rule: r})
			settled[r.Header] = true
		}
	}
	return uses
}

// bySentinel finds the rule whose sentinel one of values holds, as it is or in
// Basic authentication. Of a credential's rules for a header, the one that presents
// it as the client does is taken.
func bySentinel(here []*rule, header string, values []string) (use, bool) {
	for _, value := range values {
		l := parseLogin(value)
		var found use
		for _, r := range here {
			s := r.sentinel
			if r.Header != header || s == "" {
				continue
			}
			switch {
			case l != nil && l.holds(s):
				if found.rule == nil || r.Basic && !found.Basic {
					found = use{r, l, s}
				}
			case l == nil && strings.Contains(value, s):
				if found.rule == nil || !r.Basic && found.Basic {
					found = use{rule: r}
				}
			}
		}
		if found.rule != nil {
			return found, true
		}
	}
	return use{}, false
}

// render is the value of the header with the secret in it.
func (u use) render(v secret.Value) string {
	text := string(v.Expose())
	switch {
	case u.Basic:
		user := u.Username
		if user == "" && u.login != nil && !strings.Contains(u.login.user, u.at) {
			user = u.login.user
		}
		return basic(user, text)
	case u.login != nil:
		// The client chose to log in with what it was told is a token. Once is
		// enough: many sentinels must not become megabytes of secrets.
		if strings.Contains(u.login.password, u.at) {
			return basic(u.login.user, strings.Replace(u.login.password, u.at, text, 1))
		}
		return basic(strings.Replace(u.login.user, u.at, text, 1), u.login.password)
	}
	return strings.ReplaceAll(u.Format, "%s", text)
}

// A login is what a Basic header says (RFC 7617).
type login struct{ user, password string }

func (l *login) holds(s string) bool {
	return strings.Contains(l.user, s) || strings.Contains(l.password, s)
}

// maxLogin bounds a Basic header that is decoded, in bytes.
const maxLogin = 16 << 10

// parseLogin reads the value of an Authorization header; nil if it is not Basic.
func parseLogin(value string) *login {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(value), " ")
	if !ok || !strings.EqualFold(scheme, "basic") || len(rest) > maxLogin {
		return nil
	}
	rest = strings.TrimRight(strings.TrimSpace(rest), "=")
	b, err := base64.RawStdEncoding.DecodeString(rest)
	if err != nil {
		return nil
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return nil
	}
	return &login{user, password}
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
