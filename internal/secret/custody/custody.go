// Package custody is what users do with their secrets: it takes them, names
// them and forgets them, and implements [sandbox.SecretKeeper].
//
// Where they lie is internal/secret/vault; who presents them is
// internal/boundary/credential. None is ever shown.
package custody

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/identity"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/dotenv"
	"github.com/kitbox-dev/kitbox/internal/secret/helper"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Dir is where the secrets of a home are kept.
func Dir(home string) string { return vault.Dir(home) }

// A Custody has the secrets of a home. Its methods can be called concurrently.
type Custody struct {
	vault *vault.Vault
	ready func() error
}

// New returns the custody of the secrets in v. ready makes the home, before the
// first is kept in it.
func New(v *vault.Vault, ready func() error) *Custody { return &Custody{v, ready} }

var _ sandbox.SecretKeeper = (*Custody)(nil)

// Stored says what a sandbox would present for a service.
func Stored(v *vault.Vault, service, identity, name string) (credential.Binding, error) {
	_, s, err := v.Find(service, identity, name)
	switch {
	case errors.Is(err, kiterr.ErrNotFound):
		return credential.Binding{}, nil
	case err != nil:
		return credential.Binding{}, err
	}
	if t := s.Tokens; t != nil {
		return credential.Binding{Form: credential.Tokens, Expires: t.Expires, Scopes: t.Scopes, Key: !t.Key.Empty()}, nil
	}
	s.Value.Wipe()
	return credential.Binding{Form: credential.Secret}, nil
}

// scopeOf says where the secret of r is kept.
func scopeOf(r sandbox.SecretRef) (vault.Scope, error) {
	switch {
	case r.Sandbox != "" && r.Kit != "", r.Registry != "" && (r.Sandbox != "" || r.Kit != ""):
		return vault.Scope{}, errors.New("a secret is for a sandbox, for a Kit or for a registry, not for two of them")
	case r.Registry != "":
		if strings.ContainsAny(r.Registry, "/@ \t\n") || strings.HasPrefix(r.Registry, "-") {
			return vault.Scope{}, fmt.Errorf("%q is no registry: write its HOST or HOST:PORT, as image references do", r.Registry)
		}
		return vault.Scope{Kind: vault.Registry, Name: strings.ToLower(r.Registry)}, nil
	case r.Sandbox != "":
		if err := sandbox.CheckName(r.Sandbox); err != nil {
			return vault.Scope{}, err
		}
		return vault.Scope{Kind: vault.Sandbox, Name: r.Sandbox}, nil
	case strings.HasPrefix(r.Kit, "sha256:"):
		return vault.Scope{}, fmt.Errorf("kit %s: a secret for it would be for this one image; name its repository", r.Kit)
	case r.Kit != "":
		name, err := identity.OfReference(r.Kit)
		return vault.Scope{Kind: vault.Kit, Name: name}, err
	}
	return vault.Scope{Kind: vault.Global}, nil
}

// Secrets implements [sandbox.SecretKeeper].
func (c *Custody) Secrets(context.Context) ([]sandbox.Secret, error) {
	es, err := c.vault.List()
	out := []sandbox.Secret{}
	for _, s := range es {
		out = append(out, sandbox.Secret{Service: s.Service, Scope: s.Scope.Kind, For: s.Scope.Name, Form: s.Form, Source: s.Source,
			Set: s.Set, Changed: s.Changed, Expires: s.Expires})
	}
	return out, err
}

