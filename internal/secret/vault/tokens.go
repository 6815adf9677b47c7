package vault

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret"
)

// ParseTokens reads the tokens in a JSON document: the answer of an OAuth server,
// or the file in which a tool keeps its own. Fields are known by their names, in
// any case and with or without underscores; the first object that has an access
// token is taken, however deep. No error quotes the document.
func ParseTokens(doc []byte, now time.Time) (Tokens, error) {
	var root any
	if err := json.Unmarshal(doc, &root); err != nil {
		return Tokens{}, errors.New("the document is not JSON")
	}
	found := findTokens(root, 0)
	if found == nil {
		return Tokens{}, errors.New("the document has no accessToken (or access_token)")
	}
	var t Tokens
	var expiresIn float64
	for name, v := range found {
		var err error
		switch plainName(name) {
		case "accesstoken":
			t.Access, err = tokenOf(v)
		case "refreshtoken":
			t.Refresh, err = tokenOf(v)
		case "apikey", "primaryapikey":
			t.Key, err = tokenOf(v)
		case "expiresat", "expiry":
			t.Expires, err = timeOf(v)
		case "expiresin":
			expiresIn, _ = v.(float64)
		case "scopes", "scope":
			t.Scopes = words(v)
		case "clientid":
			if id, ok := v.(string); ok && id != "" {
				t.Params = map[string]string{"client_id": id}
			}
		}
		if err != nil {
			return Tokens{}, fmt.Errorf("%s: %w", plainName(name), err)
		}
	}
	if t.Access.Empty() {
		return Tokens{}, errors.New("the access token is empty")
	}
	if t.Expires.IsZero() && expiresIn > 0 {
		t.Expires = now.Add(Seconds(expiresIn))
	}
	return t, nil
}

// Seconds is n seconds, ten years at most.
func Seconds(n float64) time.Duration {
	const most = 10 * 365 * 24 * 3600
	if math.IsNaN(n) || n < 0 {
		return 0
	}
	return time.Duration(min(n, most) * float64(time.Second))
}

// findTokens looks for the object with an access token, nearest to the root first.
func findTokens(v any, depth int) map[string]any {
	o, ok := v.(map[string]any)
	if !ok || depth > 4 {
		return nil
	}
	for name := range o {
		if _, text := o[name].(string); text && plainName(name) == "accesstoken" {
			return o
		}
	}
	for _, in := range o {
		if found := findTokens(in, depth+1); found != nil {
			return found
		}
	}
	return nil
}

func plainName(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

func tokenOf(v any) (secret.Value, error) {
	if v == nil {
		return secret.Value{}, nil
	}
	text, ok := v.(string)
	if !ok {
		return secret.Value{}, errors.New("it is not text")
	}
	if text == "" {
		return secret.Value{}, nil
	}
	s := secret.New([]byte(text))
	return s, s.Check()
}

// timeOf reads seconds or milliseconds since 1970, or a date.
func timeOf(v any) (time.Time, error) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, nil
	case float64:
		switch {
		case v <= 0 || v > 1e15:
			return time.Time{}, errors.New("it is no time")
		case v > 1e11: // the year 5138, in seconds
			return time.UnixMilli(int64(v)).UTC(), nil
		}
		return time.Unix(int64(v), 0).UTC(), nil
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return timeOf(n)
		}
		if t, err := time.Parse(time.RFC3339, v); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, errors.New("it is no time")
}

func words(v any) []string {
	var out []string
	switch v := v.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
