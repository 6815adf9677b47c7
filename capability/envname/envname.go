// Package envname is the grammar of the names of environment variables.
package envname

// Valid reports whether s is letters, digits and underscores, beginning with
// none of the digits.
func Valid(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '_', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}
