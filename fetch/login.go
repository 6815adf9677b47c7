package fetch

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Login is what docker's configuration has for a registry: the name and password
// of a user, or an identity token instead.
type Login struct{ Username, Password, IdentityToken string }

// helperTime bounds a credential helper. One that asks a person something must
// not hang who asks it.
const helperTime = 20 * time.Second

// FindLogin returns the login for registry, a host as image references name it,
// that the docker configuration in directory dir has, credential helpers included.
// None is [kiterr.ErrNotFound]. No error holds a part of a login.
func FindLogin(ctx context.Context, dir, registry string) (Login, error) {
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	store, err := credentials.NewStore(filepath.Join(dir, "config.json"), credentials.StoreOptions{DetectDefaultNativeStore: false})
	if err != nil {
		return Login{}, fmt.Errorf("docker's configuration in %s cannot be read", dir)
	}
	c, err := store.Get(ctx, credentials.ServerAddressFromRegistry(registry))
	if err != nil {
		// What a helper says may hold anything.
		return Login{}, fmt.Errorf("docker's configuration in %s or its credential helper fails for %s", dir, registry)
	}
	if c == auth.EmptyCredential || c.Username == "" && c.RefreshToken == "" {
		return Login{}, fmt.Errorf("login for %s: %w in %s: make one with 'docker login %s'", registry, kiterr.ErrNotFound, dir, registry)
	}
	return Login{c.Username, c.Password, c.RefreshToken}, nil
}
