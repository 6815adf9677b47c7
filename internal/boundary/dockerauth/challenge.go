package dockerauth

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Answered implements [proxy.Observer]: it learns from a registry's challenge
// which token service the login may be shown to. Only what came over TLS whose
// certificate was verified counts.
func (p *Presenter) Answered(_ plan.Phase, host string, port uint16, r *http.Response) {
	if r.StatusCode != http.StatusUnauthorized || r.TLS == nil {
		return
	}
	g := p.at(host, port)
	if g == nil {
		return
	}
	basic, known := false, true
	for _, value := range r.Header["Www-Authenticate"] {
		scheme, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		basic = basic || strings.EqualFold(scheme, "basic")
		realm, ok := parseBearer(value)
		if !ok {
			continue
		}
		at, path, ok := locate(realm)
		if !ok || p.at(at.host, at.port) != nil && p.at(at.host, at.port) != g {
			continue // another registry's host is no token service for this one
		}
		known = p.learn(g, at, path) && known
		known = g.asked("bearer") && known
	}
	if basic {
		known = g.asked("basic") && known
	}
	if !known {
		p.remember()
	}
}

// asked records what g's registry asks for. Who has ever issued tokens is shown
// the login at its token service alone. It reports whether that is nothing new.
func (g *grant) asked(scheme string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asks == "bearer" || g.asks == scheme {
		return true
	}
	g.asks = scheme
	return false
}

// learn reports whether it knew.
func (p *Presenter) learn(g *grant, at place, path string) (known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.services[at]
	if s == nil {
		n := 0
		for _, o := range p.services {
			if slices.Contains(o.grants, g) {
				n++
			}
		}
		if n >= maxServices {
			return true
		}
		s = new(service)
		p.services[at] = s
	}
	known = true
	if !slices.Contains(s.grants, g) {
		s.grants = append(s.grants, g)
		known = false
	}
	if !slices.Contains(s.paths, path) && len(s.paths) < maxServices {
		s.paths = append(s.paths, path)
		known = false
	}
	return known
}

// locate reads a realm: an https URL of a named host.
func locate(realm string) (place, string, bool) {
	u, err := url.Parse(realm)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Opaque != "" || u.Host == "" {
		return place{}, "", false
	}
	h, err := egress.ParseHost(u.Hostname())
	if err != nil || h.Addr.IsValid() {
		return place{}, "", false
	}
	port := uint64(443)
	if text := u.Port(); text != "" {
		if port, err = strconv.ParseUint(text, 10, 16); err != nil || port == 0 {
			return place{}, "", false
		}
	}
	path := u.Path
	if path == "" {
		path = "/"
	}
	return place{h.Name, uint16(port)}, path, true
}

// parseBearer returns the realm of a Bearer challenge (RFC 6750 §3). A header with
// several challenges is read as far as the first of them.
func parseBearer(value string) (realm string, ok bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
	if !strings.EqualFold(scheme, "bearer") || len(rest) > 4096 {
		return "", false
	}
	for rest = strings.TrimLeft(rest, " ,"); rest != ""; rest = strings.TrimLeft(rest, " ,") {
		name, after, found := strings.Cut(rest, "=")
		if !found || strings.ContainsAny(name, ` ",`) {
			return realm, realm != ""
		}
		var text strings.Builder
		if quoted, is := strings.CutPrefix(after, `"`); is {
			end := -1
			for i := 0; i < len(quoted); i++ {
				if quoted[i] == '"' {
					end = i
					break
				}
				if quoted[i] == '\\' && i+1 < len(quoted) {
					i++
				}
				text.WriteByte(quoted[i])
			}
			if end < 0 {
				return "", false
			}
			rest = quoted[end+1:]
		} else {
			bare, more, _ := strings.Cut(after, ",")
			text.WriteString(strings.TrimSpace(bare))
			rest = more
		}
		if strings.EqualFold(name, "realm") && realm == "" {
			realm = text.String()
		}
	}
	return realm, realm != ""
}

// String is the place as a log has it.
func (p place) String() string { return net.JoinHostPort(p.host, strconv.Itoa(int(p.port))) }
