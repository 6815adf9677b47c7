package credential_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/helper"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

var svc = plan.Credential{Service: "svc", Identity: "repository k"}

func put(t *testing.T, v *vault.Vault, s vault.Scope, what vault.Secret) {
	t.Helper()
	if err := v.Put(t.Context(), vault.Entry{Service: "svc", Scope: s, Source: "test"}, what); err != nil {
		t.Fatal(err)
	}
}

func token(t *testing.T, w *credential.Wallet) string {
	t.Helper()
	v, err := w.Token(t.Context(), svc)
	if errors.Is(err, kiterr.ErrNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(v.Expose())
}

// TestAChangeIsThereAtTheNextRequest writes with another vault, as another
// process would.
func TestAChangeIsThereAtTheNextRequest(t *testing.T) {
	dir := t.TempDir()
	w := &credential.Wallet{Vault: vault.Open(dir), Sandbox: "t"}
	there := vault.Open(dir)
	all := vault.Scope{Kind: vault.Global}
	if got := token(t, w); got != "" {
		t.Errorf("nothing is stored, and the token is %q", got)
	}
	for i := range 50 {
		want := fmt.Sprint("v", i)
		put(t, there, all, vault.Secret{Value: secret.New([]byte(want))})
		if got := token(t, w); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	put(t, there, vault.Scope{Kind: vault.Sandbox, Name: "other"}, vault.Secret{Value: secret.New([]byte("not this one's"))})
	put(t, there, vault.Scope{Kind: vault.Kit, Name: "repository k"}, vault.Secret{Value: secret.New([]byte("the kit's"))})
	if got := token(t, w); got != "the kit's" {
		t.Errorf("%q", got)
	}
	for _, s := range []vault.Scope{{Kind: vault.Kit, Name: "repository k"}, all} {
		if err := there.Remove(t.Context(), "svc", s); err != nil {
			t.Fatal(err)
		}
	}
	if got := token(t, w); got != "" {
		t.Errorf("after its removal: %q", got)
	}
}

func TestAHelperRunsWhenItsTokenEnds(t *testing.T) {
	v := vault.Open(t.TempDir())
	all := vault.Scope{Kind: vault.Global}
	put(t, v, all, vault.Secret{Helper: &vault.Helper{Command: "one"}})
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		fail := false
		lasts := 10 * time.Minute
		w := &credential.Wallet{Vault: v, Sandbox: "t", Run: func(_ context.Context, h vault.Helper) (helper.Token, error) {
			n := runs.Add(1)
			time.Sleep(time.Second)
			if fail {
				return helper.Token{}, errors.New("the command ended with exit status 1")
			}
			return helper.Token{Value: secret.New(fmt.Appendf(nil, "%s-%d", h.Command, n)), Expires: time.Now().Add(lasts)}, nil
		}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if got := token(t, w); got != "one-1" {
					t.Errorf("%q", got)
				}
			})
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("twenty requests ran it %d times", runs.Load())
		}
		time.Sleep(8 * time.Minute)
		if got := token(t, w); got != "one-1" {
			t.Errorf("before its end: %q", got)
		}
		time.Sleep(90 * time.Second)
		if got := token(t, w); got != "one-2" {
			t.Errorf("near its end: %q", got)
		}
		// While a token is good, a helper that fails takes nothing away.
		fail = true
		time.Sleep(lasts - 30*time.Second)
		if got := token(t, w); got != "one-2" {
			t.Errorf("a failing helper took away %q", got)
		}
		time.Sleep(time.Minute)
		before := runs.Load()
		for range 5 {
			if _, err := w.Token(t.Context(), svc); err == nil || !strings.Contains(err.Error(), "its helper failed") {
				t.Errorf("err = %v", err)
			}
		}
		if n := runs.Load() - before; n != 1 {
			t.Errorf("a helper that fails was run %d times at once", n)
		}
		fail, lasts = false, 20*time.Second
		time.Sleep(10 * time.Second)
		got := token(t, w)
		for range 3 {
			if again := token(t, w); again != got {
				t.Errorf("a short-lived token was asked for again at once: %q, %q", got, again)
			}
		}
	})
	// Another command in its place is asked, and a removal ends it.
	w := &credential.Wallet{Vault: v, Sandbox: "t", Run: func(_ context.Context, h vault.Helper) (helper.Token, error) {
		return helper.Token{Value: secret.New([]byte(h.Command)), Expires: time.Now().Add(time.Hour)}, nil
	}}
	if got := token(t, w); got != "one" {
		t.Errorf("%q", got)
	}
	put(t, v, all, vault.Secret{Helper: &vault.Helper{Command: "two"}})
	if got := token(t, w); got != "two" {
		t.Errorf("%q", got)
	}
	if err := v.Remove(t.Context(), "svc", all); err != nil {
		t.Fatal(err)
	}
	if got := token(t, w); got != "" {
		t.Errorf("after its removal: %q", got)
	}
}
