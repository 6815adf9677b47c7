package custody

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestASecretIsTakenNamedAndForgotten(t *testing.T) {
	v := vault.Open(Dir(t.TempDir()))
	made := 0
	c := New(v, func() error { made++; return nil })
	ctx := t.Context()
	if list, err := c.Secrets(ctx); err != nil || len(list) != 0 || made != 0 {
		t.Fatalf("%v, %v, made %d homes", list, err, made)
	}
	r := sandbox.SecretRef{Service: "github", Sandbox: "s"}
	if err := c.SetSecret(ctx, r, sandbox.SecretInput{Source: "stdin", Value: strings.NewReader("hush")}); err != nil {
		t.Fatal(err)
	}
	list, err := c.Secrets(ctx)
	if err != nil || len(list) != 1 || list[0].Service != "github" || list[0].For != "s" || made != 1 {
		t.Errorf("%+v, %v, made %d homes", list, err, made)
	}
	if b, err := Stored(v, "github", "", "s"); err != nil || b.Form != credential.Secret {
		t.Errorf("for its sandbox: %+v, %v", b, err)
	}
	if b, err := Stored(v, "github", "", "other"); err != nil || b.Form != credential.None {
		t.Errorf("for another: %+v, %v", b, err)
	}
	if err := c.RemoveSecret(ctx, r); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Secrets(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// One image is not a Kit: its next version would be without the secret.
func TestASecretIsForNoSingleImage(t *testing.T) {
	c := New(vault.Open(Dir(t.TempDir())), func() error { return nil })
	err := c.SetSecret(t.Context(), sandbox.SecretRef{Service: "github", Kit: "sha256:" + strings.Repeat("0", 64)}, sandbox.SecretInput{Source: "stdin", Value: strings.NewReader("hush")})
	if err == nil || !strings.Contains(err.Error(), "name its repository") {
		t.Error(err)
	}
	if list, err := c.Secrets(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestAnImportKeepsAllOrNothing(t *testing.T) {
	c := New(vault.Open(Dir(t.TempDir())), func() error { return nil })
	ctx := t.Context()
	err := c.ImportSecrets(ctx, sandbox.SecretRef{}, strings.NewReader("A=1\n"), map[string]string{"A": "a", "B": "b"})
	if !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("one that is missing: %v", err)
	}
	if list, err := c.Secrets(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.ImportSecrets(ctx, sandbox.SecretRef{}, strings.NewReader("A=1\nB=2\n"), map[string]string{"A": "a", "B": "b"}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Secrets(ctx); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}
