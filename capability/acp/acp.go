// Package acp is the grammar of the acp capability: a command of the image that
// speaks the Agent Client Protocol for one agent. It grants nothing; starting
// the command is in internal/handler/acp.
package acp

import (
	_ "embed"
	"fmt"
	"maps"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/argv"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/acp@1"

// DefaultVersion is the protocol version where none is stated.
const DefaultVersion = 1

// A Config is one adapter. Its zero value is invalid: Agent and Command are
// required.
type Config struct {
	Agent   string            `json:"agent"`            // name of a provided capability, without a version
	Command argv.Command      `json:"command,omitzero"` // whole command, not a tail
	Env     map[string]string `json:"env,omitzero"`     // laid over the environment of an agent session

	// ProtocolVersion is positive; nil means DefaultVersion.
	ProtocolVersion *int `json:"protocolVersion,omitzero"`
}

// Name returns the normalized name of the agent, with its namespace.
func (c Config) Name() string {
	if strings.Contains(c.Agent, "/") {
		return c.Agent
	}
	return "com.docker.kit/" + c.Agent
}

// Version returns the protocol version that the adapter is started for.
func (c Config) Version() int {
	if c.ProtocolVersion == nil {
		return DefaultVersion
	}
	return *c.ProtocolVersion
}

// Equal reports whether c and d are restatements of each other: commands are
// compared as argv, names and versions with their defaults, and no environment
// equals an empty one.
func (c Config) Equal(d Config) bool {
	return c.Name() == d.Name() && c.Command.Equal(d.Command) && c.Version() == d.Version() && maps.Equal(c.Env, d.Env)
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

const rule = "acp@1/config-valid"

func (c *Config) judge(f capability.Form, open capability.Open, in *capability.Inspection) {
	fault := ""
	if !f.Waits(c.Agent) {
		fault = nameFault(c.Agent)
	}
	if fault != "" {
		in.Breach("config.agent", rule, fault)
	} else {
		in.Claim(capability.Claim{Space: "acp agent", Key: c.Name(), At: "config.agent", What: "agent", Statement: "acp@1/agent-unique"})
	}
	if fault := c.Command.Fault(); fault != "" {
		in.Breach("config.command", rule, fault)
	}
	for name, value := range c.Env {
		if fault := variableFault(name, value, f); fault != "" {
			in.Breach("config.env", rule, fault)
			break // one is enough, and map order is not to be seen
		}
	}
	if c.ProtocolVersion != nil && *c.ProtocolVersion < 1 && !open.Has("config.protocolVersion") {
		in.Breach("config.protocolVersion", rule, "must be a positive whole number")
	}
}

// nameFault says why s is not a capability name without a version (§5.1), or
// returns "".
func nameFault(s string) string {
	if s == "" {
		return "the name of an agent is required"
	}
	if strings.Contains(s, "@") {
		return fmt.Sprintf("%q has a version: an agent is named without one", s)
	}
	namespace, base, qualified := strings.Cut(s, "/")
	if !qualified {
		base = s
	} else {
		labels := strings.Split(namespace, ".")
		good := len(labels) > 1 && len(namespace) <= 253
		for _, l := range labels {
			good = good && len(l) > 0 && len(l) <= 63 && strings.Trim(l, lowerAlnum+"-") == "" && l[0] != '-' && l[len(l)-1] != '-'
		}
		if !good {
			return fmt.Sprintf("%q is not in a namespace of two or more labels, such as com.example", s)
		}
	}
	if base == "" || strings.Trim(base, lowerAlnum+"-.+") != "" || strings.Trim(base[:1], lowerAlnum) != "" || strings.HasSuffix(base, "-") || strings.HasSuffix(base, ".") {
		return fmt.Sprintf("%q is not a capability name: use lower case letters, digits and inner -, . and +", s)
	}
	return ""
}

const lowerAlnum = "abcdefghijklmnopqrstuvwxyz0123456789"

func variableFault(name, value string, f capability.Form) string {
	switch {
	case strings.IndexByte(value, 0) >= 0:
		return "a value cannot hold a NUL byte"
	case f.Waits(name):
		return ""
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return "a variable needs a name without = and NUL"
	}
	return ""
}

// mergeAll folds restatements for one agent; anything else conflicts.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Name(), err == nil
	}, func(a, b capability.Contribution, name string) (capability.Contribution, *capability.Conflict) {
		x, _ := Decode(a.Request)
		y, _ := Decode(b.Request)
		if !x.Equal(y) {
			conflict := merge.Conflict(name, fmt.Sprintf("declare different acp adapters for the agent %s", name), a, b)
			return a, &conflict
		}
		return merge.Join(a, b), nil
	})
}
