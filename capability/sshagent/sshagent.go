// Package sshagent is the grammar of the ssh-agent capability: the use of the
// user's SSH keys without having them. Telling what a signature is for, and
// refusing what was not asked for here, is in internal/boundary/sshagent.
package sshagent

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

// Type is the wire name.
const Type = capability.Namespace + "/ssh-agent@1"

// A Config is what an agent may sign. Its zero value is invalid: Phase is
// required.
type Config struct {
	Phase phase.Set `json:"phase,omitzero"`

	// Unrestricted lets the agent sign any request. Nil means true; then there
	// are no lists. False needs at least one.
	Unrestricted *bool    `json:"unrestricted,omitzero"`
	Sign         []string `json:"sign,omitzero"`         // namespaces of namespaced signatures, such as git
	Authenticate []string `json:"authenticate,omitzero"` // servers to log in to, as [user@]host
}

// Bounded reports whether only what the lists name is signed.
func (c Config) Bounded() bool { return c.Unrestricted != nil && !*c.Unrestricted }

// Destination splits an element of Authenticate. User is empty if any will do.
func Destination(s string) (user, host string) {
	if user, host, ok := strings.Cut(s, "@"); ok {
		return user, host
	}
	return "", s
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
	phaseFault := c.Phase.Fault(f)
	if phaseFault != "" {
		in.Problem("config.phase", phaseFault)
	}
	lists := c.Sign != nil || c.Authenticate != nil
	switch {
	case open.Has("config.unrestricted"):
	case !c.Bounded() && lists:
		in.Problem("config.unrestricted", "an unrestricted agent signs everything: state unrestricted: false beside sign or authenticate")
	case c.Bounded() && !lists:
		in.Problem("config", "unrestricted: false signs nothing without sign or authenticate")
	}
	judgeList(c.Sign, "config.sign", namespaceFault, f, in)
	judgeList(c.Authenticate, "config.authenticate", destinationFault, f, in)

	for _, p := range c.Phase {
		if phaseFault == "" {
			in.Claim(capability.Claim{Space: "ssh-agent", Key: string(p), At: "config.phase", What: "ssh-agent phase"})
		}
		if p != phase.Runtime {
			c.project(capability.ListSSHAgentInstall, open, in)
		}
		// What is not a phase, because it is still open, may turn out to be either.
		if p != phase.Install {
			c.project(capability.ListSSHAgentRuntime, open, in)
		}
	}
}

// judgeList reports faults at the list, in the order of its elements, up to the
// first that is repeated.
func judgeList(list []string, at string, fault func(string) string, f capability.Form, in *capability.Inspection) {
	if list != nil && len(list) == 0 {
		in.Problem(at, "an empty list signs nothing; leave it out")
	}
	var seen map[string]bool
	if len(list) > 1 {
		seen = make(map[string]bool, len(list))
	}
	for _, v := range list {
		if seen[v] {
			in.Problem(at, fmt.Sprintf("%q is listed twice", v))
			return
		}
		if seen != nil {
			seen[v] = true
		}
		if !f.Waits(v) {
			if fault := fault(v); fault != "" {
				in.Problem(at, fmt.Sprintf("%q %s", v, fault))
			}
		}
	}
}

func (c *Config) project(list string, open capability.Open, in *capability.Inspection) {
	if !c.Bounded() && !open.Has("config.unrestricted") {
		in.Line(list, "unrestricted")
		return
	}
	if open.Has("config.unrestricted") {
		in.Line(list, "unrestricted") // it may turn out to be
	}
	for _, n := range c.Sign {
		in.Line(list, "sign "+n)
	}
	for _, d := range c.Authenticate {
		in.Line(list, "authenticate "+d)
	}
}

func namespaceFault(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "is not a signature namespace: write printable ASCII without spaces"
	}
	return ""
}

// destinationFault says why s is not [user@]host with a literal lower case DNS
// name, or returns "". A host key proves a name, so nothing that stands for
// several names can be checked.
func destinationFault(s string) string {
	const fault = "is not a server: write a lower case DNS name without wildcard, port or address, possibly after user@"
	user, host := Destination(s)
	if strings.Contains(s, "@") && (user == "" || strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r > '~' })) {
		return fault
	}
	if len(host) > 253 {
		return fault
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return fault
		}
		last = label
	}
	// No top level name is numeric, and every IPv4 address ends in a number.
	if strings.Trim(last, "0123456789") == "" {
		return fault
	}
	return ""
}

// mergeAll gives each phase one agent: unrestricted if any ask is, and else
// bounded by the sorted union of the lists. In a set being published, an entry
// that still holds a reference stands apart until it is known.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	type agent struct {
		asks   []capability.Contribution
		config Config
	}
	var agents []*agent // parallel to out; nil for what is not merged
	var out []capability.Contribution
	of := map[phase.Phase]*agent{}
	for _, c := range cs {
		config, err := Decode(c.Request)
		open := mode == capability.MergePublish && capability.HasReference(string(c.Request.Config))
		if err != nil || open {
			c.Apart = c.Apart || open && len(cs) > 1
			out, agents = append(out, c), append(agents, nil)
			continue
		}
		for _, p := range config.Phase {
			a := of[p]
			if a == nil {
				a = &agent{config: config}
				of[p] = a
				a.config.Phase = phase.Set{p}
				a.config.Sign, a.config.Authenticate = slices.Clone(config.Sign), slices.Clone(config.Authenticate)
				out, agents = append(out, c), append(agents, a)
			} else if a.config.Bounded() && config.Bounded() {
				a.config.Sign = append(a.config.Sign, config.Sign...)
				a.config.Authenticate = append(a.config.Authenticate, config.Authenticate...)
			} else {
				a.config.Unrestricted, a.config.Sign, a.config.Authenticate = nil, nil, nil
			}
			a.asks = append(a.asks, c)
		}
	}
	for i, a := range agents {
		if a == nil {
			continue
		}
		a.config.Sign, a.config.Authenticate = sorted(a.config.Sign), sorted(a.config.Authenticate)
		r, err := capability.Encode(Type, a.config)
		if err != nil { // not reached: text and booleans always encode
			continue
		}
		out[i] = merge.All(a.asks)
		if !merge.SameConfig(r, out[i].Request) {
			out[i].From = merge.Parts(out[i])
		}
		out[i].Request.Config = r.Config
	}
	return out, nil
}

func sorted(list []string) []string {
	if list == nil {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}
