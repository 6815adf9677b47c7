package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// An Interest says which connections to a host a [Presenter] has to see.
type Interest int

const (
	None Interest = iota // none
	TLS                  // those that begin with TLS; others pass unseen
	All                  // all, which then carry nothing but HTTP
)

// A Presenter puts proof of who a sandbox acts for into its requests. Its
// methods can be called concurrently.
type Presenter interface {
	// Interest says whether requests to a name and port may be given proof
	// in phase. It is asked for every connection and must be quick.
	Interest(phase plan.Phase, host string, port uint16) Interest

	// Present changes q.Header, that of a request which is about to be sent
	// over verified TLS to the host that its connection, its server name
	// and its authority name alike. It gives to proof what it puts in, before
	// it does, and notes there what it cannot.
	Present(ctx context.Context, phase plan.Phase, host string, port uint16, q intercept.Request, proof *Proof)

	// Grants reports whether the credential name may be used in phase.
	Grants(phase plan.Phase, name string) bool

	// Take may answer a request in the place of the host; see
	// [intercept.Turn]. What it shows to the host it gives to proof before.
	Take(phase plan.Phase, host string, port uint16, w http.ResponseWriter, r *http.Request, send intercept.Send, proof *Proof) bool
}

// An Observer is a Presenter that has to see what hosts answer.
type Observer interface {
	// Answered is told of the answer of a host to a request that its
	// Presenter had to see, before the client gets it and without the secrets
	// that the request was given. It must change nothing and not read the body.
	Answered(phase plan.Phase, host string, port uint16, r *http.Response)
}

// An Insister is a Presenter of requests that must not be carried unless the client
// has named their host over TLS: their answers hold secrets, which it takes out.
type Insister interface {
	// Insists reports whether a request for path is one. It must be quick.
	Insists(phase plan.Phase, host string, port uint16, path string) bool
}

// Presenters are several as one: each request is shown to all of them in order.
type Presenters []Presenter

// Interest implements [Presenter].
func (ps Presenters) Interest(phase plan.Phase, host string, port uint16) Interest {
	most := None
	for _, p := range ps {
		most = max(most, p.Interest(phase, host, port))
	}
	return most
}

// Present implements [Presenter].
func (ps Presenters) Present(ctx context.Context, phase plan.Phase, host string, port uint16, q intercept.Request, proof *Proof) {
	for _, p := range ps {
		if p.Interest(phase, host, port) != None {
			p.Present(ctx, phase, host, port, q, proof)
		}
	}
}

// Grants implements [Presenter].
func (ps Presenters) Grants(phase plan.Phase, name string) bool {
	return slices.ContainsFunc(ps, func(p Presenter) bool { return p.Grants(phase, name) })
}

// Take implements [Presenter].
func (ps Presenters) Take(phase plan.Phase, host string, port uint16, w http.ResponseWriter, r *http.Request, send intercept.Send, proof *Proof) bool {
	return slices.ContainsFunc(ps, func(p Presenter) bool { return p.Take(phase, host, port, w, r, send, proof) })
}

// Answered implements [Observer].
func (ps Presenters) Answered(phase plan.Phase, host string, port uint16, r *http.Response) {
	for _, p := range ps {
		if o, ok := p.(Observer); ok {
			o.Answered(phase, host, port, r)
		}
	}
}

// Insists implements [Insister].
func (ps Presenters) Insists(phase plan.Phase, host string, port uint16, path string) bool {
	return slices.ContainsFunc(ps, func(p Presenter) bool {
		i, ok := p.(Insister)
		return ok && i.Insists(phase, host, port, path)
	})
}

// patience is how long a client may stay silent before a connection that need
// not be looked into unless it is TLS is carried unseen: in many protocols the
// server speaks first.
const patience = time.Second

// shows reports whether the Presenter has to see f, which may take until the
// client has said something.
func (p *Proxy) shows(f *flow, rules Rules) bool {
	if p.Presenter == nil || !f.named {
		return false
	}
	switch p.Presenter.Interest(rules.Phase, f.host, f.port) {
	case All:
		return true
	case TLS:
		first := f.head(patience)
		yes, _ := looksTLS(first)
		return yes && len(first) > 0
	}
	return false
}

// present gives an allowed request its proof and adds to t what its answer needs. A
// phase that ends meanwhile takes the request with it. later says that the request is
// logged when it is taken or is known not to be.
func (p *Proxy) present(ctx context.Context, f *flow, r *request, rules Rules, q intercept.Request, v egress.Verdict, d *audit.Decision, t *intercept.Turn) (_ egress.Verdict, later bool) {
	if p.Presenter == nil || !f.named || p.Presenter.Interest(rules.Phase, f.host, f.port) == None {
		return v, false
	}
	if why := p.unlogged(); why != "" && q.Proven {
		v = egress.Verdict{Why: why}
		d.Rule, d.Source, d.Why = "", "", v.Why
		return v, false
	}
	insist := false
	if i, ok := p.Presenter.(Insister); ok {
		insist = i.Insists(rules.Phase, f.host, f.port, q.Path)
	}
	observer, _ := p.Presenter.(Observer)
	t.Answered = func(a *http.Response) {
		r.proof.Answer(a)
		if observer != nil {
			observer.Answered(p.Rules().Phase, f.host, f.port, a)
		}
	}
	switch {
	case insist && !q.Proven:
		v = egress.Verdict{Why: "tokens are exchanged there, which needs TLS whose client names the host"}
		d.Rule, d.Source, d.Why = "", "", v.Why
		return v, false
	case insist:
		d.Why += "; the tokens that it issues stay at the boundary"
	case !q.Proven:
		d.Why += "; no credential is presented: only over TLS whose client names the host"
		return v, false
	}
	p.Presenter.Present(ctx, rules.Phase, f.host, f.port, q, r.proof)
	// The phase may have ended before it was known what the request carries.
	if names := r.proof.holds(); !p.granted(p.Rules().Phase, names) {
		v = egress.Verdict{Why: notGranted(names)}
		d.Rule, d.Source, d.Why = "", "", v.Why
		return v, false
	}
	t.Take = func(w http.ResponseWriter, a *http.Request, send intercept.Send) bool {
		log := sync.OnceFunc(func() {
			r.proof.complete(d)
			p.Log(*d)
		})
		defer log() // an answer that breaks off panics
		taken := p.Presenter.Take(p.Rules().Phase, f.host, f.port, w, a, send, r.proof)
		if !r.proof.Secrets().Empty() {
			// So that what the answer repeats can be found.
			delete(a.Header, "Accept-Encoding")
			delete(a.Header, "Sec-Websocket-Extensions") // all that are in use compress
		}
		log()
		if taken || d.Credential == "" {
			return taken
		}
		// That line may have been the first that could not be written.
		why := p.unlogged()
		if why == "" {
			return false
		}
		d.Verdict, d.Credential, d.Rule, d.Source, d.Why = audit.Deny, "", "", "", why
		p.Log(*d)
		intercept.Refuse(w, a, why)
		return true
	}
	return v, true
}

// unlogged says why nothing may be presented now; empty if it may.
func (p *Proxy) unlogged() string {
	if p.Failing == nil {
		return ""
	}
	if err := p.Failing(); err != nil {
		return "no credential is presented while the decision log cannot be written: " + err.Error()
	}
	return ""
}

func (p *Proxy) granted(phase plan.Phase, names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !p.Presenter.Grants(phase, n) })
}

func notGranted(names []string) string {
	return "the credential " + strings.Join(names, ", ") + " is not granted in this phase"
}
