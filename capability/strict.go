package capability

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrNoConfig means that a config was required and is absent or null.
var ErrNoConfig = errors.New("config is required")

// strict is what every config is decoded with. Case, duplicates and invalid
// UTF-8 are refused by default.
var strict = json.RejectUnknownMembers(true)

// Decode decodes r's config into dst and accepts nothing else: no unknown
// field, no field in another case, no field twice, no second value, no null
// anywhere and no absence. A field that is ignored today is a grant that nobody
// reviewed tomorrow. Nullable is as in [Inspection.Read]. The values are not
// judged; the packages of the types do that.
func Decode(r Request, dst any, nullable ...string) error {
	config := bytes.TrimSpace(r.Config)
	if len(config) == 0 || string(config) == "null" {
		return fmt.Errorf("capability %s: %w", r.Type, ErrNoConfig)
	}
	if nulls := Nulls(config, nullable...); len(nulls) > 0 {
		return fmt.Errorf("capability %s: %s is null", r.Type, nulls[0])
	}
	if err := json.Unmarshal(config, dst, strict); err != nil {
		return fmt.Errorf("capability %s: config: %s", r.Type, explain(err))
	}
	return nil
}

// Encode returns the request of type typ whose config is src, in canonical
// form: map keys sorted, no insignificant space. Numbers stay as they are
// spelled, because the canonical spelling of a large integer is another number.
func Encode(typ string, src any) (Request, error) {
	b, err := json.Marshal(src, json.Deterministic(true))
	if err != nil {
		return Request{}, fmt.Errorf("capability %s: %w", typ, err)
	}
	v := jsontext.Value(b)
	if err := v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return Request{}, fmt.Errorf("capability %s: %w", typ, err)
	}
	return Request{Type: typ, Config: v}, nil
}

// explain renders a decoding error for an author, who knows fields and values
// but neither Go types nor JSON pointers.
func explain(err error) string {
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		at := place(semantic.JSONPointer)
		switch {
		case errors.Is(semantic.Err, json.ErrUnknownName):
			return fmt.Sprintf("there is no field %s%s", at, instead(semantic.GoType))
		case semantic.Err != nil:
			return fmt.Sprintf("%s: %v", at, semantic.Err)
		case semantic.GoType != nil:
			return fmt.Sprintf("%s must be %s, not %s", at, wanted(semantic.GoType), found(semantic.JSONKind))
		}
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		if errors.Is(syntactic.Err, jsontext.ErrDuplicateName) {
			return fmt.Sprintf("field %s is stated twice", syntactic.JSONPointer.LastToken())
		}
		return fmt.Sprintf("is not well formed: %v", syntactic.Err)
	}
	return err.Error()
}

// instead lists the fields of t, a structure in which another was stated.
func instead(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.IsExported() && name != "" && name != "-" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; what may stand there: " + strings.Join(names, ", ")
}

// place names the field at p.
func place(p jsontext.Pointer) string {
	if p == "" {
		return "the config"
	}
	return strings.TrimPrefix(dotted(p), ".")
}

// wanted names the values that t takes.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "a list"
	default:
		return "a map of fields"
	}
}

// found names what stood in its place.
func found(k jsontext.Kind) string {
	switch k {
	case '"':
		return "text"
	case '0':
		return "a number"
	case 't', 'f':
		return "a boolean"
	case '[':
		return "a list"
	case '{':
		return "a map"
	default:
		return "that"
	}
}
