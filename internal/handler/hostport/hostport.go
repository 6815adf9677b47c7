// Package hostport is this host's answer to host-port@1: one service on the
// loopback of this machine, reachable at the names that stand for it inside. The
// boundary connects (package control); the grammar is in capability/hostport.
package hostport

import (
	"context"
	"fmt"
	"slices"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/hostport"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// most is how many services one sandbox can have. Each datagram service takes
// sockets for as long as the sandbox runs.
const most = 64

// A Handler needs nothing of the host.
type Handler struct{}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{hostport.Type} }

// Accept implements [handler.Handler]. Whether anybody listens there is not
// looked at: a service may come and go while the sandbox lives.
func (*Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	_, err := hostport.Decode(c.Request)
	return err
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, _ *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := hostport.Decode(c.Request)
		if err != nil {
			return err
		}
		if len(p.HostPorts) == most {
			return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: fmt.Sprintf("a sandbox can have %d services of the host at the most", most)}
		}
		out := plan.HostPort{Port: uint16(config.Port), Transport: config.Transport, Family: config.Family, Name: config.Name}
		if out.Transport == "" {
			out.Transport = hostport.TCP
		}
		if out.Family == "" {
			out.Family = hostport.IPv4
		}
		for _, part := range handler.Parts(c) {
			if !slices.Contains(out.Kits, part.Kit) {
				out.Kits = append(out.Kits, part.Kit)
			}
		}
		p.HostPorts = append(p.HostPorts, out)
	}
	return nil
}
