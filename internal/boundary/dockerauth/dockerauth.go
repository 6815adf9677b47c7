// Package dockerauth presents the host's logins for image registries in the
// requests of one sandbox. Inside there is a stand-in in the place of the login,
// and of every token that the login is exchanged for; what they stand for is put in
// here, for the registry itself and for the token service that its challenge names.
//
// It is given requests by package proxy, which has made sure that the name that
// was resolved, the TLS server name and the authority are one; certificates are
// verified in package intercept. Where logins are kept is the host's affair.
package dockerauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
)

// A Login is what a host has for a registry: a user's password, or an identity
// token instead.
type Login struct {
	Username string
	Password secret.Value
	Identity secret.Value
}

// A Source finds the login for a registry as it is now. It is asked at every use of
// the login and of what it was exchanged for, and heeds ctx. No error says anything of
// a secret.
type Source func(ctx context.Context, a plan.DockerAuth) (Login, error)

// Bounds of what a sandbox can make a Presenter hold.
const (
	maxTokens   = 512
	maxServices = 8 // token services of one registry
)

// A Presenter presents the registry logins of one sandbox. Make it with [New]. Its
// methods can be called concurrently; it implements [proxy.Presenter] and
// [proxy.Observer].
type Presenter struct {
	source Source
	log    func(audit.Decision)
	grants []*grant

	state   string     // file of what registries have said; empty: it is forgotten
	writing sync.Mutex // held while that is written

	mu       sync.Mutex
	services map[place]*service // guarded by mu; token services that registries have named
	tokens   map[string]*token  // guarded by mu; by stand-in
}

var (
	_ proxy.Presenter = (*Presenter)(nil)
	_ proxy.Observer  = (*Presenter)(nil)
)

// A place is where requests go.
type place struct {
	host string
	port uint16
}

// A grant is the use of one login.
type grant struct {
	plan.DockerAuth
	places []place

	mu   sync.Mutex
	asks string // guarded by mu; the scheme that the registry asks for: basic, bearer, or empty if it is not known
}

// name is how a grant is told.
func (g *grant) name() string { return "docker-auth " + g.Registry }

// A service issues tokens for the logins of some registries, at some paths.
type service struct {
	grants []*grant
	paths  []string
}

// A token stands for one that a token service has issued.
type token struct {
	of      *grant
	value   secret.Value
	login   Login // that was shown for it
	refresh bool  // it is for the token service, and not for the registry
	expires time.Time
	made    time.Time
}

// New returns the presenter of as. It keeps in the file state which token services
// registries have named, so that the next presenter of the sandbox knows them; an
// empty one keeps nothing. log is told when that cannot be kept.
func New(as []plan.DockerAuth, source Source, state string, log func(audit.Decision)) (*Presenter, error) {
	p := &Presenter{source: source, log: log, state: state, services: map[place]*service{}, tokens: map[string]*token{}}
	for _, a := range as {
		places, err := Places(a.Registry)
		if err != nil {
			return nil, err
		}
		g := &grant{DockerAuth: a}
		for _, s := range places {
			host, port, err := net.SplitHostPort(s)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			g.places = append(g.places, place{host, uint16(n)})
		}
		p.grants = append(p.grants, g)
	}
	return p, p.recall()
}

// Places returns where the registry with this name is spoken to, as HOST:PORT. One
// that is named by an address is none that a login is presented to.
func Places(registry string) ([]string, error) {
	if registry == "docker.io" {
		return []string{"registry-1.docker.io:443", "index.docker.io:443", "docker.io:443", "registry.hub.docker.com:443"}, nil
	}
	host, port, err := net.SplitHostPort(registry)
	if err != nil {
		host, port = registry, "443"
	}
	if net.ParseIP(strings.Trim(host, "[]")) != nil || host == "localhost" {
		return nil, fmt.Errorf("registry %s: a login is presented to a name, whose certificate is verified, and to no address", registry)
	}
	return []string{net.JoinHostPort(strings.ToLower(host), port)}, nil
}

// at returns the grant whose registry is at host and port.
func (p *Presenter) at(host string, port uint16) *grant {
	for _, g := range p.grants {
		if slices.Contains(g.places, place{host, port}) {
			return g
		}
	}
	return nil
}

