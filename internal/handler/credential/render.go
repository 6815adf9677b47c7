package credential

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability/credential"
)

// values are what the placeholders of a credential file stand for.
type values struct {
	access, refresh string
	key             string // empty: there is none
	scopes          []string
	expires         time.Time
}

// render encodes the structure of f with the placeholders replaced.
func (v values) render(f *credential.CredentialFile) (string, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(f.Structure))
	root, err := v.read(dec)
	if err != nil {
		return "", err
	}
	top, ok := root.(table)
	if !ok {
		return "", fmt.Errorf("its structure is no map")
	}
	if f.Encoding() == credential.TOML {
		return encodeTOML(top)
	}
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out, jsontext.WithIndent("  "))
	if err := encodeJSON(enc, top); err != nil {
		return "", err
	}
	return out.String(), nil // with a newline at its end
}

// A node of a structure is a table, a list, a string, a number, a bool or null.
type (
	table []field
	field struct {
		name  string
		value any
	}
	list   []any
	number string // as JSON spells it
	null   struct{}
)

// left is a value that is left out, with its name.
type left struct{}

// read reads one value and replaces placeholders in its strings.
func (v values) read(dec *jsontext.Decoder) (any, error) {
	t, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case '{':
		out := table{}
		for {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			if name.Kind() == '}' {
				return out, nil
			}
			key := name.String() // before the next token is read
			value, err := v.read(dec)
			if err != nil {
				return nil, err
			}
			if _, gone := value.(left); !gone {
				out = append(out, field{key, value})
			}
		}
	case '[':
		out := list{}
		for dec.PeekKind() != ']' {
			value, err := v.read(dec)
			if err != nil {
				return nil, err
			}
			if _, gone := value.(left); !gone {
				out = append(out, value)
			}
		}
		_, err := dec.ReadToken()
		return out, err
	case '"':
		return v.fill(t.String()), nil
	case '0':
		return number(t.String()), nil
	case 't', 'f':
		return t.Bool(), nil
	}
	return null{}, nil
}

// fill replaces the placeholders of s. One that is all of s has a type of its
// own; within a longer text each is text.
func (v values) fill(s string) any {
	millis := strconv.FormatInt(v.expires.UnixMilli(), 10)
	switch s {
	case "{{.ExpiresAt}}":
		return number(millis)
	case "{{.Scopes}}":
		out := list{}
		for _, scope := range v.scopes {
			out = append(out, scope)
		}
		return out
	}
	if strings.Contains(s, "{{.PrimaryApiKey}}") && v.key == "" {
		return left{}
	}
	return strings.NewReplacer("{{.AccessToken}}", v.access, "{{.RefreshToken}}", v.refresh, "{{.PrimaryApiKey}}", v.key,
		"{{.ExpiresAt}}", millis, "{{.Scopes}}", strings.Join(v.scopes, " ")).Replace(s)
}

func encodeJSON(enc *jsontext.Encoder, v any) error {
	var tokens []jsontext.Token
	switch v := v.(type) {
	case table:
		if err := enc.WriteToken(jsontext.BeginObject); err != nil {
			return err
		}
		for _, f := range v {
			if err := enc.WriteToken(jsontext.String(f.name)); err != nil {
				return err
			}
			if err := encodeJSON(enc, f.value); err != nil {
				return err
			}
		}
		tokens = append(tokens, jsontext.EndObject)
	case list:
		if err := enc.WriteToken(jsontext.BeginArray); err != nil {
			return err
		}
		for _, e := range v {
			if err := encodeJSON(enc, e); err != nil {
				return err
			}
		}
		tokens = append(tokens, jsontext.EndArray)
	case number:
		return enc.WriteValue(jsontext.Value(v))
	case null:
		tokens = append(tokens, jsontext.Null)
	default:
		return json.MarshalEncode(enc, v)
	}
	return enc.WriteToken(tokens[0])
}
