// Package networkpolicy is the grammar of the network-policy capability: what
// a sandbox may reach while install hooks run, and what afterwards.
//
// Version 1 speaks of hosts only; version 2 can bound a host to particular HTTP
// requests. Both decode to one [Config]. Whether a pattern matches a connection
// is decided in internal/boundary/egress.
package networkpolicy

import (
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

// The wire names.
const (
	Type   = capability.Namespace + "/network-policy@1"
	TypeV2 = capability.Namespace + "/network-policy@2"
)

// AnyMethod is the method that stands for every method.
const AnyMethod = "ANY"

// A Config is a policy. Its zero value allows nothing, and a phase without
// rules reaches nothing.
type Config struct {
	Install Rules `json:"install,omitzero"` // while install hooks run
	Runtime Rules `json:"runtime,omitzero"` // afterwards
}

// Rules are the entries of one phase. A denial wins over any allowance.
type Rules struct {
	Allow []Entry `json:"allow,omitzero"`
	Deny  []Entry `json:"deny,omitzero"`
}

// An Entry is hosts and, if it is bounded, the requests that it admits or
// refuses there. An entry of one host and no bounds is written as text.
type Entry struct {
	Hosts   []string `json:"hosts"`            // patterns: host, host:port, *.domain, * or **
	Methods []string `json:"methods,omitzero"` // upper case tokens, or ANY alone; nil: every method
	Paths   []string `json:"paths,omitzero"`   // globs beginning with /; nil: every path
}

// Bounded reports whether e is about particular requests rather than about the
// connection.
func (e Entry) Bounded() bool { return e.Methods != nil || e.Paths != nil }

func (e Entry) bare() bool { return len(e.Hosts) == 1 && !e.Bounded() }

// Phase returns the rules of p.
func (c Config) Phase(p phase.Phase) Rules {
	if p == phase.Install {
		return c.Install
	}
	return c.Runtime
}

// AllowedHosts returns the host patterns that c allows in p, as written and in
// order. Those of bounded entries are among them: some request to them passes.
func AllowedHosts(c Config, p phase.Phase) []string {
	var hosts []string
	for _, e := range c.Phase(p).Allow {
		hosts = append(hosts, e.Hosts...)
	}
	return hosts
}

// Covers reports whether a domain that credentials are injected at is within
// allowed, a list of host patterns. A bare * or ** covers every domain, any
// other pattern only its own spelling: what a wildcard matches is for the
// boundary to say. Ports count on neither side.
func Covers(allowed []string, domain string) bool {
	domain = hostpattern.WithoutPort(domain)
	return slices.ContainsFunc(allowed, func(h string) bool {
		return h == "*" || h == "**" || strings.EqualFold(hostpattern.WithoutPort(h), domain)
	})
}

// Decode returns the config of r, of either version, if it is valid. The error
// is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	var in capability.Inspection
	var c Config
	if r.Type != Type && r.Type != TypeV2 {
		in.Problem("type", "is not a network-policy")
	} else if ok := read(r, capability.Effective, &in, &c); ok {
		c.judge(capability.Effective, nil, &in)
	}
	if err := in.Err(r.Type); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Peek decodes r without judging values and with references in it, for rules
// that concern other entries as well. It is false if r does not have the shape.
func Peek(r capability.Request) (Config, bool) {
	var in capability.Inspection
	var c Config
	ok := read(r, capability.Published, &in, &c)
	return c, ok
}

// Encode returns the request for c in the oldest version that can state it, or
// the error [Decode] would give for it.
func (c Config) Encode() (capability.Request, error) {
	for _, entries := range [][]Entry{c.Install.Allow, c.Install.Deny, c.Runtime.Allow, c.Runtime.Deny} {
		if slices.ContainsFunc(entries, func(e Entry) bool { return !e.bare() }) {
			return capability.EncodeValid(TypeV2, c, (*Config).judge)
		}
	}
	return capability.EncodeValid(Type, c, (*Config).judge)
}

var definition = capability.Definition{
	Types: []string{Type, TypeV2},
	Arity: capability.Singleton,
	Inspect: func(r capability.Request, f capability.Form, in *capability.Inspection) {
		c := new(Config)
		if read(r, f, in, c) {
			c.judge(f, nil, in)
		}
	},
	Merge: mergeAll,
	Schema: func(typ string) []byte {
		if typ == Type {
			return schemaV1
		}
		return schemaV2
	},
}

// Definition returns the grammar of both versions.
func Definition() capability.Definition { return definition }
