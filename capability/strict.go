package capability

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrNoConfig means that a config was required and is absent or null.
var ErrNoConfig = errors.New("config is required")

// Decode decodes r's config into dst and accepts nothing else: no unknown
// field, no field in another case, no field twice, no second value, no null
// for the whole and no absence. A field that is ignored today is a grant that
// nobody reviewed tomorrow.
func Decode(r Request, dst any) error {
	if c := bytes.TrimSpace(r.Config); len(c) == 0 || string(c) == "null" {
		return fmt.Errorf("capability %s: %w", r.Type, ErrNoConfig)
	}
	if err := json.Unmarshal(r.Config, dst, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("capability %s: %w", r.Type, err)
	}
	return nil
}

// Encode returns the request of type typ whose config is src, in canonical
// form: map keys sorted, no insignificant space.
func Encode(typ string, src any) (Request, error) {
	b, err := json.Marshal(src, json.Deterministic(true))
	if err != nil {
		return Request{}, fmt.Errorf("capability %s: %w", typ, err)
	}
	v := jsontext.Value(b)
	if err := v.Canonicalize(); err != nil {
		return Request{}, fmt.Errorf("capability %s: %w", typ, err)
	}
	return Request{Type: typ, Config: v}, nil
}
