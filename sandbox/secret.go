package sandbox

import (
	"context"
	"io"
	"time"
)

// A SecretKeeper keeps what the operator's sandboxes present to services. A
// [Runtime] may have the ability; use [SecretsOf]. No method returns a secret.
type SecretKeeper interface {
	// Secrets lists what is kept, sorted by service and then from the most
	// specific to the least.
	Secrets(ctx context.Context) ([]Secret, error)

	// SetSecret keeps a secret in the place of the one there may be. Running
	// sandboxes present it from their next request on.
	SetSecret(ctx context.Context, r SecretRef, in SecretInput) error

	// ImportSecrets keeps several, all of them or none.
	// names maps variables of a file of NAME=value lines to services.
	ImportSecrets(ctx context.Context, r SecretRef, file io.Reader, names map[string]string) error

	// RemoveSecret deletes one; what is not there is [kiterr.ErrNotFound].
	// No request that begins after it returns is given the secret.
	RemoveSecret(ctx context.Context, r SecretRef) error
}

// A SecretRef names a secret: a service, for one sandbox, for one Kit, or for all
// when both are empty; or the operator's login for an image registry.
type SecretRef struct {
	Service string
	Sandbox string // name; it need not exist
	Kit     string // reference; all of the Kit's versions are meant

	// Registry is the host of an image registry whose login, USER:PASSWORD, it
	// is. Service is ignored then, and no sandbox is given it.
	Registry string
}

// A SecretInput is where a secret comes from. Exactly one of Value and Command is
// set.
type SecretInput struct {
	Value  io.Reader // read to its end
	Source string    // of Value, for listings: stdin, file, ...

	// Command is run by sh on the host, outside any sandbox, whenever a
	// token is needed; Errors gets what it prints to stderr the first time.
	Command string
	Errors  io.Writer
	Getenv  func(string) string // where the variables that it gets come from

	// OAuth says that Value is a JSON document with the tokens of an OAuth
	// server.
	OAuth bool
}

// A Secret is what may be known of one.
type Secret struct {
	Service string    `json:"service"`
	Scope   string    `json:"scope"`            // global, kit, sandbox or registry
	For     string    `json:"for,omitzero"`     // the identity of the Kit, the name of the sandbox or the host
	Form    string    `json:"form"`             // value, command or oauth
	Source  string    `json:"source"`           // where it came from
	Set     time.Time `json:"set"`              // by the operator
	Changed time.Time `json:"changed,omitzero"` // by kitbox since
	Expires time.Time `json:"expires,omitzero"` // of tokens, if it is known
}

// SecretsOf returns the secret keeper of r. A runtime without one answers
// [kiterr.ErrUnsupported].
func SecretsOf(r Runtime) (SecretKeeper, error) {
	return able[SecretKeeper](r, "secrets")
}

// A CredentialGrant is a service that the boundary presents proof to.
type CredentialGrant struct {
	Service  string   `json:"service"`
	Kit      string   `json:"kit"`
	Phases   []string `json:"phases"`
	Variable string   `json:"variable,omitzero"` // that holds what stands for the secret; empty: none
	Hosts    []string `json:"hosts"`             // that are given it
	OAuth    bool     `json:"oauth,omitzero"`
}
