// Package bytesize is the grammar of sizes such as 512m, 1.5g, 2TB and 1gib.
// Every suffix counts in powers of 1024, whichever way it is spelled, and
// comparison is exact: 1.5g is 1536m, and no two sizes become equal by rounding.
package bytesize

import (
	"math"
	"math/big"
)

// Valid reports whether s is a size: decimal digits, possibly a fraction, and a
// suffix out of k, m, g, t and p in either case, possibly followed by i and b.
// A b alone, or nothing, means bytes.
func Valid(s string) bool {
	_, _, ok := split(s)
	return ok
}

// Equal reports whether a and b are sizes of as many bytes.
func Equal(a, b string) bool {
	x, ok := exact(a)
	if !ok {
		return false
	}
	y, ok := exact(b)
	return ok && x.Cmp(y) == 0
}

// Compare returns -1, 0 or 1 as a is less than, equal to or more than b. What is
// not a size is less than any size.
func Compare(a, b string) int {
	x, okA := exact(a)
	y, okB := exact(b)
	switch {
	case okA && okB:
		return x.Cmp(y)
	case okA:
		return 1
	case okB:
		return -1
	}
	return 0
}

// Bytes returns the number of whole bytes in s, at most [math.MaxInt64]. It is
// false if s is not a size.
func Bytes(s string) (int64, bool) {
	r, ok := exact(s)
	if !ok {
		return 0, false
	}
	whole := new(big.Int).Quo(r.Num(), r.Denom())
	if !whole.IsInt64() {
		return math.MaxInt64, true
	}
	return whole.Int64(), true
}

// exact returns the value of s in bytes.
func exact(s string) (*big.Rat, bool) {
	number, power, ok := split(s)
	if !ok {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return nil, false
	}
	scale := new(big.Int).Lsh(big.NewInt(1), 10*uint(power))
	return r.Mul(r, new(big.Rat).SetInt(scale)), true
}

// maxDigits bounds the number. A size of a thousand digits is nobody's size,
// and arithmetic on it costs more than its line is worth.
const maxDigits = 40

// split returns the number of s and the power of 1024 that its suffix means.
func split(s string) (number string, power int, ok bool) {
	i := digits(s, 0)
	if i == 0 {
		return "", 0, false
	}
	if i < len(s) && s[i] == '.' {
		j := digits(s, i+1)
		if j == i+1 {
			return "", 0, false
		}
		i = j
	}
	if i > maxDigits {
		return "", 0, false
	}
	number = s[:i]
	rest := s[i:]
	if rest == "" {
		return number, 0, true
	}
	switch rest[0] | 0x20 {
	case 'b':
		return number, 0, len(rest) == 1
	case 'k':
		power = 1
	case 'm':
		power = 2
	case 'g':
		power = 3
	case 't':
		power = 4
	case 'p':
		power = 5
	default:
		return "", 0, false
	}
	switch rest = rest[1:]; {
	case rest == "":
		return number, power, true
	case rest[0]|0x20 == 'i':
		rest = rest[1:]
		// "1gi" is understood, as "1g" is.
		return number, power, rest == "" || len(rest) == 1 && rest[0]|0x20 == 'b'
	default:
		return number, power, len(rest) == 1 && rest[0]|0x20 == 'b'
	}
}

// digits returns the index after the digits of s that begin at i.
func digits(s string, i int) int {
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return i
}
