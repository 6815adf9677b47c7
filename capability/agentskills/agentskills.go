// Package agentskills is the grammar of the agent-skills capability: a
// directory that the Kit's agent scans for skills, which receives the bundled
// skills of all Kits and, as far as the host allows, the user's own.
package agentskills

import (
	_ "embed"
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/agent-skills@1"

// The modes. Leaving the field out means ReadOnly.
const (
	ReadOnly  = "readonly"
	ReadWrite = "readwrite"
)

// A Config is one directory. Its zero value is invalid: Path is required.
type Config struct {
	Path string `json:"path"`          // absolute and canonical
	Mode string `json:"mode,omitzero"` // the most access to the host's store that the Kit takes; empty: ReadOnly
}

// Writes reports whether the Kit asks to write to the host's store.
func (c Config) Writes() bool { return c.Mode == ReadWrite }

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

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	fault := ""
	if !f.Waits(c.Path) {
		fault = guestpath.Canonical(c.Path)
	}
	if fault != "" {
		in.Problem("config.path", fault)
	} else {
		in.Claim(capability.Claim{Space: "skills path", Key: c.Path, At: "config.path", What: "skills path"})
	}
	in.Line(capability.ListSkillsPaths, c.Path)
	// An open mode may turn out to be the wider one.
	if c.Writes() || capability.HasReference(c.Mode) {
		in.Line(capability.ListSkillsWritePaths, c.Path)
	}
	if c.Mode != "" && c.Mode != ReadOnly && c.Mode != ReadWrite && !f.Waits(c.Mode) {
		in.Problem("config.mode", fmt.Sprintf("%q is not a mode: write readonly or readwrite", c.Mode))
	}
}

// mergeAll makes one directory of those at one path, with the wider mode: a
// mount cannot be both, and a Kit that asked to read was never protected from
// what another Kit may write.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Path, err == nil && !capability.HasReference(config.Path)
	}, func(a, b capability.Contribution, _ string) (capability.Contribution, *capability.Conflict) {
		out := merge.Join(a, b)
		x, _ := Decode(a.Request)
		y, _ := Decode(b.Request)
		if y.Writes() && !x.Writes() {
			out.Request.Config = b.Request.Config
		}
		return out, nil
	})
}
