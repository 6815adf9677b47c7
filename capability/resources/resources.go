// Package resources is the grammar of the resources capability: the compute that
// a Kit wants. It constrains the Kit and grants it nothing; applying it is in
// internal/handler/resources.
package resources

import (
	_ "embed"
	"fmt"
	"strconv"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/bytesize"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/resources@1"

// A Config is what is wanted. Its zero value sets no constraint.
type Config struct {
	CPU    *float64 `json:"cpu,omitzero"`    // cores, not negative; nil: no constraint
	Memory string   `json:"memory,omitzero"` // [bytesize]; empty: no constraint
	GPU    string   `json:"gpu,omitzero"`    // selector that the runtime defines, such as 1 or all; empty: none
}

// Bytes returns the memory; false if none is stated.
func (c Config) Bytes() (int64, bool) { return bytesize.Bytes(c.Memory) }

// Equal reports whether c and d want the same: sizes are compared in bytes.
func (c Config) Equal(d Config) bool {
	return (c.CPU == nil) == (d.CPU == nil) && (c.CPU == nil || *c.CPU == *d.CPU) &&
		(c.Memory == d.Memory || bytesize.Equal(c.Memory, d.Memory)) && c.GPU == d.GPU
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

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, open capability.Open, in *capability.Inspection) {
	if c.CPU != nil && *c.CPU < 0 && !open.Has("config.cpu") {
		in.Problem("config.cpu", "must not be negative")
	}
	if c.Memory != "" && !bytesize.Valid(c.Memory) && !f.Waits(c.Memory) {
		in.Problem("config.memory", fmt.Sprintf("%q is not a size such as 512m, 2g or 1gib", c.Memory))
	}
}

// mergeAll accepts one declaration and its restatements in a set. For a sandbox
// it takes the most that anyone wants of each resource, which undercuts nobody.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	same := func(a, b capability.Request) bool {
		x, errX := Decode(a)
		y, errY := Decode(b)
		if errX != nil || errY != nil {
			return merge.SameConfig(a, b)
		}
		return x.Equal(y)
	}
	if mode == capability.MergePublish {
		return merge.One(cs, "resources", same)
	}
	return merge.Keyed(cs, func(c capability.Contribution) (string, bool) {
		_, err := Decode(c.Request)
		return "resources", err == nil
	}, func(a, b capability.Contribution, _ string) (capability.Contribution, *capability.Conflict) {
		x, _ := Decode(a.Request)
		y, _ := Decode(b.Request)
		most, ok := x.most(y)
		if !ok {
			conflict := merge.Conflict("gpu", fmt.Sprintf("want different GPUs, %s and %s", x.GPU, y.GPU), a, b)
			return a, &conflict
		}
		out := merge.Join(a, b)
		if !most.Equal(x) {
			r, err := most.Encode()
			if err != nil {
				return out, nil
			}
			out.Request.Config = r.Config
		}
		return out, nil
	})
}

// most returns the larger of each resource. It is false if both select GPUs in
// ways of which neither includes the other.
func (c Config) most(d Config) (Config, bool) {
	if c.CPU == nil || d.CPU != nil && *d.CPU > *c.CPU {
		c.CPU = d.CPU
	}
	if bytesize.Compare(d.Memory, c.Memory) > 0 {
		c.Memory = d.Memory
	}
	m, errM := strconv.Atoi(c.GPU)
	n, errN := strconv.Atoi(d.GPU)
	switch {
	case c.GPU == d.GPU, d.GPU == "", c.GPU == "all":
	case c.GPU == "", d.GPU == "all":
		c.GPU = d.GPU
	case errM != nil || errN != nil:
		return c, false
	case n > m:
		c.GPU = d.GPU
	}
	return c, true
}
