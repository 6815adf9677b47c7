package spec

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// CanonicalConfig returns a config in the one form that equal configs share:
// keys sorted, no blanks, numbers in shortest form (RFC 8785). A number that the
// RFC would round keeps all of its digits, because two configs that differ in
// the last one are not the same ask. What is not JSON comes back as it is.
func CanonicalConfig(config jsontext.Value) jsontext.Value {
	c := config.Clone()
	if c.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		return config
	}
	dec := jsontext.NewDecoder(bytes.NewReader(c))
	out := make([]byte, 0, len(c))
	done := 0
	for {
		if dec.PeekKind() != '0' {
			if _, err := dec.ReadToken(); err != nil {
				return append(out, c[done:]...)
			}
			continue
		}
		n, err := dec.ReadValue()
		if err != nil { // not reached: c is canonical
			return config
		}
		end := int(dec.InputOffset())
		out = append(append(out, c[done:end-len(n)]...), canonicalNumber(string(n))...)
		done = end
	}
}

// canonicalNumber returns what all spellings of the JSON number s share.
func canonicalNumber(s string) string {
	exact, ok := decimalOf(s)
	if !ok {
		return s
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if rounded, _ := decimalOf(strconv.FormatFloat(f, 'e', -1, 64)); rounded == exact {
			v := jsontext.Value(s)
			if v.Canonicalize() == nil {
				return string(v)
			}
		}
	}
	sign := ""
	if exact.negative {
		sign = "-"
	}
	return sign + exact.digits + "e" + strconv.Itoa(exact.exponent)
}

// A decimal is digits × 10^exponent, with no zero at either end of the digits.
// The zero value is zero.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// decimalOf is false if the exponent is out of all proportion.
func decimalOf(s string) (decimal, bool) {
	s, negative := strings.CutPrefix(s, "-")
	exponent := 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.ParseInt(s[i+1:], 10, 32)
		if err != nil {
			return decimal{}, false
		}
		s, exponent = s[:i], int(e)
	}
	whole, fraction, _ := strings.Cut(s, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return decimal{}, true
	}
	return decimal{negative, short, exponent + len(digits) - len(short)}, true
}
