// Package agentsessions is the grammar of the agent-sessions capability: how a
// harness drives the workload's agent without a terminal. It grants nothing.
// The verbs with a terminal are in package agentinteractivesessions.
package agentsessions

import (
	_ "embed"
	"slices"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/argv"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/agent-sessions@1"

// The placeholders that the host replaces with what its caller gave.
const (
	Prompt    = "{{.Prompt}}"
	SessionID = "{{.SessionID}}"
)

// A Config is the verbs of an agent. A verb without arguments is one that the
// agent does not have, whether it is left out or empty; at least one is needed.
// All but List are appended to the launch command.
type Config struct {
	Prompt   argv.Tail    `json:"prompt,omitzero"`   // run one prompt; mentions the placeholder
	Resume   argv.Tail    `json:"resume,omitzero"`   // reopen a named session; mentions the placeholder
	Continue argv.Tail    `json:"continue,omitzero"` // reopen the most recent session
	List     argv.Command `json:"list,omitzero"`     // whole command that prints ids, one per line, newest first
}

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge)
}

// Peek decodes r without judging values and with references in it, for rules
// that concern other entries as well. It is false if r does not have the shape.
func Peek(r capability.Request) (Config, bool) { return capability.Peek[Config](r) }

// Encode returns the request for c, or the error [Decode] would give for it.
func (c Config) Encode() (capability.Request, error) {
	return capability.EncodeValid(Type, c, (*Config).judge)
}

//go:embed schema.json
var schema []byte

var definition = capability.Definition{
	Types:   []string{Type},
	Arity:   capability.Singleton,
	Inspect: capability.Inspecting((*Config).judge),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	list := len(c.List.Argv()) > 0
	if len(c.Prompt) == 0 && len(c.Resume) == 0 && len(c.Continue) == 0 && !list {
		in.Problem("config", "declares no verb: remove the entry")
		return
	}
	judgeTail(c.Prompt, "config.prompt", Prompt, "agent-sessions@1/prompt-placeholder-required", f, in)
	judgeTail(c.Resume, "config.resume", SessionID, "agent-sessions@1/session-id-placeholder-required", f, in)
	judgeTail(c.Continue, "config.continue", "", "", f, in)
	if list {
		if fault := c.List.Fault(); fault != "" {
			in.Problem("config.list", fault)
		}
	}
}

func judgeTail(t argv.Tail, at, placeholder, statement string, f capability.Form, in *capability.Inspection) {
	if fault := t.Fault(); fault != "" {
		in.Problem(at, fault)
	}
	// An argument that waits may bring the placeholder.
	if len(t) > 0 && !t.Mentions(placeholder) && !slices.ContainsFunc(t, f.Waits) {
		in.Breach(at, statement, "must mention "+placeholder+", or what the caller gives would be discarded")
	}
}

// mergeAll lets the workload's declaration govern in a sandbox, because it is
// the workload that the verbs drive. Otherwise one Kit declares and others may
// restate.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	if i := slices.IndexFunc(cs, func(c capability.Contribution) bool { return c.Workload }); mode == capability.MergeRuntime && i >= 0 {
		return cs[i : i+1 : i+1], nil
	}
	return merge.One(cs, "agent-sessions", func(a, b capability.Request) bool {
		x, okX := Peek(a)
		y, okY := Peek(b)
		if !okX || !okY {
			return merge.SameConfig(a, b)
		}
		return slices.Equal(x.Prompt, y.Prompt) && slices.Equal(x.Resume, y.Resume) && slices.Equal(x.Continue, y.Continue) && x.List.Equal(y.List)
	})
}