// SetSecret implements [sandbox.SecretKeeper]. A command is run once, so that one
// that does not work is found out by who sets it.
func (c *Custody) SetSecret(ctx context.Context, r sandbox.SecretRef, in sandbox.SecretInput) error {
	if r.Registry != "" {
		r.Service = vault.RegistryService
		if in.Command != "" || in.OAuth {
			return fmt.Errorf("a login for a registry is USER:PASSWORD; for one that a program gives, use a credential helper of docker's: %w", kiterr.ErrUnsupported)
		}
	}
	scope, err := c.placeSecret(r)
	if err != nil {
		return err
	}
	entry := vault.Entry{Service: r.Service, Scope: scope, Source: in.Source}
	var s vault.Secret
	switch {
	case in.Command != "":
		first, _, _ := strings.Cut(strings.TrimSpace(in.Command), " ")
		entry.Source = "command " + first
		h := &vault.Helper{Command: in.Command}
		if in.Getenv != nil {
			h.Env = helper.Environment(in.Getenv)
		}
		t, err := helper.Run(ctx, h.Command, h.Env, in.Errors)
		if err != nil {
			return fmt.Errorf("secret %s: %w; nothing is kept", r.Service, err)
		}
		t.Value.Wipe()
		s.Helper = h
	case in.OAuth:
		doc, err := io.ReadAll(io.LimitReader(in.Value, maxImport))
		defer clear(doc)
		if err != nil {
			return fmt.Errorf("secret %s: %w; nothing is kept", r.Service, err)
		}
		t, err := vault.ParseTokens(doc, time.Now())
		if err != nil {
			return fmt.Errorf("secret %s: %w; nothing is kept", r.Service, err)
		}
		s.Tokens = &t
	default:
		if s.Value, err = secret.Read(in.Value); err != nil {
			return fmt.Errorf("secret %s: %w; nothing is kept", r.Service, err)
		}
		if r.Registry != "" {
			if err := vault.CheckLogin(s.Value); err != nil {
				s.Value.Wipe()
				return fmt.Errorf("%w; nothing is kept", err)
			}
		}
	}
	return c.vault.Put(ctx, entry, s)
}

// placeSecret makes the home, once r can be kept in it.
func (c *Custody) placeSecret(r sandbox.SecretRef) (vault.Scope, error) {
	scope, err := scopeOf(r)
	if err != nil {
		return scope, err
	}
	if !vault.ValidService(r.Service) {
		return scope, fmt.Errorf("%q is not a service: use lower case letters, digits and inner hyphens, as in the Kit that asks for it", r.Service)
	}
	return scope, c.ready()
}

// maxImport bounds a file that secrets are imported from.
const maxImport = 1 << 20

// ImportSecrets implements [sandbox.SecretKeeper].
func (c *Custody) ImportSecrets(ctx context.Context, r sandbox.SecretRef, file io.Reader, names map[string]string) error {
	text, err := io.ReadAll(io.LimitReader(file, maxImport+1))
	defer clear(text)
	if err != nil {
		return err
	}
	if len(text) > maxImport {
		return fmt.Errorf("the file is longer than %d bytes", maxImport)
	}
	found, err := dotenv.Parse(text)
	if err != nil {
		return err
	}
	secrets := map[string]vault.Secret{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		r.Service = names[name]
		if _, err := c.placeSecret(r); err != nil {
			errs = append(errs, err)
			continue
		}
		value, ok := found[name]
		if !ok {
			errs = append(errs, fmt.Errorf("the file has no %s: %w", name, kiterr.ErrNotFound))
			continue
		}
		v, err := secret.Read(bytes.NewReader(value))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		secrets[r.Service] = vault.Secret{Value: v}
	}
	if len(errs) > 0 {
		return fmt.Errorf("nothing is kept: %w", errors.Join(errs...))
	}
	scope, err := scopeOf(r)
	if err != nil {
		return err
	}
	for _, service := range slices.Sorted(maps.Keys(secrets)) {
		if err := c.vault.Put(ctx, vault.Entry{Service: service, Scope: scope, Source: "import"}, secrets[service]); err != nil {
			return err
		}
	}
	return nil
}

// RemoveSecret implements [sandbox.SecretKeeper].
func (c *Custody) RemoveSecret(ctx context.Context, r sandbox.SecretRef) error {
	scope, err := scopeOf(r)
	if err != nil {
		return err
	}
	if r.Registry != "" {
		r.Service = vault.RegistryService
	}
	return c.vault.Remove(ctx, r.Service, scope)
}
