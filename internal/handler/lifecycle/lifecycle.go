// Package lifecycle is this host's answer to lifecycle@1: hooks, files and the
// interactive tail, in composition order. The keeper runs them; the grammar is
// in capability/lifecycle.
package lifecycle

import (
	"context"
	"fmt"
	"slices"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/filemode"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler needs nothing of the host.
type Handler struct{}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{lifecycle.Type} }

// Accept implements [handler.Handler].
func (*Handler) Accept(_ context.Context, _ *handler.Scene, c capability.Contribution) error {
	_, err := lifecycle.Decode(c.Request)
	return err
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, _ *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		for _, part := range handler.Parts(c) {
			config, err := lifecycle.Decode(part.Request)
			if err != nil {
				return err
			}
			for _, f := range config.Files {
				if i := slices.IndexFunc(p.Files, func(o plan.File) bool { return o.Path == f.Dest() && o.Kit != part.Kit }); i >= 0 {
					return &capability.RefusedError{Kit: part.Kit, Type: c.Request.Type, Reason: fmt.Sprintf("its file %s is one of %s as well", f.Dest(), p.Files[i].Kit)}
				}
			}
			add(p, part.Kit, config)
		}
	}
	return nil
}

func add(p *plan.Plan, kit string, c lifecycle.Config) {
	for i, h := range c.Install {
		p.Hooks = append(p.Hooks, plan.Hook{Kit: kit, Index: i, Phase: plan.Install, Argv: h.Command.Argv(), User: h.User,
			Env: h.Env, Description: h.Description})
	}
	for i, h := range c.Startup {
		p.Hooks = append(p.Hooks, plan.Hook{Kit: kit, Index: i, Phase: plan.Runtime, Argv: h.Command.Argv(), User: h.User,
			Env: h.Env, Description: h.Description, Background: h.Background})
	}
	for _, f := range c.Files {
		mode, _ := filemode.Parse(f.Mode)
		p.Files = append(p.Files, plan.File{Kit: kit, Path: f.Dest(), Content: f.Content, Mode: mode, Overwrite: f.Overwrites()})
	}
	if c.Interactive != nil {
		p.Launch.Interactive, p.Launch.InteractiveStated = c.Interactive, true
	}
}
