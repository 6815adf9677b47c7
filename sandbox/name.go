package sandbox

import (
	"errors"
	"fmt"
)

// MaxName bounds the names of sandboxes, in bytes: a name is a host name label too.
const MaxName = 63

// CheckName returns an error unless name can be that of a sandbox: letters, digits,
// '.', '_' and '-', starting with a letter or digit, at most [MaxName] bytes. Such a
// name is a file name, and never an option or a path. The error is in no family: it is
// a mistake of the caller's, which no policy has a part in.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a sandbox name must not be empty")
	case len(name) > MaxName:
		return fmt.Errorf("sandbox name %.20q… has %d bytes, the limit is %d", name, len(name), MaxName)
	case !isName(name):
		return fmt.Errorf("sandbox name %q: use letters, digits, '.', '_' and '-', starting with a letter or digit", name)
	}
	return nil
}

// isName is written out: to make a pattern takes longer than all else that a command
// in a sandbox needs to know of it.
func isName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}
