// Package port is this host's answer to port@1: each port is published once, on
// the loopback of the host, at a number that the host chooses. The keeper listens
// (package publish); the grammar is in capability/port.
package port

import (
	"context"
	"slices"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/port"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler needs nothing of the host.
type Handler struct{}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{port.Type} }

// Accept implements [handler.Handler].
func (*Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	_, err := port.Decode(c.Request)
	return err
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, _ *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := port.Decode(c.Request)
		if err != nil {
			return err
		}
		out := plan.Port{Container: uint16(config.Container), Transport: config.Transport, Name: config.Name}
		if out.Transport == "" {
			out.Transport = port.TCP
		}
		for _, part := range handler.Parts(c) {
			if !slices.Contains(out.Kits, part.Kit) {
				out.Kits = append(out.Kits, part.Kit)
			}
		}
		p.Ports = append(p.Ports, out)
	}
	return nil
}
