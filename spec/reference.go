package spec

import (
	"errors"
	"strings"
)

// A Scope is the vocabulary a reference draws from.
type Scope string

// The scopes of §6 and §6.1.
const (
	ScopeArgs Scope = "args"
	ScopeEnv  Scope = "env"
)

// A Reference is one `${{ kit.<scope>.<name> }}` in a text. Start and End are
// byte offsets.
type Reference struct {
	Scope      Scope
	Name       string
	Start, End int
}

// ErrMalformedReference means that a text begins a Kit placeholder and does not
// complete one.
var ErrMalformedReference = errors.New("malformed placeholder: write ${{ kit.args.NAME }} or ${{ kit.env.NAME }}")

const opening, closing = "${{", "}}"

// References returns the Kit references of s in order. Expressions of other
// languages with the same delimiters pass untouched; what begins with "kit."
// must be one of ours.
func References(s string) ([]Reference, error) {
	var refs []Reference
	for at := 0; ; {
		i := strings.Index(s[at:], opening)
		if i < 0 {
			return refs, nil
		}
		start := at + i
		at = start + len(opening)
		inner := strings.TrimLeft(s[at:], " \t")
		if !strings.HasPrefix(inner, "kit.") {
			continue
		}
		end := strings.Index(s[at:], closing)
		if end < 0 {
			return nil, ErrMalformedReference
		}
		inner = strings.Trim(s[at:at+end], " \t")
		end += at + len(closing)
		scope, name, _ := strings.Cut(inner[len("kit."):], ".")
		if scope != string(ScopeArgs) && scope != string(ScopeEnv) || !ValidArgKey(name) {
			return nil, ErrMalformedReference
		}
		refs = append(refs, Reference{Scope(scope), name, start, end})
		at = end
	}
}

// WholeReference returns the reference that s consists of, if it is exactly
// one.
func WholeReference(s string) (Reference, bool) {
	if !strings.HasPrefix(s, opening) || !strings.HasSuffix(s, closing) {
		return Reference{}, false
	}
	refs, err := References(s)
	if err != nil || len(refs) != 1 || refs[0].Start != 0 || refs[0].End != len(s) {
		return Reference{}, false
	}
	return refs[0], true
}

// BeginsPlaceholder reports whether s holds the beginning of a Kit placeholder,
// complete or not. No value that is inserted may.
func BeginsPlaceholder(s string) bool {
	for {
		i := strings.Index(s, opening)
		if i < 0 {
			return false
		}
		s = s[i+len(opening):]
		if strings.HasPrefix(strings.TrimLeft(s, " \t"), "kit.") {
			return true
		}
	}
}

// ValidArgKey reports whether s is an argument key, which has the grammar of an
// environment variable: `[A-Za-z_][A-Za-z0-9_]*` (§6).
func ValidArgKey(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