// Interest implements [proxy.Presenter].
func (p *Presenter) Interest(_ plan.Phase, host string, port uint16) proxy.Interest {
	if p.at(host, port) != nil {
		return proxy.All
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.services[place{host, port}] != nil {
		return proxy.All
	}
	return proxy.None
}

// Grants implements [proxy.Presenter]. A login holds in every phase.
func (p *Presenter) Grants(_ plan.Phase, name string) bool {
	return slices.ContainsFunc(p.grants, func(g *grant) bool { return g.name() == name })
}

// Present implements [proxy.Presenter]: what a registry is sent, in the requests of
// its protocol, in the place of a stand-in for a token.
func (p *Presenter) Present(ctx context.Context, _ plan.Phase, host string, port uint16, q intercept.Request, proof *proxy.Proof) {
	g := p.at(host, port)
	if g == nil || len(q.Header["Authorization"]) != 1 || !inProtocol(q.Path) {
		return
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(q.Header.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return // [Presenter.Take] can ask the registry first
	}
	t, ok := p.redeem(strings.TrimSpace(rest), g, false)
	if !ok {
		return
	}
	// A token outlives the login that it was issued for; its use must not.
	switch l, err := g.find(ctx, p.source); {
	case err != nil:
		proof.Fail(fmt.Sprintf("the login of %s is not presented: %v", g.Registry, err))
		return
	case !l.is(t.login):
		proof.Fail("the token was issued for another login of " + g.Registry)
		return
	}
	if !proof.Give(g.name(), string(t.value.Expose())) {
		return
	}
	q.Header["Authorization"] = []string{"Bearer " + string(t.value.Expose())}
	delete(q.Header, "Accept-Encoding") // so that what the answer repeats can be found
}

// inProtocol reports whether path, as it was sent, is one of the registry's protocol
// (the distribution specification's): another one could issue a token, or show what it
// was sent.
func inProtocol(path string) bool {
	path, err := egress.DecodePath(path)
	return err == nil && (path == "/v2" || strings.HasPrefix(path, "/v2/"))
}

// refreshes is how the stand-ins for g's refresh tokens begin. So one whose token
// is forgotten still says which login it came from, and that is worth what the
// stand-in for the login is worth, which the sandbox has anyway.
func (g *grant) refreshes() string {
	sum := sha256.Sum256([]byte("refresh " + g.Placeholder))
	return "kitbox-refresh-" + hex.EncodeToString(sum[:8]) + "-"
}

// stands reports whether the payload of a Basic header holds g's stand-in.
func (g *grant) stands(payload string) bool {
	if len(payload) > 4096 {
		return false
	}
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(payload, "="))
	if err != nil {
		return false
	}
	_, password, ok := strings.Cut(string(b), ":")
	return ok && password == g.Placeholder
}

// find returns the login as it is now.
func (g *grant) find(ctx context.Context, source Source) (Login, error) {
	return source(ctx, g.DockerAuth)
}

// is reports whether l and o are the same login.
func (l Login) is(o Login) bool {
	same := func(a, b secret.Value) bool { return subtle.ConstantTimeCompare(a.Expose(), b.Expose()) == 1 }
	return l.Username == o.Username && same(l.Password, o.Password) && same(l.Identity, o.Identity)
}

func (l Login) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.Username+":"+string(l.Password.Expose())))
}

// keep makes a stand-in for a token.
func (p *Presenter) keep(t *token) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	t.made = now
	oldest := ""
	for name, o := range p.tokens {
		if !o.expires.IsZero() && now.After(o.expires) {
			delete(p.tokens, name)
		} else if oldest == "" || o.made.Before(p.tokens[oldest].made) {
			oldest = name
		}
	}
	if len(p.tokens) >= maxTokens {
		delete(p.tokens, oldest)
	}
	name := "kitbox-token-" + rand.Text()
	if t.refresh {
		name = t.of.refreshes() + rand.Text()
	}
	p.tokens[name] = t
	return name
}

// redeem returns what a stand-in for one of g's tokens stands for.
func (p *Presenter) redeem(name string, g *grant, refresh bool) (*token, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tokens[name]
	if t == nil || t.of != g || t.refresh != refresh || !t.expires.IsZero() && time.Now().After(t.expires) {
		return nil, false
	}
	return t, true
}
