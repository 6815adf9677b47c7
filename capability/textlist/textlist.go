// Package textlist is the grammar of values that are text or a list of text. What the
// text means, and whether an empty list is allowed, is for whoever reads it.
package textlist

import "github.com/go-json-experiment/json/jsontext"

// Decode reads text or a list of text, and makes a value of each with each. list is
// false for text, which is the only value then. The values of an empty list are empty and
// not nil. Anything else in the place of text is the error shape.
func Decode[T any](dec *jsontext.Decoder, each func(string) T, shape error) (values []T, list bool, err error) {
	t, err := dec.ReadToken()
	if err != nil {
		return nil, false, err
	}
	switch t.Kind() {
	case '"':
		return []T{each(t.String())}, false, nil
	case '[':
	default:
		return nil, false, shape
	}
	values = []T{}
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return nil, false, err
		}
		switch t.Kind() {
		case '"':
			values = append(values, each(t.String()))
		case ']':
			return values, true, nil
		default:
			return nil, false, shape
		}
	}
}

// Encode writes values as a list, also when there is one or none.
func Encode[T ~string](enc *jsontext.Encoder, values []T) error {
	if err := enc.WriteToken(jsontext.BeginArray); err != nil {
		return err
	}
	for _, v := range values {
		if err := enc.WriteToken(jsontext.String(string(v))); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndArray)
}
