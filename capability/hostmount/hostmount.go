// Package hostmount is the grammar of the host-mount capability: a directory of
// the host, at a place of the host's choice, that sandboxes of one Kit share.
// Where it is, internal/handler/hostmount decides.
package hostmount

import (
	_ "embed"
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/filemode"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/host-mount@1"

// A Config is one shared directory. Its zero value is invalid: Path is
// required. There is no field for a place on the host.
type Config struct {
	Path string `json:"path"` // absolute and canonical, in the sandbox

	// Mode holds the octal permissions of a new directory. Nil is not stated;
	// an empty text is invalid.
	Mode *string `json:"mode,omitzero"`
}

// Perm returns the permission bits of a new directory; false if none are
// stated.
func (c Config) Perm() (uint32, bool) {
	if c.Mode == nil {
		return 0, false
	}
	return filemode.Parse(*c.Mode)
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
	fault := ""
	if !f.Waits(c.Path) {
		fault = guestpath.Canonical(c.Path)
	}
	if fault != "" {
		in.Problem("config.path", fault)
	} else {
		in.Claim(capability.Claim{Space: guestpath.Space, Key: c.Path, At: "config.path", What: "storage path"})
	}
	in.Line(capability.ListHostMountPaths, c.Path)
	if c.Mode != nil && !f.Waits(*c.Mode) {
		if _, ok := filemode.Parse(*c.Mode); !ok {
			in.Problem("config.mode", filemode.Fault)
		}
	}
}

// mergeAll never lets two Kits share a path, not even with identical configs:
// the directory belongs to the identity of one Kit.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		var in capability.Inspection
		var config Config
		_, ok := in.Read(c.Request, capability.Published, &config)
		return config.Path, ok && !capability.HasReference(config.Path)
	}, func(a, b capability.Contribution, path string) (capability.Contribution, *capability.Conflict) {
		conflict := merge.Conflict(path, fmt.Sprintf("ask for a host mount at %s, which only one Kit can own", path), a, b)
		return a, &conflict
	})
}
