// Package port is the grammar of the port capability: one port of the sandbox
// that the runtime publishes to the host. The host side is the host's choice,
// made in internal/handler/port.
package port

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/port@1"

// The transports. Leaving the field out means TCP.
const (
	TCP = "tcp"
	UDP = "udp"
)

// A Config is one published port. Its zero value is invalid: Container is
// required.
type Config struct {
	Name      string `json:"name,omitzero"`      // label in listings; never identity
	Container int    `json:"container"`          // 1..65535, inside the sandbox
	Transport string `json:"transport,omitzero"` // empty: TCP
}

// Key returns what identifies the publication: container/transport.
func (c Config) Key() string {
	if c.Transport == "" {
		return strconv.Itoa(c.Container) + "/" + TCP
	}
	return strconv.Itoa(c.Container) + "/" + c.Transport
}

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge)
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
	Inspect: capability.Inspecting((*Config).judge),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, open capability.Open, in *capability.Inspection) {
	waits := open.Has("config.container")
	known := !waits
	if !waits && (c.Container < 1 || c.Container > 65535) {
		in.Problem("config.container", "must be a port from 1 to 65535")
		known = false
	}
	if c.Transport != "" && c.Transport != TCP && c.Transport != UDP && !f.Waits(c.Transport) {
		in.Problem("config.transport", fmt.Sprintf("%q is not a transport: write tcp or udp", c.Transport))
		known = false
	}
	key := c.Key()
	if waits {
		_, transport, _ := strings.Cut(key, "/")
		key = open.Text("config.container") + "/" + transport
	}
	if known {
		in.Claim(capability.Claim{Space: "port", Key: key, At: "config.container", What: "port"})
	}
	in.Line(capability.ListPorts, key)
}

// mergeAll publishes a port once, whoever asks: the label is not identity.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Key(), err == nil
	}, merge.Restated)
}
