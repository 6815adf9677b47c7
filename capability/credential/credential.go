// Package credential is the grammar of the credential capability: a service
// that the workload authenticates to, and how proof is presented. Where the
// secret is, only the host knows; presenting it is in
// internal/boundary/credential.
package credential

import (
	_ "embed"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

// Type is the wire name.
const Type = capability.Namespace + "/credential@1"

// A Config is one service. Its zero value is invalid: Service, Phase and one of
// APIKey and OAuth are required.
type Config struct {
	Service string    `json:"service"` // name in the host's credential store, lower case with hyphens
	Phase   phase.Set `json:"phase,omitzero"`
	APIKey  *APIKey   `json:"apiKey,omitzero"`
	OAuth   *OAuth    `json:"oauth,omitzero"`
}

// An APIKey presents one secret. It needs a Name or Inject rules.
type APIKey struct {
	// Name is the environment variable in the sandbox. Empty means that the
	// key has no presence inside, not even a sentinel.
	Name         string   `json:"name,omitzero"`
	ProxyManaged bool     `json:"proxyManaged,omitzero"` // the variable holds a sentinel, and the boundary the secret
	Inject       []Inject `json:"inject,omitzero"`       // how the boundary rewrites requests
}

// An Inject puts the secret into requests to one domain.
type Inject struct {
	Domain   string `json:"domain"`            // allowed by the network policy in every phase of the credential
	Header   string `json:"header,omitzero"`   // header to set
	Format   string `json:"format,omitzero"`   // its value, with %s for the secret
	Scheme   string `json:"scheme,omitzero"`   // another way to present it, such as basic
	Username string `json:"username,omitzero"` // beside the secret as a password, for basic
}

// An OAuth presents tokens that the host obtains and refreshes.
type OAuth struct {
	TokenEndpoint  *TokenEndpoint  `json:"tokenEndpoint,omitzero"`  // intercepted by the boundary
	ResourceHosts  []string        `json:"resourceHosts,omitzero"`  // where the bearer token is used
	Sentinels      *Sentinels      `json:"sentinels,omitzero"`      // what stands for the tokens inside
	CredentialFile *CredentialFile `json:"credentialFile,omitzero"` // file that the agent reads
	ResponseFields *ResponseFields `json:"responseFields,omitzero"` // nonstandard names in token responses
	Passthrough    bool            `json:"passthrough,omitzero"`    // hand the real token to the sandbox: a downgrade
}

// A TokenEndpoint is where tokens are issued.
type TokenEndpoint struct {
	Host string `json:"host"`          // required
	Path string `json:"path,omitzero"` // begins with /
}

// Sentinels are placeholders for tokens. Empty ones are chosen by the runtime.
type Sentinels struct {
	AccessToken  string `json:"accessToken,omitzero"`
	RefreshToken string `json:"refreshToken,omitzero"`
}

// A CredentialFile is rendered from sentinels.
type CredentialFile struct {
	Path      string    `json:"path"`               // absolute, or below ~/ of the agent
	Format    *string   `json:"format,omitzero"`    // json or toml; nil: json
	Structure Structure `json:"structure,omitzero"` // map with placeholders in its leaves
}

// The encodings of a credential file.
const (
	JSON = "json"
	TOML = "toml"
)

// Encoding returns the stated format, or JSON.
func (f CredentialFile) Encoding() string {
	if f.Format == nil {
		return JSON
	}
	return *f.Format
}

// ResponseFields name fields of a token response. Empty means the standard
// name.
type ResponseFields struct {
	AccessToken  string `json:"accessToken,omitzero"`
	RefreshToken string `json:"refreshToken,omitzero"`
	ExpiresIn    string `json:"expiresIn,omitzero"`
}

// A Structure is a JSON object in canonical form: fields sorted, no
// insignificant space, numbers as they were spelled. Nil is no structure.
type Structure jsontext.Value

// UnmarshalJSONFrom reads any value; [Decode] accepts only an object.
func (s *Structure) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	v, err := dec.ReadValue()
	if err != nil {
		return err
	}
	v = v.Clone()
	if err := v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return err
	}
	*s = Structure(v)
	return nil
}

// MarshalJSONTo writes the value.
func (s Structure) MarshalJSONTo(enc *jsontext.Encoder) error {
	return enc.WriteValue(jsontext.Value(s))
}

// An Injection is a domain that a credential is presented to.
type Injection struct {
	Domain string
	At     string // path of the domain relative to the entry
}

// Injections returns the domains of the inject rules of c, which the network
// policy has to allow in each of c's phases.
func (c Config) Injections() []Injection {
	if c.APIKey == nil {
		return nil
	}
	var out []Injection
	for i, r := range c.APIKey.Inject {
		out = append(out, Injection{Domain: r.Domain, At: "config.apiKey.inject[" + strconv.Itoa(i) + "].domain"})
	}
	return out
}

// structure is the field in which null is a value.
const structure = "oauth.credentialFile.structure"

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge, structure)
}

// Peek decodes r without judging values and with references in it, for rules
// that concern other entries as well. It is false if r does not have the shape.
func Peek(r capability.Request) (Config, bool) {
	var in capability.Inspection
	var c Config
	_, ok := in.Read(r, capability.Published, &c, structure)
	return c, ok
}

// Encode returns the request for c, or the error [Decode] would give for it.
func (c Config) Encode() (capability.Request, error) {
	return capability.EncodeValid(Type, c, (*Config).judge)
}

//go:embed schema.json
var schema []byte

var definition = capability.Definition{
	Types:   []string{Type},
	Arity:   capability.Instance,
	Inspect: capability.Inspecting((*Config).judge, structure),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }
