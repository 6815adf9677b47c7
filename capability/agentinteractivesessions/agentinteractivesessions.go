// Package agentinteractivesessions is the grammar of the
// agent-interactive-sessions capability: how a host puts the terminal interface
// of the workload's agent in front of a person. It grants nothing. The verbs
// without a terminal are in package agentsessions.
package agentinteractivesessions

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/argv"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/agent-interactive-sessions@1"

// The placeholders that the host replaces with what its caller gave.
const (
	Prompt    = "{{.Prompt}}"
	SessionID = "{{.SessionID}}"
)

// A Config is the verbs of an agent's terminal interface; at least one must be
// stated. Nil is not stated: the agent cannot do it, except that NewSession
// then is the interactive launch of the lifecycle capability. Empty is stated
// and means the launch command alone. All but List are appended to it.
type Config struct {
	Prompt        argv.Tail     `json:"prompt,omitzero"`        // start with a prompt; mentions the placeholder
	Resume        argv.Tail     `json:"resume,omitzero"`        // reopen a named session; mentions the placeholder
	Continue      argv.Tail     `json:"continue,omitzero"`      // reopen the most recent session
	NewSession    argv.Tail     `json:"newSession,omitzero"`    // start a fresh session
	SessionPicker argv.Tail     `json:"sessionPicker,omitzero"` // start in the agent's own list of sessions
	List          *argv.Command `json:"list,omitzero"`          // whole command that prints ids, one per line, newest first
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
	if c.Prompt == nil && c.Resume == nil && c.Continue == nil && c.NewSession == nil && c.SessionPicker == nil && c.List == nil {
		in.Problem("config", "declares no verb: remove the entry")
		return
	}
	judgeTail(c.Prompt, "config.prompt", Prompt, "agent-interactive-sessions@1/prompt-placeholder-required", f, in)
	judgeTail(c.Resume, "config.resume", SessionID, "agent-interactive-sessions@1/session-id-placeholder-required", f, in)
	judgeTail(c.Continue, "config.continue", "", "", f, in)
	judgeTail(c.NewSession, "config.newSession", "", "", f, in)
	judgeTail(c.SessionPicker, "config.sessionPicker", "", "", f, in)
	if c.List != nil {
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
	if t != nil && placeholder != "" && !t.Mentions(placeholder) && !slices.ContainsFunc(t, f.Waits) {
		in.Breach(at, statement, "must mention "+placeholder+", or what the caller gives would be discarded")
	}
	if placeholder == "" && slices.ContainsFunc(t, func(a string) bool { return strings.Contains(a, Prompt) || strings.Contains(a, SessionID) }) {
		in.Warn(at, "mentions a placeholder that nothing replaces here")
	}
}

// mergeAll accepts one declaration and its restatements. The first is kept as
// its Kit wrote it, so that a stated empty tail is not lost on the way.
func mergeAll(_ capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.One(cs, "agent-interactive-sessions", func(a, b capability.Request) bool {
		x, okX := Peek(a)
		y, okY := Peek(b)
		if !okX || !okY {
			return merge.SameConfig(a, b)
		}
		return same(x.Prompt, y.Prompt) && same(x.Resume, y.Resume) && same(x.Continue, y.Continue) &&
			same(x.NewSession, y.NewSession) && same(x.SessionPicker, y.SessionPicker) &&
			(x.List == nil) == (y.List == nil) && (x.List == nil || x.List.Equal(*y.List))
	})
}

func same(a, b argv.Tail) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }
