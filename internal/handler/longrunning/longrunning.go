// Package longrunning is this host's answer to long-running@1: a sandbox that
// asks for it is never stopped because nobody uses it. The grammar is in
// capability/longrunning, the clock in the keeper.
package longrunning

import (
	"context"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/longrunning"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler needs nothing of the host.
type Handler struct{}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{longrunning.Type} }

// Accept implements [handler.Handler].
func (*Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	_, err := longrunning.Decode(c.Request)
	return err
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, _ *handler.Scene, _ []capability.Contribution, p *plan.Plan) error {
	p.LongRunning = true
	return nil
}
