package plan

import (
	"slices"
	"strings"
)

// A Credential is a service to which the boundary presents proof in the name of
// the sandbox. It holds no secret, only what stands for one inside: the secret is
// looked for when a request needs it.
type Credential struct {
	Service  string  `json:"service"`
	Kit      string  `json:"kit"`                // who asks for it
	Identity string  `json:"identity,omitempty"` // of Kit, which secrets for a Kit are kept under
	Phases   []Phase `json:"phases"`

	// Variable holds Sentinel in Phases. Empty: nothing inside knows of it.
	Variable string `json:"variable,omitempty"`
	Sentinel string `json:"sentinel,omitempty"`

	Inject []Injection `json:"inject,omitempty"`
	OAuth  *OAuth      `json:"oauth,omitempty"`
}

// Granted reports whether c may be used in phase.
func (c Credential) Granted(phase Phase) bool { return slices.Contains(c.Phases, phase) }

// An Injection says how the requests to some hosts carry the secret.
type Injection struct {
	Domain   string `json:"domain"`             // pattern of names, with a port or for all
	Header   string `json:"header"`             // in its canonical spelling
	Format   string `json:"format,omitempty"`   // with %s for the secret
	Basic    bool   `json:"basic,omitempty"`    // instead of Format: the secret is the password of Basic authentication
	Username string `json:"username,omitempty"` // beside it
}

// An OAuth is a credential whose tokens are issued and refreshed.
type OAuth struct {
	TokenHost string `json:"tokenHost,omitempty"` // where; empty: nowhere, the token stays as it was stored
	TokenPath string `json:"tokenPath,omitempty"`

	Hosts []string `json:"hosts,omitempty"` // patterns of names where the access token is presented

	// What stands for the tokens inside.
	Access  string `json:"access"`
	Refresh string `json:"refresh"`
	Key     string `json:"key,omitempty"` // empty: there is no key beside the tokens

	// Passthrough gives the sandbox the tokens themselves when it asks the
	// endpoint. The operator consented to it.
	Passthrough bool `json:"passthrough,omitempty"`

	// Names of fields in the answers of the token endpoint.
	AccessField  string `json:"accessField"`
	RefreshField string `json:"refreshField"`
	ExpiresField string `json:"expiresField"`
}

// Environ returns the container's variables as they are in phase: those of the
// launch, and over them the sentinels of the credentials that are granted then.
func (p *Plan) Environ(phase Phase) []string {
	env := slices.Clone(p.Launch.Env)
	for _, c := range p.Credentials {
		if c.Variable == "" || !c.Granted(phase) {
			continue
		}
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, c.Variable+"=") })
		env = append(env, c.Variable+"="+c.Sentinel)
	}
	slices.Sort(env)
	return env
}
