package intercept

import (
	"net/http"
	"slices"
	"strings"
)

// overrides are headers, and parameters of a query, by which some servers let a
// request be one with another method; only their letters.
var overrides = []string{"xhttpmethodoverride", "xhttpmethod", "xmethodoverride"}

// maxOverrides is how many methods besides its own a request may ask for. No client
// asks for more than one, and each is a decision.
const maxOverrides = 2

// others returns the methods, apart from its own, that some server could take r to
// have: what headers and the query ask for, in whatever spelling a server takes for
// the same. Bodies are not looked at.
func others(r *http.Request) (methods []string) {
	add := func(value string) {
		for m := range strings.SplitSeq(value, ",") {
			m = strings.ToUpper(strings.TrimSpace(m))
			if m != "" && m != r.Method && !slices.Contains(methods, m) && len(methods) <= maxOverrides {
				methods = append(methods, m)
			}
		}
	}
	for name, values := range r.Header {
		if overriding(name) {
			for _, v := range values {
				add(v)
			}
		}
	}
	_, query, _ := strings.Cut(r.RequestURI, "?")
	for query != "" {
		var pair string
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			pair, query = query, ""
		}
		key, value, _ := strings.Cut(pair, "=")
		if key = unescape(key); overriding(key) || methodKey(key) {
			add(unescape(value))
		}
	}
	slices.Sort(methods) // a header has no order
	return methods
}

// overriding reports whether name is one of overrides in some spelling: with
// underscores, as programs behind CGI and its kin see every header, or with whatever
// else is turned into one.
func overriding(name string) bool {
	return slices.ContainsFunc(overrides, func(want string) bool { return letters(name, want) })
}

// methodKey reports whether key is the parameter _method. PHP drops spaces before a
// name and reads dots, spaces and brackets in it as underscores.
func methodKey(key string) bool {
	key = strings.TrimLeft(key, " ")
	return len(key) == len("_method") && strings.IndexByte("_. [", key[0]) >= 0 && strings.EqualFold(key[1:], "method")
}

// letters reports whether the letters of name are those of want, which are lower
// case, in any case.
func letters(name, want string) bool {
	n := 0
	for i := range len(name) {
		c := name[i] | 0x20
		if c < 'a' || c > 'z' {
			continue
		}
		if n == len(want) || c != want[n] {
			return false
		}
		n++
	}
	return n == len(want)
}

// unescape decodes what can be decoded and leaves the rest.
func unescape(s string) string {
	if !strings.ContainsAny(s, "%+") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '+':
			c = ' '
		case c == '%' && i+2 < len(s):
			hi, lo := strings.IndexByte(hex, s[i+1]|0x20), strings.IndexByte(hex, s[i+2]|0x20)
			if hi >= 0 && lo >= 0 {
				c = byte(hi<<4 | lo)
				i += 2
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}

const hex = "0123456789abcdef"
