// Package handler is the contract between what Kits ask and what this host
// does: a [Handler] turns the requests of its types into entries of a plan, or
// declines them with a reason.
//
// Handlers read the host and change nothing but the plan they are given, so a
// plan can be shown and thrown away. The grammar of a type is in the package of
// the same name below capability; the handlers are in the packages below this
// one, and package builtin lists them. Acting on the plan is the business of
// drivers, the boundary and the keeper.
package handler

import (
	"context"
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler answers for the types of one capability. Its methods can be called
// concurrently.
type Handler interface {
	// Types are the wire names it answers for.
	Types() []string

	// Accept judges one request of Types by itself, before it is known
	// which others are selected. Nil accepts; a [capability.RefusedError]
	// declines, which skips an optional request and refuses a Kit that
	// requires it. Any other error means that the host could not be read.
	Accept(ctx context.Context, s *Scene, c capability.Contribution) error

	// Plan adds to p what the selected requests of Types, merged and in
	// composition order, come to. Each has been accepted. An error ends the
	// creation; nothing was made by then.
	Plan(ctx context.Context, s *Scene, cs []capability.Contribution, p *plan.Plan) error
}

// A Scene is what a handler may know of the sandbox that is being planned.
type Scene struct {
	Name      string // of the sandbox
	ID        string // opaque, stable across recreate
	Workspace string // host directory; empty when there is none
	Image     Image

	// NoWorkspace says that the user wants none, not even inside.
	NoWorkspace bool

	// Identities say who each Kit is, by reference: the same for all its
	// versions, and not to be claimed by another Kit.
	Identities map[string]string

	// Limits are those that the operator sets, whatever Kits ask.
	Limits plan.Limits

	// AllowPrivileged is the user's consent to privileged Kits.
	AllowPrivileged bool
}

// An Image is what the composed image says of itself.
type Image struct {
	User string // as its config spells it; empty when it does not
	Dir  string // its working directory; empty when it states none

	// Identity is User resolved by the image's own accounts. IdentityErr
	// says why it could not be; Identity is root's then.
	Identity    plan.Identity
	IdentityErr error

	// Executable reports whether path leads to an ordinary file that
	// Identity may execute. The error says what is there instead.
	Executable func(path string) error
}

// A List is the handlers of a host, in the order their effects are laid down.
type List []Handler

// find returns the handler for typ, or nil.
func (l List) find(typ string) Handler {
	for _, h := range l {
		for _, t := range h.Types() {
			if t == typ {
				return h
			}
		}
	}
	return nil
}

// Handles reports whether there is an answer for a type at all.
func (l List) Handles(typ string) bool { return l.find(typ) != nil }

// Accept judges one request. A type that no handler answers for is declined.
func (l List) Accept(ctx context.Context, s *Scene, c capability.Contribution) error {
	h := l.find(c.Request.Type)
	if h == nil {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: "this host does not implement it"}
	}
	return h.Accept(ctx, s, c)
}

// Plan adds to p what the merged requests cs come to. It fails rather than
// leave one out.
func (l List) Plan(ctx context.Context, s *Scene, cs []capability.Contribution, p *plan.Plan) error {
	handled := 0
	for _, h := range l {
		var mine []capability.Contribution
		for _, c := range cs {
			for _, t := range h.Types() {
				if c.Request.Type == t {
					mine = append(mine, c)
				}
			}
		}
		if len(mine) == 0 {
			continue
		}
		handled += len(mine)
		if err := h.Plan(ctx, s, mine, p); err != nil {
			return err
		}
	}
	if handled != len(cs) {
		for _, c := range cs {
			if l.find(c.Request.Type) == nil {
				return fmt.Errorf("kit %s: %s was selected and nobody handles it", c.Kit, c.Request.Type)
			}
		}
		return fmt.Errorf("of %d requests, %d were handled", len(cs), handled)
	}
	return nil
}

// Parts are the requests as their Kits wrote them: those that were merged into
// c, or c itself.
func Parts(c capability.Contribution) []capability.Contribution {
	if len(c.From) == 0 {
		return []capability.Contribution{c}
	}
	return c.From
}
