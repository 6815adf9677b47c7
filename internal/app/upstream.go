package app

import (
	"context"
	"crypto/x509"
	"net"
	"os"

	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/upstream"
)

// through reaches destinations by the proxies that u records. Their logins are not
// recorded: they come from the environment of whoever starts the sandbox.
func through(u *plan.Upstream, roots *x509.CertPool) func(host string, port uint16) proxy.Way {
	if u == nil {
		return nil
	}
	env, err := upstream.FromEnv(os.Getenv)
	if err != nil {
		env = upstream.Settings{} // what is recorded counts; a proxy that wants a login says so
	}
	chooser := upstream.Recorded(u, env).Chooser()
	d := upstream.Dialer{Roots: roots}
	return func(host string, port uint16) proxy.Way {
		var w proxy.Way
		if p := chooser.For(host, port); p != nil {
			w.Name = upstream.Name(p)
			w.Dial = func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, p, host, port) }
		}
		if p := chooser.Plain(host, port); p != nil {
			w.Plain = &intercept.Forward{Name: upstream.Name(p), User: p.User,
				Dial: func(ctx context.Context) (net.Conn, error) { return d.Reach(ctx, p) }}
		}
		return w
	}
}
