package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/registry"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// openRegistry makes the registry of p's sandbox over the store of home; nil if p
// grants none.
func openRegistry(home string, p *plan.Plan, leaf func(host string) (*tls.Certificate, error), phase func() plan.Phase, log func(...audit.Decision)) (*registry.Server, error) {
	if p.Registry == nil {
		return nil, nil
	}
	images, err := layout.Open(filepath.Join(home, "images"))
	if err != nil {
		return nil, err
	}
	return registry.New(registry.Options{Images: images, Owner: p.Name, Ledger: filepath.Join(home, "pushed", p.Name+".jsonl"),
		Leaf: func() (*tls.Certificate, error) { return leaf(egress.RegistryAlias) },
		Log: func(a registry.Access) {
			d := audit.Decision{Sandbox: p.Name, Phase: phase(), Kind: audit.Request, Verdict: audit.Deny, Host: egress.RegistryAlias, Protocol: "http",
				Method: a.Method, Path: a.Path, Rule: "kit-registry", Source: "kit " + strings.Join(p.Registry.Kits, ", "), Why: a.Why}
			if a.Allowed {
				d.Verdict = audit.Allow
			}
			log(d)
		}})
}

// dialRegistry returns a connection that r serves. It is a pair of sockets, so
// that the kernel buffers and half a close is passed on.
func dialRegistry(r *registry.Server) func(context.Context, egress.Service) (net.Conn, error) {
	if r == nil {
		return nil
	}
	return func(_ context.Context, s egress.Service) (net.Conn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		ours, oerr := socket(fds[0])
		theirs, terr := socket(fds[1])
		if err := errors.Join(oerr, terr); err != nil {
			for _, c := range []net.Conn{ours, theirs} {
				if c != nil {
					c.Close()
				}
			}
			return nil, err
		}
		go r.Take(theirs, s.Port == egress.RegistryTLSPort)
		return ours, nil
	}
}

// socket makes a connection of a descriptor, which it takes.
func socket(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "registry")
	defer f.Close()
	return net.FileConn(f)
}
