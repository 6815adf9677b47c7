package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/helper"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
)

// A Wallet is the [Source] of one sandbox. It looks into the vault for every
// request, so that a secret which is changed or taken back is so for the next
// request, whoever did it; it keeps nothing but the tokens of helpers. Set its
// fields before the first call.
type Wallet struct {
	Vault   *vault.Vault
	Sandbox string // name

	// Run runs a helper. Nil: [helper.Run].
	Run func(ctx context.Context, h vault.Helper) (helper.Token, error)

	mu      sync.Mutex
	helpers map[source]*purse // guarded by mu
}

// A source is one secret as it was set once.
type source struct {
	service string
	scope   vault.Scope
	set     int64 // nanoseconds
}

// A purse holds the token of a helper. mu is held while the helper runs, so that
// a hundred requests run it once.
type purse struct {
	mu     chan struct{} // a lock that can be given up; holds one value while free
	token  helper.Token  // guarded by mu
	failed error         // guarded by mu; of the last run
	again  time.Time     // guarded by mu; not before this after a failure
}

// retry is how long a helper that failed is left alone.
const retry = 5 * time.Second

// early is how long before its end a token is replaced, at most: clocks differ,
// and a request takes its time.
const early = time.Minute

// Token implements [Source].
func (w *Wallet) Token(ctx context.Context, c plan.Credential) (secret.Value, error) {
	e, s, err := w.Vault.Find(c.Service, c.Identity, w.Sandbox)
	if err != nil {
		return secret.Value{}, err
	}
	switch {
	case s.Helper != nil:
		return w.ask(ctx, e, *s.Helper)
	case s.Tokens != nil:
		return s.Tokens.Access, nil
	}
	return s.Value, nil
}

// Tokens implements [Source].
func (w *Wallet) Tokens(ctx context.Context, c plan.Credential) (vault.Tokens, error) {
	_, s, err := w.Vault.Find(c.Service, c.Identity, w.Sandbox)
	if err != nil {
		return vault.Tokens{}, err
	}
	if s.Tokens != nil {
		return *s.Tokens, nil
	}
	v, err := w.Token(ctx, c)
	return vault.Tokens{Access: v}, err
}

// settled is how long tokens count as new: a second sandbox, or a second thread of
// an agent, that asks for a refresh meanwhile gets what the first one got.
const settled = time.Minute

// Refresh implements [Source].
func (w *Wallet) Refresh(ctx context.Context, c plan.Credential, exchange func(secret.Value) (vault.Tokens, error)) (vault.Tokens, bool, error) {
	e, s, err := w.Vault.Find(c.Service, c.Identity, w.Sandbox)
	if err != nil {
		return vault.Tokens{}, false, err
	}
	if s.Tokens == nil || s.Tokens.Refresh.Empty() {
		t, err := w.Tokens(ctx, c)
		return t, false, err
	}
	l, err := w.Vault.Reserve(ctx, e.Service, e.Scope)
	if err != nil {
		return vault.Tokens{}, false, errors.New("another refresh of these tokens takes too long")
	}
	defer l.Unlock()
	if e, s, err = w.Vault.Get(e.Service, e.Scope); err != nil {
		return vault.Tokens{}, false, err
	}
	if s.Tokens == nil || s.Tokens.Refresh.Empty() {
		t, err := w.Tokens(ctx, c)
		return t, false, err
	}
	old := *s.Tokens
	if !e.Changed.IsZero() && time.Since(e.Changed) < settled {
		return old, false, nil
	}
	t, err := exchange(old.Refresh)
	if err != nil {
		return vault.Tokens{}, false, err
	}
	if t.Refresh.Empty() {
		t.Refresh = old.Refresh // it stays good (RFC 6749 §6)
	}
	if t.Params == nil {
		t.Params = old.Params
	}
	if t.Scopes == nil {
		t.Scopes = old.Scopes
	}
	t.Key = old.Key
	// What was issued is kept, whatever has ended meanwhile: the old one may be void.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	err = w.Vault.Update(ctx, e.Service, e.Scope, func(s *vault.Secret) error {
		// Set again while the server was asked: that is what counts.
		if s.Tokens == nil || !bytes.Equal(s.Tokens.Refresh.Expose(), old.Refresh.Expose()) {
			return errReplaced
		}
		s.Tokens = &t
		return nil
	})
	if errors.Is(err, errReplaced) {
		t, err = w.Tokens(ctx, c)
	}
	return t, true, err
}

var errReplaced = errors.New("replaced meanwhile")

// Keep implements [Source].
func (w *Wallet) Keep(ctx context.Context, c plan.Credential, t vault.Tokens) error {
	return w.Vault.Put(ctx, vault.Entry{Service: c.Service, Scope: vault.Scope{Kind: vault.Sandbox, Name: w.Sandbox}, Source: "login in the sandbox"}, vault.Secret{Tokens: &t})
}

// ask returns the token of a helper, a new one if the last is about to end.
func (w *Wallet) ask(ctx context.Context, e vault.Entry, h vault.Helper) (secret.Value, error) {
	key := source{e.Service, e.Scope, e.Set.UnixNano()}
	w.mu.Lock()
	p := w.helpers[key]
	if p == nil {
		p = &purse{mu: make(chan struct{}, 1)}
		p.mu <- struct{}{}
		if w.helpers == nil {
			w.helpers = map[source]*purse{}
		}
		for k := range w.helpers {
			if k.service == key.service && k.scope == key.scope {
				delete(w.helpers, k) // set again since
			}
		}
		w.helpers[key] = p
	}
	w.mu.Unlock()
	select {
	case <-p.mu:
	case <-ctx.Done():
		return secret.Value{}, ctx.Err()
	}
	defer func() { p.mu <- struct{}{} }()
	now := time.Now()
	left := p.token.Expires.Sub(now)
	if !p.token.Value.Empty() && left > early {
		return p.token.Value, nil
	}
	if now.Before(p.again) {
		if left > 0 {
			return p.token.Value, nil
		}
		return secret.Value{}, p.failed
	}
	run := w.Run
	if run == nil {
		run = func(ctx context.Context, h vault.Helper) (helper.Token, error) {
			return helper.Run(ctx, h.Command, h.Env, nil)
		}
	}
	t, err := run(ctx, h)
	if err != nil {
		if ctx.Err() != nil {
			return secret.Value{}, err // the client went; the helper is not to blame
		}
		p.failed, p.again = fmt.Errorf("its helper failed: %w", err), now.Add(retry)
		if left > 0 {
			return p.token.Value, nil
		}
		return secret.Value{}, p.failed
	}
	p.token, p.failed = t, nil
	// One that lives shorter than it should be replaced early is not asked
	// for with every request.
	p.again = now.Add(min(retry, time.Until(t.Expires)))
	return t.Value, nil
}

var _ Source = (*Wallet)(nil)
