package vault_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A login for a registry is nobody's to present but kitbox's own.
func TestLoginsOfRegistriesAreApart(t *testing.T) {
	v := vault.Open(t.TempDir())
	at := vault.Scope{Kind: vault.Registry, Name: "ghcr.example:5000"}
	if err := v.Put(t.Context(), vault.Entry{Service: vault.RegistryService, Scope: at}, vault.Secret{Value: secret.New([]byte("me:pass:word"))}); err != nil {
		t.Fatal(err)
	}
	if user, password, err := v.Login("GHCR.example:5000"); err != nil || user != "me" || password != "pass:word" {
		t.Errorf("%q %q, %v", user, password, err)
	}
	for _, host := range []string{"ghcr.example", "", "other.example"} {
		if _, _, err := v.Login(host); err == nil {
			t.Errorf("there is a login for %q", host)
		}
	}
	// A Kit may call its service what it likes, and itself after a registry.
	for _, c := range [][2]string{{"", ""}, {"ghcr.example:5000", ""}, {"", "ghcr.example:5000"}} {
		if _, _, err := v.Find(vault.RegistryService, c[0], c[1]); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("kit %q, sandbox %q: %v", c[0], c[1], err)
		}
	}
	if err := v.Put(t.Context(), vault.Entry{Service: "github", Scope: at}, vault.Secret{Value: secret.New([]byte("x"))}); err == nil {
		t.Error("another service for a registry")
	}
	if es, err := v.List(); err != nil || len(es) != 1 || es[0].Scope != at {
		t.Errorf("%+v, %v", es, err)
	}
	for _, bad := range []string{"", "me", "me:", ":x", "me:x\ny"} {
		if err := vault.CheckLogin(secret.New([]byte(bad))); err == nil || strings.Contains(err.Error(), bad) && bad != "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
