// Package lifecycle is the grammar of the lifecycle capability: hooks that run
// once at create and at every boot, files written at start, and the arguments
// of an interactive launch.
//
// How they are executed is in internal/handler/lifecycle.
package lifecycle

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/argv"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
)

// Type is the wire name.
const Type = capability.Namespace + "/lifecycle@1"

// A Config is a Kit's setup. It is invalid without any hook or file, unless
// Interactive has an argument.
type Config struct {
	Install []InstallHook `json:"install,omitzero"` // in order, once, at create
	Startup []StartupHook `json:"startup,omitzero"` // in order, at every boot
	Files   []File        `json:"files,omitzero"`   // written at every start, before the entrypoint

	// Interactive is appended to the launch command for a session with a
	// terminal. Nil is not stated; empty is a stated empty tail, which
	// differs: it settles that the launch command stands alone.
	Interactive argv.Tail `json:"interactive,omitzero"`
}

// An InstallHook runs once per sandbox, while the install phase is open.
type InstallHook struct {
	Command     argv.Command `json:"command,omitzero"`     // required
	User        string       `json:"user,omitzero"`        // uid or name; empty: root
	Env         []string     `json:"env,omitzero"`         // names of the variables it sees besides the platform's own
	Description string       `json:"description,omitzero"` // display only
}

// A StartupHook runs at every boot.
type StartupHook struct {
	Command     argv.Command `json:"command,omitzero"`     // required
	User        string       `json:"user,omitzero"`        // uid or name; empty: the agent's
	Background  bool         `json:"background,omitzero"`  // detached: the boot does not wait for it
	Env         []string     `json:"env,omitzero"`         // names of the variables it sees besides the platform's own
	Description string       `json:"description,omitzero"` // display only
}

// A File is written at start.
type File struct {
	Path        string `json:"path"`                 // absolute
	Content     string `json:"content,omitzero"`     // literal: $VAR stays as it is
	Mode        string `json:"mode,omitzero"`        // octal; empty: writable by the agent
	Overwrite   *bool  `json:"overwrite,omitzero"`   // nil: true; false leaves an existing file alone
	Description string `json:"description,omitzero"` // display only
}

// Overwrites reports whether an existing file is replaced.
func (f File) Overwrites() bool { return f.Overwrite == nil || *f.Overwrite }

// Dest returns the cleaned path, by which files of several Kits collide.
func (f File) Dest() string { return guestpath.Clean(f.Path) }

// Peek decodes r without judging values and with references in it, for rules
// that concern other entries as well. It is false if r does not have the shape.
func Peek(r capability.Request) (Config, bool) { return capability.Peek[Config](r) }

// Interactive returns the interactive tail that r states, and whether it states
// one. An empty tail may be stated. It reads r leniently, so that a descriptor
// with open references can be judged.
func Interactive(r capability.Request) (argv.Tail, bool) {
	c, ok := Peek(r)
	return c.Interactive, ok && c.Interactive != nil
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
	Arity:   capability.Singleton,
	Inspect: capability.Inspecting((*Config).judge),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type. It grants nothing: hooks reach
// only what other capabilities grant.
func Definition() capability.Definition { return definition }
