// Package argv is the grammar of commands as capability configs write them:
// text for a shell, or a list of arguments. Substituting into a command and
// running it is the runtime's business.
package argv

import (
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability/textlist"
)

// A Command is a whole command. At most one of the fields is set; the zero
// value is no command.
type Command struct {
	Shell string   // run by sh -c
	List  []string // executed as it is; empty and not nil for a stated empty list
}

// Argv returns what is executed: List, or sh -c Shell. It is nil for no
// command. Two commands are the same if their Argv are equal.
func (c Command) Argv() []string {
	switch {
	case c.List != nil:
		return c.List
	case c.Shell != "":
		return []string{"sh", "-c", c.Shell}
	}
	return nil
}

// IsZero reports whether c is no command.
func (c Command) IsZero() bool { return c.List == nil && c.Shell == "" }

// Equal reports whether c and d execute the same, so that text equals its
// [sh, -c, …] spelling.
func (c Command) Equal(d Command) bool { return slices.Equal(c.Argv(), d.Argv()) }

// Fault says why c cannot be run, or returns "" if it can: it must name a
// program, and no argument can hold a NUL byte.
func (c Command) Fault() string {
	switch {
	case c.List == nil && strings.TrimSpace(c.Shell) == "":
		return "a command is required: text for sh -c, or a list of arguments"
	case c.List != nil && (len(c.List) == 0 || strings.TrimSpace(c.List[0]) == ""):
		return "the command names no program: the first argument is missing or blank"
	}
	if strings.IndexByte(c.Shell, 0) >= 0 {
		return "a command cannot hold a NUL byte"
	}
	return Tail(c.List).Fault()
}

// A Tail is arguments appended to a launch command. Nil is not stated; empty
// is stated, and appends nothing.
type Tail []string

// Fault says why t cannot be appended, or returns "".
func (t Tail) Fault() string {
	for _, a := range t {
		if strings.IndexByte(a, 0) >= 0 {
			return "an argument cannot hold a NUL byte"
		}
	}
	return ""
}

// Mentions reports whether an argument contains placeholder.
func (t Tail) Mentions(placeholder string) bool {
	for _, a := range t {
		if strings.Contains(a, placeholder) {
			return true
		}
	}
	return false
}

var errShape = errors.New("must be text or a list of text, in which numbers, true and false are in quotes")

// UnmarshalJSONFrom reads text or a list of text.
func (c *Command) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	args, list, err := textlist.Decode(dec, func(s string) string { return s }, errShape)
	switch {
	case err != nil:
		return err
	case list:
		*c = Command{List: args}
	default:
		*c = Command{Shell: args[0]}
	}
	return nil
}

// MarshalJSONTo writes c as it was written.
func (c Command) MarshalJSONTo(enc *jsontext.Encoder) error {
	if c.List == nil {
		return enc.WriteToken(jsontext.String(c.Shell))
	}
	return textlist.Encode(enc, c.List)
}
