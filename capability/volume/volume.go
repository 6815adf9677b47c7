// Package volume is the grammar of the volume capability: storage mounted at a
// path, which outlives the container unless it is RAM.
//
// It says what an author may write and what that means. What a host does about
// it is in internal/handler/volume; what an outsider can observe is in
// tck/runtime/volume.go.
package volume

import (
	_ "embed"
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/bytesize"
	"github.com/kitbox-dev/kitbox/capability/filemode"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/volume@1"

// A Config is one volume. Its zero value is invalid: Path is required.
type Config struct {
	Path  string `json:"path"`           // absolute; [Config.Dir] is the place it names
	Size  string `json:"size,omitzero"`  // [bytesize], e.g. 512m; empty: not stated
	TmpFS bool   `json:"tmpfs,omitzero"` // RAM, gone at stop or recreate
	Mode  string `json:"mode,omitzero"`  // [filemode] of fresh storage; empty: not stated
}

// Dir returns the cleaned path, which is part of the identity of the storage.
func (c Config) Dir() string { return guestpath.Clean(c.Path) }

// Bytes returns the size; false if none is stated.
func (c Config) Bytes() (int64, bool) { return bytesize.Bytes(c.Size) }

// Perm returns the permission bits for fresh storage; false if none are stated.
// A stated 000 is not the same as none.
func (c Config) Perm() (uint32, bool) { return filemode.Parse(c.Mode) }

// Equivalent reports whether c and d ask for the same storage: equal cleaned
// paths, sizes in bytes, modes in octal and backing. Stated never equals
// unstated.
func (c Config) Equivalent(d Config) bool { return c.Dir() == d.Dir() && c.Difference(d) == "" }

// Difference names the first setting, out of size, tmpfs and mode, in which c
// and d differ, with both values; empty if they agree.
func (c Config) Difference(d Config) string {
	switch {
	case c.Size != d.Size && !bytesize.Equal(c.Size, d.Size):
		return fmt.Sprintf("size (%s and %s)", stated(c.Size), stated(d.Size))
	case c.TmpFS != d.TmpFS:
		return fmt.Sprintf("tmpfs (%t and %t)", c.TmpFS, d.TmpFS)
	case c.Mode != d.Mode:
		a, okA := c.Perm()
		b, okB := d.Perm()
		if a != b || !okA || !okB {
			return fmt.Sprintf("mode (%s and %s)", stated(c.Mode), stated(d.Mode))
		}
	}
	return ""
}

func stated(s string) string {
	if s == "" {
		return "not stated"
	}
	return s
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
	Types:    []string{Type},
	Arity:    capability.Instance,
	Inspect:  capability.Inspecting((*Config).judge),
	Merge:    mergeAll,
	KeepText: []string{"size", "mode"},
	Schema:   func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	dir, fault := c.Dir(), ""
	if !f.Waits(c.Path) {
		fault = guestpath.Absolute(c.Path)
	}
	if fault != "" {
		in.Problem("config.path", fault)
	} else {
		in.Claim(capability.Claim{Space: guestpath.Space, Key: dir, At: "config.path", What: "storage path"})
	}
	in.Line(capability.ListStoragePaths, dir)
	if c.Size != "" && !bytesize.Valid(c.Size) && !f.Waits(c.Size) {
		in.Problem("config.size", fmt.Sprintf("%q is not a size such as 512m, 2g or 1gib", c.Size))
	}
	if c.Mode != "" && !f.Waits(c.Mode) {
		if _, ok := filemode.Parse(c.Mode); !ok {
			in.Problem("config.mode", filemode.Fault)
		}
	}
}

// mergeAll lets Kits share storage that they ask for in equivalent terms, and
// refuses to choose between terms that differ. In a set being published, an
// entry that still holds a reference stands apart: whether it differs is known
// at create.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	open := func(c capability.Contribution) bool {
		return mode == capability.MergePublish && capability.HasReference(string(c.Request.Config))
	}
	key := func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Dir(), err == nil && !open(c)
	}
	out, conflicts := merge.Keyed(cs, key, func(a, b capability.Contribution, dir string) (capability.Contribution, *capability.Conflict) {
		x, _ := Decode(a.Request)
		y, _ := Decode(b.Request)
		if difference := x.Difference(y); difference != "" {
			conflict := merge.Conflict(dir, fmt.Sprintf("ask for different volumes at %s: %s", dir, difference), a, b)
			return a, &conflict
		}
		return merge.Join(a, b), nil
	})
	for i := range out {
		out[i].Apart = out[i].Apart || open(out[i])
	}
	return out, conflicts
}
