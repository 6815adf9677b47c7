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
	"fmt"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Binding is what is stored for a service, without any of it. Its zero value is
// nothing.
type Binding struct {
	Form    Form
	Expires time.Time // of tokens; zero: not known
	Scopes  []string  // of tokens
	Key     bool      // there is a key beside the tokens
}

// A Form is the form of what is stored.
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
	Stored func(service, identity, sandbox string) (Binding, error)

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
	bound, err := h.stored(s, c.Kit, config.Service)
	if err != nil {
		return err
	}
	if _, _, err := h.credential(s, c.Kit, config, bound); err != nil {
		if bound.Form == None && c.Request.Optional {
			err = fmt.Errorf("%w, and recreating the sandbox then grants it", err)
		}
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
		bound, err := h.stored(s, c.Kit, config.Service)
		if err != nil {
			return err
		}
		out, file, err := h.credential(s, c.Kit, config, bound)
		if err == nil {
			err = add(p, out, file)
		}
		if err != nil {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
		}
	}
	return nil
}

func (h *Handler) stored(s *handler.Scene, kit, service string) (Binding, error) {
	if h.Stored == nil {
		return Binding{}, nil
	}
	bound, err := h.Stored(service, s.Identities[kit], s.Name)
	if err != nil {
		return Binding{}, fmt.Errorf("credential %s: %w", service, err)
	}
	return bound, nil
}

// add puts c, and the file that goes with it, into p; the two phases of one
// declaration, which merging took apart, become one again.
func add(p *plan.Plan, c plan.Credential, file *plan.File) error {
	for i, o := range p.Credentials {
		rest := o
		rest.Phases = c.Phases
		if reflect.DeepEqual(rest, c) {
			p.Credentials[i].Phases = append(o.Phases, c.Phases...)
			for j := range p.Files {
				if file != nil && p.Files[j].Path == file.Path && p.Files[j].Kit == file.Kit {
					p.Files[j].Span = span(p.Credentials[i].Phases)
				}
			}
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
	if file != nil {
		if i := slices.IndexFunc(p.Files, func(f plan.File) bool { return f.Path == file.Path }); i >= 0 {
			return fmt.Errorf("credential %s: its file %s is one of %s as well", c.Service, file.Path, p.Files[i].Kit)
		}
		p.Files = append(p.Files, *file)
	}
	p.Credentials = append(p.Credentials, c)
	return nil
}

// credential is what config comes to, with the file that goes with it, or why it
// comes to nothing.
func (h *Handler) credential(s *handler.Scene, kit string, config credential.Config, bound Binding) (plan.Credential, *plan.File, error) {
	c := plan.Credential{Service: config.Service, Kit: kit, Identity: s.Identities[kit]}
	for _, p := range config.Phase {
		c.Phases = append(c.Phases, plan.Phase(p))
	}
	if bound.Form == None {
		how := c.Service
		if config.APIKey == nil {
			how += " --oauth"
		}
		return c, nil, fmt.Errorf("no secret is stored for the service %s; 'kitbox secret set %s' stores one", c.Service, how)
	}
	// Of the two ways to present one service, what is stored decides.
	if config.OAuth != nil && (bound.Form == Tokens || config.APIKey == nil) {
		file, err := h.oauth(s, &c, config.OAuth, bound)
		return c, file, err
	}
	return c, nil, h.key(s, &c, config.APIKey)
}

// key plans an API key.
func (h *Handler) key(s *handler.Scene, c *plan.Credential, k *credential.APIKey) error {
	if k.Name != "" {
		if !k.ProxyManaged && len(k.Inject) == 0 {
			return fmt.Errorf("the Kit wants the secret itself in the variable %s, and no secret enters a sandbox; it has to state proxyManaged and inject", k.Name)
		}
		c.Variable, c.Sentinel = k.Name, sentinel(s.ID, c.Identity, c.Service, "")
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
	"Upgrade": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Expect": true}

func (h *Handler) domain(pattern string) error {
	if h.Domain == nil {
		return nil
	}
	if err := h.Domain(pattern); err != nil {
		return fmt.Errorf("a secret goes to named hosts only: %w", err)
	}
	return nil
}

func span(phases []plan.Phase) plan.Span {
	switch {
	case len(phases) > 1:
		return plan.BothPhases
	case phases[0] == plan.Install:
		return plan.WhileInstalling
	}
	return ""
}

// sentinel is what stands for a secret in one sandbox. It follows from what it
// is for, so that a start or a recreation does not change it, and nobody can take
// it for the secret.
func sentinel(id, identity, service, what string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + identity + "\x00" + service + "\x00" + what))
	return "kitbox-" + service + "-" + what + hex.EncodeToString(sum[:12])
}
