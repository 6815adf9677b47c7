package credential

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"

	"github.com/kitbox-dev/kitbox/internal/boundary/echo"
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

// plain are the fields of an answer that sandboxes are told besides those that the
// Kit names: what clients of OAuth read (RFC 6749 §5.1), and whose tokens they are.
// Who needs another one can be given it here; no list of names could say which others
// hold a secret.
var plain = map[string]bool{
	"token_type": true, "expires_in": true, "scope": true, "expires_at": true, "created_at": true, "issued_at": true,
	"refresh_token_expires_in": true, "refresh_expires_in": true,
	"account_id": true, "account_uuid": true, "organization_id": true, "organization_uuid": true, "organisation_id": true, "user_id": true, "tenant_id": true,
}

// whose are the objects of an answer that say whose tokens they are, and identifying
// the fields of these that sandboxes are told.
var (
	whose       = map[string]bool{"account": true, "organization": true, "organisation": true, "user": true}
	identifying = map[string]bool{"uuid": true, "id": true, "name": true, "email": true, "email_address": true, "display_name": true, "full_name": true}
)

// told is what of doc sandboxes are told.
func told(doc map[string]any, real echo.Secrets) map[string]any {
	out := map[string]any{}
	for name, v := range doc {
		switch of, _ := v.(map[string]any); {
		case plain[name]:
			put(out, name, v, real)
		case whose[name] && of != nil:
			ids := map[string]any{}
			for id, v := range of {
				if identifying[id] {
					put(ids, id, v, real)
				}
			}
			out[name] = ids
		case whose[name]:
			put(out, name, v, real)
		}
	}
	return out
}

// put sets a field to a value that holds no others, without secrets.
func put(out map[string]any, name string, v any, real echo.Secrets) {
	switch v := v.(type) {
	case float64, bool:
		out[name] = v
	case string:
		if len(v) <= maxText {
			out[name] = real.Mask(v)
		}
	}
}
