package proxy

import (
	"bytes"
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// A Way is how something is reached through proxies of the host's network. Its zero
// value is: without any.
type Way struct {
	// Name is the proxy that connections go through, for the log, and Dial
	// makes one. An empty name is none.
	Name string
	Dial func(context.Context) (net.Conn, error)

	// Plain is the proxy for requests of HTTP without TLS. Nil: they go as
	// all else does.
	Plain *intercept.Forward
}

// upstream returns the proxy that req goes through: plain, if that is not nil.
func (p *Proxy) upstream(req egress.Request, plain *intercept.Forward) (name string, dial func(context.Context) (net.Conn, error)) {
	if p.Upstream == nil {
		return "", nil
	}
	if plain != nil {
		return plain.Name, plain.Dial
	}
	w := p.Upstream(req.Host, req.Port)
	return w.Name, w.Dial
}

// forward is the proxy that plain requests of f go to; nil if there is none. It
// dials as the flow does, so that policy and log know of it.
func (p *Proxy) forward(f *flow) *intercept.Forward {
	if p.Upstream == nil {
		return nil
	}
	rules := p.Rules()
	if _, routed := rules.Routes.to(f.host, f.port); routed && f.named {
		return nil
	}
	if rules.Policy.Decide(f.request(rules)).Service != nil {
		return nil
	}
	w := p.Upstream(f.host, f.port).Plain
	if w == nil {
		return nil
	}
	return &intercept.Forward{Name: w.Name, User: w.User,
		Dial: func(ctx context.Context) (net.Conn, error) { return p.dialInspected(ctx, f, w) }}
}

// forwards reports whether f, which need not be looked into, carries requests that
// a proxy of the host's network wants to see: many make no tunnel to port 80. It
// may take until the client has said something.
func (p *Proxy) forwards(f *flow) bool {
	return f.port == 80 && p.Intercept != nil && p.forward(f) != nil && asksPlainly(f.head(patience))
}

// asksPlainly reports whether b begins a request of HTTP/1 that names a path and
// upgrades to nothing.
func asksPlainly(b []byte) bool {
	method, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok || len(method) == 0 || len(method) > 20 || len(rest) == 0 || rest[0] != '/' {
		return false
	}
	for _, c := range method {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return !bytes.Contains(bytes.ToLower(b), []byte("\nupgrade:"))
}

// head returns what the client has sent first, without taking it; nothing if that
// takes longer than bound.
func (f *flow) head(bound time.Duration) []byte {
	raw, err := f.client.SyscallConn()
	if err != nil {
		return nil
	}
	f.until(time.Now().Add(bound))
	defer f.until(time.Time{})
	b := make([]byte, 8<<10)
	n := 0
	_ = raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return b[:max(n, 0)]
}
