package vault

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Registry is the kind of a [Scope] whose name is the host of an image registry.
// What is kept for it is the operator's own way in, which no sandbox is ever given:
// [Vault.Find] does not look there.
const Registry = "registry"

// RegistryService is the service of secrets with that scope.
const RegistryService = "registry"

// Dir is where the secrets of a home are kept.
func Dir(home string) string { return filepath.Join(home, "secrets") }

// CheckLogin reports whether v can be a login: USER:PASSWORD.
func CheckLogin(v secret.Value) error {
	user, password, ok := bytes.Cut(v.Expose(), []byte{':'})
	if !ok || len(user) == 0 || len(password) == 0 || bytes.ContainsAny(v.Expose(), "\n\x00") {
		return errors.New("a login for a registry is one line USER:PASSWORD, with a token in the place of the password if it gives those")
	}
	return nil
}

// Login returns the login that is kept for the registry at host, as image
// references name it, or [kiterr.ErrNotFound].
func (v *Vault) Login(host string) (user, password string, err error) {
	_, s, err := v.Get(RegistryService, Scope{Registry, strings.ToLower(host)})
	if err != nil {
		return "", "", err
	}
	defer s.Value.Wipe()
	if err := CheckLogin(s.Value); err != nil {
		return "", "", fmt.Errorf("the secret for registry %s: %w: set it again: %w", host, err, kiterr.ErrUnsupported)
	}
	user, password, _ = strings.Cut(string(s.Value.Expose()), ":")
	return user, password, nil
}
