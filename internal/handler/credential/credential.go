// Package credential is this host's answer to credential@1: for each service that
// the operator has stored a secret for, what stands for it inside the sandbox and
// how the boundary presents it outside.
//
// The secret itself is not read here and is in no plan: internal/boundary/
// credential looks for it when a request needs it. The grammar is in
// capability/credential.
package credential

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/textproto"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Form is what is stored for a service.
type Form int

const (
	None   Form = iota // nothing
	Secret             // a secret, or a command that prints one
	Tokens             // tokens of an OAuth server
)

// A Handler plans credentials.
type Handler struct {
	// Stored says what the operator has stored for a service that a Kit with
	// this identity asks for in a sandbox of this name. Nil: nothing.
	Stored func(service, identity, sandbox string) (Form, error)

	// Domain judges a pattern of hosts that a secret would be sent to; nil
	// accepts all.
	Domain func(pattern string) error
}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{credential.Type} }

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, s *handler.Scene, c capability.Contribution) error {
	config, err := credential.Decode(c.Request)
	if err != nil {
		return err
	}
	form, err := h.stored(s, c.Kit, config.Service)
	if err != nil {
		return err
	}
	if _, err := h.credential(s, c.Kit, config, form); err != nil {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
	}
	return nil
}

// Plan implements [handler.Handler].
func (h *Handler) Plan(_ context.Context, s *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := credential.Decode(c.Request)
		if err != nil {
			return err
		}
		form, err := h.stored(s, c.Kit, config.Service)
		if err != nil {
			return err
		}
		out, err := h.credential(s, c.Kit, config, form)
		if err == nil {
			err = add(p, out)
		}
		if err != nil {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
		}
	}
	return nil
}

func (h *Handler) stored(s *handler.Scene, kit, service string) (Form, error) {
	if h.Stored == nil {
		return None, nil
	}
	form, err := h.Stored(service, s.Identities[kit], s.Name)
	if err != nil {
		return None, fmt.Errorf("credential %s: %w", service, err)
	}
	return form, nil
}

// add puts c into p; the two phases of one declaration, which merging took
// apart, become one again.
func add(p *plan.Plan, c plan.Credential) error {
	for i, o := range p.Credentials {
		rest := o
		rest.Phases = c.Phases
		if reflect.DeepEqual(rest, c) {
			p.Credentials[i].Phases = append(o.Phases, c.Phases...)
			return nil
		}
		meet := slices.ContainsFunc(c.Phases, o.Granted)
		if meet && c.Variable != "" && c.Variable == o.Variable {
			return fmt.Errorf("the credentials %s of %s and %s of %s are both to be in the variable %s", o.Service, o.Kit, c.Service, c.Kit, c.Variable)
		}
	}
	if slices.Contains(p.Launch.Owned, c.Variable) {
		return fmt.Errorf("credential %s: the variable %s is the host's", c.Service, c.Variable)
	}
	p.Credentials = append(p.Credentials, c)
	return nil
}

// credential is what config comes to, or why it comes to nothing.
func (h *Handler) credential(s *handler.Scene, kit string, config credential.Config, form Form) (plan.Credential, error) {
	c := plan.Credential{Service: config.Service, Kit: kit, Identity: s.Identities[kit]}
	for _, p := range config.Phase {
		c.Phases = append(c.Phases, plan.Phase(p))
	}
	if form == None {
		return c, fmt.Errorf("no secret is stored for the service %s; 'kitbox secret set %s' stores one", c.Service, c.Service)
	}
	if config.APIKey == nil {
		return c, errors.New("OAuth is not implemented")
	}
	return c, h.key(s, &c, config.APIKey)
}

// key plans an API key.
func (h *Handler) key(s *handler.Scene, c *plan.Credential, k *credential.APIKey) error {
	if k.Name != "" {
		if !k.ProxyManaged && len(k.Inject) == 0 {
			return fmt.Errorf("the Kit wants the secret itself in the variable %s, and no secret enters a sandbox; it has to state proxyManaged and inject", k.Name)
		}
		c.Variable, c.Sentinel = k.Name, sentinel(s.ID, c.Identity, c.Service)
	}
	for _, r := range k.Inject {
		if err := h.domain(r.Domain); err != nil {
			return err
		}
		i := plan.Injection{Domain: r.Domain, Header: "Authorization", Username: r.Username}
		if r.Header != "" {
			i.Header = textproto.CanonicalMIMEHeaderKey(r.Header)
		}
		switch r.Scheme {
		case "":
			// A header without a format is the secret alone; nothing at
			// all is what nearly every service takes.
			i.Format = r.Format
			if i.Format == "" && r.Header != "" {
				i.Format = "%s"
			} else if i.Format == "" {
				i.Format = "Bearer %s"
			}
			i.Username = ""
		case "bearer":
			i.Format, i.Username = "Bearer %s", ""
		case "basic":
			i.Basic = true
			if strings.Contains(i.Username, ":") {
				return fmt.Errorf("the user name %q of basic authentication holds a colon", i.Username)
			}
		default:
			return fmt.Errorf("secrets are presented in a header, or by the schemes basic and bearer, not by %q", r.Scheme)
		}
		switch {
		case !httpguts.ValidHeaderFieldName(i.Header) || fixed[i.Header]:
			return fmt.Errorf("%q is not a header that a secret can be put into", r.Header)
		case !httpguts.ValidHeaderFieldValue(i.Format + i.Username), len(i.Format)+len(i.Username) > 1024, strings.Count(i.Format, "%s") > 2:
			return fmt.Errorf("the format for %s cannot stand in a header", r.Domain)
		}
		c.Inject = append(c.Inject, i)
	}
	return nil
}

// fixed are headers that say how a request is carried.
var fixed = map[string]bool{"Host": true, "Connection": true, "Content-Length": true, "Transfer-Encoding": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authorization": true, "Expect": true}

func (h *Handler) domain(pattern string) error {
	if h.Domain == nil {
		return nil
	}
	if err := h.Domain(pattern); err != nil {
		return fmt.Errorf("a secret goes to named hosts only: %w", err)
	}
	return nil
}

// sentinel is what stands for a secret in one sandbox. It follows from what it
// is for, so that a start or a recreation does not change it, and nobody can take
// it for the secret.
func sentinel(id, identity, service string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + identity + "\x00" + service))
	return "kitbox-" + service + "-" + hex.EncodeToString(sum[:12])
}
