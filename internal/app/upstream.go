package app

import (
	"context"
	"crypto/x509"
	"net"
	"os"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/upstream"
)

// through reaches destinations by the proxies that u records. Their logins are not
// recorded: they come from the environment of whoever starts the sandbox.
func through(u *plan.Upstream, roots *x509.CertPool) func(host string, port uint16) (string, func(context.Context) (net.Conn, error)) {
	if u == nil {
		return nil
	}
	env, err := upstream.FromEnv(os.Getenv)
	if err != nil {
		env = upstream.Settings{} // what is recorded counts; a proxy that wants a login says so
	}
	chooser := upstream.Recorded(u, env).Chooser()
	d := upstream.Dialer{Roots: roots}
	return func(host string, port uint16) (string, func(context.Context) (net.Conn, error)) {
		proxy := chooser.For(host, port)
		if proxy == nil {
			return "", nil
		}
		return upstream.Name(proxy), func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, proxy, host, port) }
	}
}
