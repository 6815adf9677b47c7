package credential

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// A question is the body of a token request, as a form or as JSON.
type question struct {
	form url.Values
	doc  map[string]any
}

func parseQuestion(h http.Header, body []byte) (*question, error) {
	bad := func(text string) error { return &declined{http.StatusBadRequest, "invalid_request", text} }
	switch {
	case len(body) > maxExchange:
		return nil, &declined{http.StatusRequestEntityTooLarge, "invalid_request", "the request is too long"}
	case h.Get("Content-Encoding") != "":
		return nil, bad("a token request is sent without an encoding")
	}
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch kind {
	case "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		if err != nil || len(form["grant_type"]) > 1 || len(form["refresh_token"]) > 1 {
			return nil, bad("the form cannot be read")
		}
		return &question{form: form}, nil
	case "application/json":
		q := &question{}
		if err := json.Unmarshal(body, &q.doc); err != nil || q.doc == nil {
			return nil, bad("the document cannot be read")
		}
		return q, nil
	}
	return nil, &declined{http.StatusUnsupportedMediaType, "invalid_request", "a token request is a form or JSON"}
}

func (q *question) get(name string) string {
	if q.form != nil {
		return q.form.Get(name)
	}
	text, _ := q.doc[name].(string)
	return text
}

func (q *question) set(name, value string) {
	if q.form != nil {
		q.form.Set(name, value)
		return
	}
	q.doc[name] = value
}

func (q *question) encode() []byte {
	if q.form != nil {
		return []byte(q.form.Encode())
	}
	b, err := json.Marshal(q.doc)
	if err != nil {
		return nil // it was read as JSON
	}
	return b
}

// harmless is v without fields that hold secrets by their names, and without
// texts that hold one of hidden.
func harmless(v any, hidden []string, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		if depth > 8 {
			return nil
		}
		out := map[string]any{}
		for name, e := range v {
			plain := strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
			secret := false
			for _, word := range []string{"token", "secret", "password", "apikey", "credential", "assertion", "cookie", "session", "jwt"} {
				secret = secret || strings.Contains(plain, word)
			}
			if secret || plain == "key" {
				continue
			}
			if e = harmless(e, hidden, depth+1); e != nil {
				out[name] = e
			}
		}
		return out
	case []any:
		if depth > 8 {
			return nil
		}
		out := []any{}
		for _, e := range v {
			if e = harmless(e, hidden, depth+1); e != nil {
				out = append(out, e)
			}
		}
		return out
	case string:
		for _, h := range hidden {
			if h != "" && strings.Contains(v, h) {
				return nil
			}
		}
	}
	return v
}
