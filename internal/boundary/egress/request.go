package egress

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// anyMethod is the method of a rule that stands for every method.
const anyMethod = "ANY"

// A bound says which HTTP requests a rule is about.
type bound struct {
	text    string   // for messages
	methods []string // nil: every method
	paths   []*regexp.Regexp
}

// parseBound returns the bound of r, nil if it has none.
func parseBound(r plan.EgressRule, pat pattern) (*bound, error) {
	if !r.Bounded() {
		return nil, nil
	}
	if len(r.Methods) == 0 {
		return nil, fmt.Errorf("pattern %s: paths need methods beside them: ANY if every method is meant", quote(r.Pattern))
	}
	if r.Allow && (pat.scope != exact && pat.scope != network || pat.scope == network && !pat.prefix.IsSingleIP()) {
		return nil, fmt.Errorf("pattern %s: what allows particular requests names its host, without a wildcard", quote(r.Pattern))
	}
	b := &bound{text: strings.Join(r.Methods, ",")}
	if len(r.Paths) > 0 {
		b.text += " " + strings.Join(r.Paths, ",")
	}
	for _, m := range r.Methods {
		switch {
		case m == anyMethod && len(r.Methods) > 1:
			return nil, fmt.Errorf("pattern %s: ANY covers every method and stands alone", quote(r.Pattern))
		case !methodToken(m):
			return nil, fmt.Errorf("pattern %s: %s is not a method: an upper case token such as GET, or ANY", quote(r.Pattern), quote(m))
		case m != anyMethod:
			b.methods = append(b.methods, m)
		}
	}
	for _, p := range r.Paths {
		re, err := compileGlob(p, !r.Allow)
		if err != nil {
			return nil, fmt.Errorf("pattern %s: path %s can match no request: %w", quote(r.Pattern), quote(p), err)
		}
		b.paths = append(b.paths, re)
		if p, ok := strings.CutSuffix(p, "/"); ok && p != "" && !r.Allow {
			if re, err = compileGlob(p, true); err == nil {
				b.paths = append(b.paths, re)
			}
		}
	}
	return b, nil
}

// methodToken reports whether m is an HTTP method without lower case letters
// (RFC 9110 §5.6.2).
func methodToken(m string) bool {
	for i := range len(m) {
		switch c := m[i]; {
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return m != ""
}

// compileGlob makes a matcher of a path glob: * is anything within a segment,
// ** anything at all, and everything else itself, in any case if fold is set. It
// takes time linear in the path, whatever the glob.
func compileGlob(glob string, fold bool) (*regexp.Regexp, error) {
	text, err := DecodePath(glob)
	if err != nil {
		return nil, err
	}
	var re strings.Builder
	re.WriteString(`(?s)\A`)
	if fold {
		re.WriteString(`(?i)`)
	}
	for text != "" {
		switch i := strings.IndexByte(text, '*'); {
		case strings.HasPrefix(text, "**"):
			re.WriteString(".*")
			text = strings.TrimLeft(text, "*")
		case i == 0:
			re.WriteString("[^/]*")
			text = text[1:]
		case i < 0:
			re.WriteString(regexp.QuoteMeta(text))
			text = ""
		default:
			re.WriteString(regexp.QuoteMeta(text[:i]))
			text = text[i:]
		}
	}
	re.WriteString(`\z`)
	return regexp.Compile(re.String())
}

// maxPath bounds a path that is judged, in bytes.
const maxPath = 16 << 10

// maxMethod bounds a method that is judged, in bytes; the longest registered
// one has 17.
const maxMethod = 64

// DecodePath returns the path that rules are matched with, of a request's path
// as it was sent, without its query. A path that some servers read as another
// one than the sender shows is an error: dot segments, empty segments,
// backslashes, and escaped slashes, dots, backslashes and percent signs.
func DecodePath(raw string) (string, error) {
	if !strings.HasPrefix(raw, "/") {
		return "", errors.New("a path begins with /")
	}
	if len(raw) > maxPath {
		return "", fmt.Errorf("the path is longer than %d bytes", maxPath)
	}
	if plainPath(raw) {
		return raw, nil
	}
	return decodePath(raw)
}

// decodePath is DecodePath of any path of a bearable length.
func decodePath(raw string) (string, error) {
	var b strings.Builder
	b.Grow(len(raw))
	for i := 0; i < len(raw); i++ {
		c, escaped := raw[i], false
		if c == '%' {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", errors.New("the path has a percent sign that escapes nothing")
			}
			c, escaped = unhex(raw[i+1])<<4|unhex(raw[i+2]), true
			i += 2
		}
		switch {
		case c < 0x20 || c == 0x7f:
			return "", errors.New("the path has a control character")
		case c == '\\':
			return "", errors.New("the path has a backslash, which some servers read as a slash")
		case escaped && (c == '/' || c == '.' || c == '%'):
			return "", fmt.Errorf("the path has an escaped %q, which some servers read as a plain one", c)
		case !escaped && (c == '?' || c == '#'):
			return "", fmt.Errorf("a path has no %q", c)
		}
		b.WriteByte(c)
	}
	path := b.String()
	for i, segment := range strings.Split(path[1:], "/") {
		// Some servers cut parameters off before they look at dots.
		switch bare, _, _ := strings.Cut(segment, ";"); {
		case bare == "." || bare == "..":
			return "", errors.New("the path has a dot segment")
		case segment == "" && i < strings.Count(path, "/")-1, bare == "" && segment != "":
			return "", errors.New("the path has an empty segment")
		}
	}
	return path, nil
}

// plainPath reports whether nothing in raw, a path, needs the look of decodePath.
func plainPath(raw string) bool {
	for i := range len(raw) {
		switch c := raw[i]; {
		case c < 0x20 || c == 0x7f || strings.IndexByte(`\%?#;`, c) >= 0:
			return false
		case c == '/' && i+1 < len(raw) && (raw[i+1] == '/' || raw[i+1] == '.'):
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// withoutParameters cuts ;name=value off every segment, as some servers do
// before they look for what was asked.
func withoutParameters(path string) string {
	if !strings.Contains(path, ";") {
		return path
	}
	segments := strings.Split(path, "/")
	for i := range segments {
		segments[i], _, _ = strings.Cut(segments[i], ";")
	}
	return strings.Join(segments, "/")
}

// admits reports whether b allows a request. Methods are case-sensitive: what
// is almost GET is another method.
func (b *bound) admits(method, path string) bool {
	return (b.methods == nil || slices.Contains(b.methods, method)) && b.onPath(path)
}

// refuses reports whether b denies a request. A server may be more lenient than
// HTTP is, so a denial covers what some would read as the request it means: another
// case, a slash at the end or none, parameters.
func (b *bound) refuses(method, path string) bool {
	if b.methods != nil && !slices.ContainsFunc(b.methods, func(m string) bool { return strings.EqualFold(m, method) }) {
		return false
	}
	bare := withoutParameters(path)
	return b.onPath(path) || b.onPath(strings.TrimSuffix(path, "/")) || b.onPath(bare) || b.onPath(strings.TrimSuffix(bare, "/"))
}

func (b *bound) onPath(path string) bool {
	return b.paths == nil || slices.ContainsFunc(b.paths, func(re *regexp.Regexp) bool { return re.MatchString(path) })
}
