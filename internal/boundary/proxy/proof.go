package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/echo"
)

// A Proof is what one request is given, as its presenters say it and the proxy keeps
// it until the request has ended: the log has the names, the end of a phase ends the
// request, and the secrets are masked in its answer. The zero value is of a request
// that nothing ends. Its methods can be called concurrently.
type Proof struct {
	granted func(name string) bool // whether a credential may be used at this moment; nil: all may
	ends    bool                   // the request may be kept from going on

	mu      sync.Mutex
	held    []string     // guarded by mu; credentials with whose grant the request ends
	given   []string     // guarded by mu; those that it was given a secret of
	secrets echo.Secrets // guarded by mu
	notes   []string     // guarded by mu
	failed  bool         // guarded by mu

	over    bool          // guarded by mu; the request may not go on
	revoked chan struct{} // guarded by mu; closed then, if somebody waits for that
}

// NewProof returns the proof of a request that [Proof.Revoke] ends. granted says whether
// a credential may be used at the moment it is asked.
func NewProof(granted func(name string) bool) *Proof {
	return &Proof{granted: granted, ends: true}
}

// Hold lets the request end when the credential name is not granted any more, and
// reports whether it is now. If it is not, nothing of it may be used.
func (p *Proof) Hold(name string) bool {
	// First held, then asked: a phase that ends between the two is seen by one of
	// them.
	p.mu.Lock()
	if !slices.Contains(p.held, name) {
		p.held = append(slices.Clip(p.held), name)
	}
	p.mu.Unlock()
	return p.granted == nil || p.granted(name)
}

// Give says that the request is about to carry a secret of the credential name, as
// texts has it: the secret itself, and the header it is in if that is Basic
// authentication. It reports what [Proof.Hold] does; after a no, the request must not
// be sent.
func (p *Proof) Give(name string, texts ...string) bool {
	if !p.Hold(name) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.given, name) {
		p.given = append(p.given, name)
	}
	p.secrets.Add(texts...)
	return true
}

// Note adds a clause to what the log says of the request.
func (p *Proof) Note(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, why)
}

// Fail is Note of what kept the boundary from doing what the request asked for.
func (p *Proof) Fail(why string) {
	p.Note(why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

// Secrets returns what the request was given so far.
func (p *Proof) Secrets() echo.Secrets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.secrets
}

// Answer masks what r, an answer to the request, repeats of its secrets.
func (p *Proof) Answer(r *http.Response) { p.Secrets().Answer(r) }

// Outlive returns a context with the values of ctx that is done only when the request
// may not go on, or with the function.
func (p *Proof) Outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if !p.ends {
		return ctx, cancel
	}
	revoked := p.revocation()
	go func() {
		select {
		case <-revoked:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// revocation returns what is closed when the request may not go on.
func (p *Proof) revocation() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked == nil {
		p.revoked = make(chan struct{})
		if p.over {
			close(p.revoked)
		}
	}
	return p.revoked
}

// Revoked reports whether the request may not go on any more.
func (p *Proof) Revoked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// Revoke says that the request may not go on. It can be called more than once, and does
// nothing to one that nothing ends.
func (p *Proof) Revoke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ends || p.over {
		return
	}
	p.over = true
	if p.revoked != nil {
		close(p.revoked)
	}
}

// holds returns the credentials with whose grant the request ends.
func (p *Proof) holds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Given returns the names of the credentials that the request was given secrets of, and
// what was noted.
func (p *Proof) Given() (names []string, notes string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.given), strings.Join(p.notes, "; ")
}

// Failed reports whether [Proof.Fail] was called.
func (p *Proof) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// complete adds to d what became of the request.
func (p *Proof) complete(d *audit.Decision) {
	names, notes := p.Given()
	d.Credential = strings.Join(names, ",")
	if notes != "" {
		d.Why += "; " + notes
	}
	if p.Failed() {
		d.Verdict = audit.Failed
	}
}
