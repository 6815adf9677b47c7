package sandbox

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
)

// MaxName bounds the names of sandboxes, in bytes: a name is a host name label too.
const MaxName = 63

var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`) })

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
	case !namePattern().MatchString(name):
		return fmt.Errorf("sandbox name %q: use letters, digits, '.', '_' and '-', starting with a letter or digit", name)
	}
	return nil
}
