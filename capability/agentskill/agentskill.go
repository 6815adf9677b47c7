// Package agentskill is the grammar of the agent-skill capability: one skill
// that the Kit's image ships and that agents find in their skill directories.
// Which directories those are, package agentskills says.
package agentskill

import (
	_ "embed"
	"fmt"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/agent-skill@1"

// A Config is one bundled skill. Its zero value is invalid: Path is required.
type Config struct {
	Path string `json:"path"` // directory in the image, absolute and canonical

	// Name is the directory that the skill becomes. Nil means the last element
	// of Path; an empty text is invalid.
	Name *string `json:"name,omitzero"`
}

// SkillName returns the effective name, by which skills collide.
func (c Config) SkillName() string {
	if c.Name != nil {
		return *c.Name
	}
	return path.Base(c.Path)
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

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	before := len(in.Problems)
	switch {
	case f == capability.Published && capability.HasReference(c.Path):
		in.Breach("config.path", "agent-skill@1/source-literal", "must be literal once published: the image is checked before any sandbox exists")
	case f == capability.Authored && strings.Contains(c.Path, "${{") && strings.Contains(c.Path, "kit.env."):
		in.Breach("config.path", "agent-skill@1/source-literal", "cannot depend on the environment of a sandbox: the image is checked before any exists")
	case f.Waits(c.Path):
	default:
		if fault := guestpath.Canonical(c.Path); fault != "" {
			in.Problem("config.path", fault)
		}
	}
	name, at := c.SkillName(), "config.path"
	if c.Name != nil {
		at = "config.name"
	}
	// The name of a path that is wrong or waits is not worth a second finding.
	if !f.Waits(name) && (c.Name != nil || len(in.Problems) == before && !f.Waits(c.Path)) && !component(name) {
		in.Breach(at, "agent-skill@1/name-valid", fmt.Sprintf("%q cannot be the name of a skill: use letters, digits, dots, underscores and hyphens, beginning with a letter or digit, at most 255", name))
	}
	if len(in.Problems) == before {
		in.Claim(capability.Claim{Space: "agent skill", Key: name, At: at, What: "skill"})
	}
}

// component reports whether name is one portable path element that cannot
// leave or hide in its directory.
func component(name string) bool {
	if len(name) == 0 || len(name) > 255 {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// mergeAll lets Kits ship the same skill from the same place, and refuses two
// places for one name, even if an ask is optional.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.SkillName(), err == nil
	}, func(a, b capability.Contribution, name string) (capability.Contribution, *capability.Conflict) {
		x, _ := Decode(a.Request)
		y, _ := Decode(b.Request)
		if x.Path != y.Path {
			conflict := merge.Conflict(name, fmt.Sprintf("ship the skill %s from different places, %s and %s", name, x.Path, y.Path), a, b)
			return a, &conflict
		}
		return merge.Join(a, b), nil
	})
}
