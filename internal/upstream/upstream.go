// Package upstream reaches the outside through the proxies that an operator's
// network requires: HTTP with CONNECT, with TLS to the proxy or without, and
// SOCKS5. The name is given to the proxy, which resolves it.
//
// It decides nothing about what may be reached: who asks has decided before.
// Proxies may need a login, which is in [Settings] and nowhere else; errors and
// plans name proxies without it.
package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Settings say which proxy is for what, as the environment of a command does. Its
// zero value is no proxy for anything. It may hold logins.
type Settings struct {
	HTTP, HTTPS, All string // URLs of proxies; All is for what the others leave out
	NoProxy          string // names, addresses and ranges that are reached without
}

// Variables are where [FromEnv] looks, besides their spellings in lower case.
var Variables = []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}

// FromEnv reads the variables that most programs know. The error names those that
// cannot be understood, not what they hold.
func FromEnv(getenv func(string) string) (Settings, error) {
	get := func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return getenv(strings.ToLower(name))
	}
	s := Settings{HTTP: get("HTTP_PROXY"), HTTPS: get("HTTPS_PROXY"), All: get("ALL_PROXY"), NoProxy: get("NO_PROXY")}
	var errs []error
	for i, u := range []*string{&s.HTTP, &s.HTTPS, &s.All} {
		if *u == "" {
			continue
		}
		p, err := parse(*u)
		if err != nil {
			errs = append(errs, fmt.Errorf("variable %s: %w", Variables[i], err))
			continue
		}
		*u = p.String()
	}
	if len(errs) > 0 {
		return Settings{}, fmt.Errorf("%w: %w", kiterr.ErrRefused, errors.Join(errs...))
	}
	return s, nil
}

// parse reads the URL of a proxy; one without a scheme is one for HTTP. The error
// does not hold the text, which may have a login in it.
func parse(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("not the URL of a proxy, such as http://proxy.example:3128")
	}
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	port, ok := ports[u.Scheme]
	if !ok {
		return nil, errors.New("a proxy is spoken to by http, https, socks5 or socks5h")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, errors.New("the port of the proxy is not between 1 and 65535")
	}
	return &url.URL{Scheme: u.Scheme, User: u.User, Host: net.JoinHostPort(u.Hostname(), port)}, nil
}

// public is u without its login.
func public(u string) string {
	p, err := parse(u)
	if u == "" || err != nil {
		return ""
	}
	p.User = nil
	return p.String()
}

// Public is s without logins, as a plan records it; nil if there is no proxy.
func (s Settings) Public() *plan.Upstream {
	if s.HTTP == "" && s.HTTPS == "" && s.All == "" {
		return nil
	}
	p := &plan.Upstream{HTTP: public(s.HTTP), HTTPS: public(s.HTTPS), All: public(s.All), NoProxy: s.NoProxy}
	for _, u := range []string{s.HTTP, s.HTTPS, s.All} {
		p.Login = p.Login || u != public(u)
	}
	return p
}

// Recorded is what p says, with the logins that env has for the same proxies.
func Recorded(p *plan.Upstream, env Settings) Settings {
	if p == nil {
		return Settings{}
	}
	with := func(u string) string {
		for _, e := range []string{env.HTTP, env.HTTPS, env.All} {
			if u != "" && public(e) == u && e != u {
				return e
			}
		}
		return u
	}
	return Settings{HTTP: with(p.HTTP), HTTPS: with(p.HTTPS), All: with(p.All), NoProxy: p.NoProxy}
}

// A Chooser says which proxy is for a destination. Make it with
// [Settings.Chooser]; a nil one is for none.
type Chooser struct {
	choose func(*url.URL) (*url.URL, error)
}

// Chooser returns the chooser of s.
func (s Settings) Chooser() *Chooser {
	if s.Public() == nil {
		return nil
	}
	c := httpproxy.Config{HTTPProxy: s.HTTP, HTTPSProxy: s.HTTPS, NoProxy: s.NoProxy}
	if c.HTTPProxy == "" {
		c.HTTPProxy = s.All
	}
	if c.HTTPSProxy == "" {
		c.HTTPSProxy = s.All
	}
	return &Chooser{c.ProxyFunc()}
}

// For returns the proxy for host and port; nil if there is none. The port of HTTP
// has the proxy for HTTP, and all others that for HTTPS. Loopback has none.
func (c *Chooser) For(host string, port uint16) *url.URL {
	if c == nil {
		return nil
	}
	u := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	if port == 80 {
		u.Scheme = "http"
	}
	p, err := c.choose(u)
	if err != nil {
		return nil // they were parsed before
	}
	return p
}

// Plain returns the proxy for what speaks HTTP without TLS to host and port, if it
// is one that takes such requests as they are; nil if there is none, or one of
// SOCKS, which only makes connections.
func (c *Chooser) Plain(host string, port uint16) *url.URL {
	if c == nil {
		return nil
	}
	p, err := c.choose(&url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
	if err != nil || p == nil || p.Scheme != "http" && p.Scheme != "https" {
		return nil
	}
	return p
}

// Request is for [http.Transport.Proxy].
func (c *Chooser) Request(r *http.Request) (*url.URL, error) {
	if c == nil {
		return nil, nil
	}
	return c.choose(r.URL)
}

// Name is what a proxy is called in messages: without its login.
func Name(proxy *url.URL) string { return (&url.URL{Scheme: proxy.Scheme, Host: proxy.Host}).String() }
