// Package constraint is the grammar of names, versions and the relations
// between Kits (§5): what `provides`, `requires`, `integrates` and `conflicts`
// may say, how versions compare, and what the reference by which a Kit is
// consumed says about its version.
//
// It judges one entry at a time and knows neither descriptors nor sets of
// Kits; those are in packages spec and resolve. Everything is pure.
package constraint

import (
	"errors"
	"fmt"
	"strings"
)

// DefaultNamespace is the namespace of a name that states none (§5.1).
const DefaultNamespace = "com.docker.kit"

// Namespaces of provides that are derived from package databases when a
// workload is published, and never authored (§9.6).
const (
	NamespaceDeb = "deb"
	NamespaceApk = "apk"
)

// ErrNamespace means that a namespace is reserved or is not reverse-DNS. It
// wraps nothing and is wrapped by [ParseName].
var ErrNamespace = errors.New("reserved or malformed namespace")

// A Name is a normalized capability name. The zero value is not a name.
type Name struct {
	Namespace string // never empty in a parsed Name
	Base      string
}

// String returns the full form, namespace/base, by which names are matched,
// locked and shown.
func (n Name) String() string { return n.Namespace + "/" + n.Base }

// Short returns the form an author would write: the base alone in the default
// namespace.
func (n Name) Short() string {
	if n.Namespace == DefaultNamespace {
		return n.Base
	}
	return n.String()
}

// Derived reports whether n is in one of the namespaces that only publishing
// may fill.
func (n Name) Derived() bool { return n.Namespace == NamespaceDeb || n.Namespace == NamespaceApk }

// ParseName parses `base` or `namespace/base` (§5.1). The derived namespaces
// are accepted: whether they may stand somewhere depends on the field.
// Other single-label namespaces give an error that matches [ErrNamespace].
func ParseName(s string) (Name, error) {
	ns, base, ok := strings.Cut(s, "/")
	if !ok {
		ns, base = DefaultNamespace, s
	}
	if err := checkBase(base); err != nil {
		return Name{}, fmt.Errorf("%q is not a name: %w", s, err)
	}
	if ok && ns != NamespaceDeb && ns != NamespaceApk {
		if err := checkNamespace(ns); err != nil {
			return Name{}, fmt.Errorf("%q is not a name: %w: %s", s, ErrNamespace, err)
		}
	}
	return Name{ns, base}, nil
}

func checkBase(s string) error {
	if s == "" {
		return errors.New("the base is empty")
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case lowerAlnum(c):
		case i > 0 && (c == '-' || c == '.' || c == '+'):
		default:
			return errors.New("use lowercase letters, digits, '-', '.' and '+', beginning with a letter or digit")
		}
	}
	if c := s[len(s)-1]; c == '-' || c == '.' {
		return errors.New("it ends in '-' or '.'")
	}
	return nil
}

// The bounds of DNS, which a reverse-DNS namespace inherits.
const (
	maxLabel     = 63
	maxNamespace = 253
)

func checkNamespace(s string) error {
	if len(s) > maxNamespace {
		return fmt.Errorf("the namespace is longer than %d characters", maxNamespace)
	}
	labels := 0
	for label := range strings.SplitSeq(s, ".") {
		labels++
		if label == "" || len(label) > maxLabel {
			return fmt.Errorf("each label of a namespace has 1 to %d characters", maxLabel)
		}
		for i := range len(label) {
			c := label[i]
			if !lowerAlnum(c) && (c != '-' || i == 0 || i == len(label)-1) {
				return errors.New("a label holds lowercase letters, digits and inner hyphens")
			}
		}
	}
	if labels < 2 {
		return errors.New("a namespace of one label is reserved; use a reverse-DNS name such as com.example")
	}
	return nil
}

func lowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// A Provide is one entry of `provides`. Version is empty when none is stated.
type Provide struct {
	Name    Name
	Version string
}

// String returns the normalized entry.
func (p Provide) String() string {
	if p.Version == "" {
		return p.Name.String()
	}
	return p.Name.String() + "@" + p.Version
}

// ParseProvide parses `name` or `name@version`. Blanks around the entry do not
// count. Arg references are not understood: parse after expansion.
func ParseProvide(s string) (Provide, error) {
	s = strings.TrimSpace(s)
	name, version, ok := strings.Cut(s, "@")
	n, err := ParseName(name)
	if err != nil {
		return Provide{}, err
	}
	if ok && !ValidVersion(version) {
		return Provide{}, fmt.Errorf("%q: %q is not a version: digits first, then '.'-separated parts of letters, digits and '-'", s, version)
	}
	return Provide{n, version}, nil
}

// AppendVersion returns entry with version appended if it states none, blanks
// trimmed. An empty version adds nothing.
func AppendVersion(entry, version string) string {
	entry = strings.TrimSpace(entry)
	if version == "" || strings.Contains(entry, "@") {
		return entry
	}
	return entry + "@" + version
}
