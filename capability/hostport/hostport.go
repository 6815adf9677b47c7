// Package hostport is the grammar of the host-port capability: one service on
// the host's loopback that the sandbox may reach at a name announced to it, and
// nothing else there. The relay is in internal/boundary.
package hostport

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/host-port@1"

// The transports and families. Leaving a field out means TCP and IPv4.
const (
	TCP  = "tcp"
	UDP  = "udp"
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// A Config is one service of the host. Its zero value is invalid: Port is
// required.
type Config struct {
	Port      int    `json:"port"`               // 1..65535, the same on both sides
	Transport string `json:"transport,omitzero"` // empty: TCP
	Family    string `json:"family,omitzero"`    // of the loopback address; empty: IPv4
	Name      string `json:"name,omitzero"`      // label in listings; never identity
}

// Key returns what identifies the service, such as tcp4/5432.
func (c Config) Key() string {
	transport, family := c.Transport, "4"
	if transport == "" {
		transport = TCP
	}
	if c.Family == IPv6 {
		family = "6"
	}
	return transport + family + "/" + strconv.Itoa(c.Port)
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
	waits := open.Has("config.port")
	known := !waits && !capability.HasReference(c.Family)
	if !waits && (c.Port < 1 || c.Port > 65535) {
		in.Problem("config.port", "must be a port from 1 to 65535")
		known = false
	}
	if c.Transport != "" && c.Transport != TCP && c.Transport != UDP && !f.Waits(c.Transport) {
		in.Problem("config.transport", fmt.Sprintf("%q is not a transport: write tcp or udp", c.Transport))
		known = false
	}
	if c.Family != "" && c.Family != IPv4 && c.Family != IPv6 && !f.Waits(c.Family) {
		in.Problem("config.family", fmt.Sprintf("%q is not an address family: write ipv4 or ipv6", c.Family))
		known = false
	}
	key := c.Key()
	if waits {
		address, _, _ := strings.Cut(key, "/")
		key = address + "/" + open.Text("config.port")
	}
	if known {
		in.Claim(capability.Claim{Space: "host port", Key: key, At: "config.port", What: "host port"})
	}
	in.Line(capability.ListHostPorts, key)
	if capability.HasReference(c.Family) { // it may turn out to be either
		in.Line(capability.ListHostPorts, strings.Replace(key, "4/", "6/", 1))
	}
}

// mergeAll grants a service once, whoever asks: the label is not identity.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Key(), err == nil
	}, merge.Restated)
}
