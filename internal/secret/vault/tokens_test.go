package vault_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret/vault"
)

func TestParseTokens(t *testing.T) {
	now := time.Unix(1700000000, 0)
	far := time.UnixMilli(1893456000123).UTC()
	for doc, want := range map[string]struct {
		access, refresh, key string
		expires              time.Time
		scopes               string
		client               string
	}{
		`{"access_token":"a","refresh_token":"r","expires_in":3600,"scope":"x y","token_type":"Bearer"}`:                                       {"a", "r", "", now.Add(time.Hour), "x y", ""},
		`{"claudeAiOauth":{"accessToken":"a","refreshToken":"r","expiresAt":1893456000123,"scopes":["x","y"],"subscriptionType":"max"},"v":1}`: {"a", "r", "", far, "x y", ""},
		`{"OPENAI_API_KEY":null,"tokens":{"id_token":"i","access_token":"a","refresh_token":null,"client_id":"c"},"last_refresh":"x"}`:         {"a", "", "", time.Time{}, "", "c"},
		`{"accessToken":"a","primaryApiKey":"k","expiresAt":"2030-01-01T00:00:00Z"}`:                                                           {"a", "", "k", time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), "", ""},
		`{"accessToken":"a","expires_at":1893456000}`:                                                                                          {"a", "", "", time.Unix(1893456000, 0).UTC(), "", ""},
	} {
		got, err := vault.ParseTokens([]byte(doc), now)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		if string(got.Access.Expose()) != want.access || string(got.Refresh.Expose()) != want.refresh || string(got.Key.Expose()) != want.key ||
			!got.Expires.Equal(want.expires) || strings.Join(got.Scopes, " ") != want.scopes || got.Params["client_id"] != want.client {
			t.Errorf("%s: %q %q %q %v %v %v", doc, got.Access.Expose(), got.Refresh.Expose(), got.Key.Expose(), got.Expires, got.Scopes, got.Params)
		}
	}
	for _, doc := range []string{"", "hush", `{"hush":1}`, `["access_token"]`, `{"access_token":""}`, `{"access_token":"hu\nsh"}`, `{"access_token":"x","refresh_token":7}`, `{"access_token":"x","expires_at":"hush"}`} {
		if _, err := vault.ParseTokens([]byte(doc), now); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
