package builder

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	resourcestypes "github.com/moby/buildkit/executor/resources/types"
	"github.com/moby/buildkit/util/network"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// publicNetwork gives each step a network namespace behind a boundary such as
// sandboxes have: TCP to hosts by name, at public addresses, and nothing else.
// This machine, its loopback and its private networks are not among them, and a
// name that resolves to one of those is refused. It is a [network.Provider].
type publicNetwork struct {
	resolvConf string
	config     control.Config // but for the namespace
}

// newPublicNetwork keeps its files in dir.
func newPublicNetwork(dir string) (*publicNetwork, error) {
	policy, err := egress.New([]plan.EgressRule{{Phase: plan.Install, Pattern: "*", Allow: true, Source: "operator"}})
	if err != nil {
		return nil, err
	}
	p := &publicNetwork{
		resolvConf: filepath.Join(dir, "resolv-public.conf"),
		config: control.Config{
			Sandbox: "build step", Phase: plan.Install, Policy: policy,
			Log: func(ds ...audit.Decision) {
				for _, d := range ds {
					slog.Info("network", "verdict", d.Verdict, "host", d.Host, "port", d.Port, "protocol", d.Protocol, "why", d.Why)
				}
			},
		},
	}
	return p, os.WriteFile(p.resolvConf, []byte(control.ResolvConf()), 0o644)
}

func (p *publicNetwork) Close() error { return nil }

func (p *publicNetwork) New(ctx context.Context, _ string, _ network.NamespaceOptions) (network.Namespace, error) {
	ns, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("making a step's network: %w", err)
	}
	c := p.config
	c.GuestNetNS = ns
	b, err := control.Start(ctx, c)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("making a step's network: %w", err)
	}
	return &publicNamespace{ns: ns, boundary: b, resolvConf: p.resolvConf}, nil
}

type publicNamespace struct {
	ns         *os.File
	boundary   *control.Boundary
	resolvConf string
}

// Set puts the step into the namespace and points it at the boundary's resolver
// instead of the host's.
func (n *publicNamespace) Set(s *specs.Spec) error {
	// runc opens the path itself and sees this process under the same number.
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.ns.Fd())
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			s.Linux.Namespaces[i].Path = path
			path = ""
		}
	}
	if path != "" {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: path})
	}
	for i := range s.Mounts {
		if s.Mounts[i].Destination == "/etc/resolv.conf" {
			s.Mounts[i].Source = n.resolvConf
		}
	}
	return nil
}

func (n *publicNamespace) Close() error {
	n.boundary.Close()
	return n.ns.Close()
}

func (n *publicNamespace) Sample() (*resourcestypes.NetworkSample, error) { return nil, nil }

// newNetNS returns a new network namespace with its loopback up. It lives as
// long as the file or a process in it.
func newNetNS() (*os.File, error) {
	var ns *os.File
	err := ownthread.Run(func() error { // it ends in the namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return err
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}
