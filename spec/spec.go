// Package spec is the grammar of the Kit descriptor, schema version "3": its
// types, its strict decoding from YAML or JSON with source positions, the
// checks of a whole document, and its published encoding.
//
// What one capability entry may say is in the packages below capability; names,
// versions and references are in spec/constraint, arguments in spec/expand, the
// permission surface in spec/surface. How several Kits meet is in resolve.
// Nothing here reads or writes anything, and there is no global state.
package spec

import (
	"errors"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// SchemaVersion is the one value of schemaVersion that this package reads (§4).
const SchemaVersion = "3"

// The kinds of §1. KindSet exists only while authoring.
const (
	KindWorkload = "workload"
	KindMixin    = "mixin"
	KindSet      = "set"
)

// The size budget of a descriptor, in bytes as stored (§9.4).
const (
	WarnBytes = 64 << 10
	MaxBytes  = 512 << 10
)

// A Descriptor is a decoded Kit descriptor (§4). A nil list or map was absent;
// an empty one was stated and is an error where the grammar says so. Treat a
// Descriptor as immutable: copies share its slices and maps.
type Descriptor struct {
	SchemaVersion string
	Kind          string
	DisplayName   string // display only, like the next four
	Author        string // "Name <mail>", commas between several
	Description   string
	SourceURL     string
	IconURL       string // absolute https URL
	Version       string // fallback for provides without a version (§5.2)
	Licenses      []string
	Provides      []string // "name" or "name@version" (§5)
	Requires      []string
	Integrates    []string
	Conflicts     []string
	Capabilities  []Item
	Args          map[string]Arg
	Build         string // Dockerfile text (§3.2)
	Dockerfile    string // path relative to the descriptor's directory (§3.1)
	Kits          []KitRef
}

// An Item is one element of the capabilities list: an entry or, if Group is
// set, a group.
type Item struct {
	capability.Request
	Group *Group
}

// A Group is a set of entries taken or left as one (§7.1.1).
type Group struct {
	Name         string // display only, never identity
	Description  string
	Optional     bool // false: the Kit is refused unless all members are accepted
	Capabilities []capability.Request
}

// An Arg is a declared argument (§6). It is build-phase if BuildArg is set and
// create-phase otherwise.
type Arg struct {
	Default     *string // nil: none; an empty default counts
	Required    bool
	Description string
	Enum        []string
	Pattern     string // RE2, matched against the whole value
	Env         string // name under which the container sees the value
	BuildArg    string // name under which the recipe sees the value
}

// A KitRef is one element of a set's kits list (§3.4).
type KitRef struct {
	Ref    string
	Digest string // sha256:…; required when published
	Args   map[string]string
}

// Finder looks up the grammar of a capability type.
type Finder func(typ string) (capability.Definition, bool)

// Options say how a document is to be read.
type Options struct {
	// File names the source in diagnostics. It may be empty; nothing is read
	// from it.
	File string

	// Form picks the rules. The zero value is the authored form.
	Form capability.Form

	// Unselected, in the effective form, accepts groups: the descriptor has
	// been expanded and its groups have not been offered to a selector yet.
	// Rules that depend on the selection wait for it.
	Unselected bool

	// Find looks up capability types; nil means the well-known ones. Types it
	// does not know are opaque (§7.3).
	Find Finder
}

// ErrInvalid is the cause of every error made from [Diagnostics]. It belongs to
// the family [kiterr.ErrRefused].
var ErrInvalid = &invalidError{}

type invalidError struct{}

func (*invalidError) Error() string { return "invalid descriptor" }

func (*invalidError) Is(target error) bool { return target == kiterr.ErrRefused }

// errNotStated is returned by encoders for a value that would change its
// meaning by being left out.
var errNotStated = errors.New("is stated but empty: leaving it out would grant more")

// Requests returns all entries of d in order, members of groups included, as
// the permission surface of a publication counts them (§7.4).
func (d Descriptor) Requests() []capability.Request {
	out := make([]capability.Request, 0, len(d.Capabilities))
	for _, it := range d.Capabilities {
		if it.Group == nil {
			out = append(out, it.Request)
			continue
		}
		out = append(out, it.Group.Capabilities...)
	}
	return out
}

// HasGroups reports whether d holds a group.
func (d Descriptor) HasGroups() bool {
	for _, it := range d.Capabilities {
		if it.Group != nil {
			return true
		}
	}
	return false
}
