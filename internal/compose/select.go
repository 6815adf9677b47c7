package compose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
)

// foresee refuses Kits that require what nobody here handles, before their layers
// are got. What depends on what is in them is judged afterwards.
func (c *Composer) foresee(ctx context.Context, kits []resolve.Kit) error {
	if slices.ContainsFunc(kits, refersToEnvironment) {
		return nil // not expanded yet
	}
	_, err := resolve.Select(kits, resolve.SelectorFunc(func(_ resolve.Operation, _ spec.Descriptor, r capability.Request) (bool, string) {
		if c.c.Handlers.Handles(r.Type) {
			return true, ""
		}
		var refused *capability.RefusedError
		if err := c.c.Handlers.Accept(ctx, nil, capability.Contribution{Request: r}); errors.As(err, &refused) {
			return false, refused.Reason
		}
		return false, "nobody handles it"
	}))
	var missing *resolve.SelectionError
	if errors.As(err, &missing) {
		next := "have its author mark what it can do without as optional: true"
		if len(kits) > 1 {
			next = "run it without that Kit, or " + next
		}
		return fmt.Errorf("%w; %s", err, next)
	}
	return err
}

// selectFrom asks the handlers about every entry.
func (c *Composer) selectFrom(ctx context.Context, s *handler.Scene, kits []resolve.Kit) (*resolve.Selection, error) {
	var host error // a handler could not read the host, which is no refusal
	sel, err := resolve.Select(kits, resolve.SelectorFunc(func(_ resolve.Operation, d spec.Descriptor, r capability.Request) (bool, string) {
		// Whose entry it is follows from where the entries lie: two Kits
		// may say the same, and their descriptors are still two.
		kit := ""
		for _, k := range kits {
			if len(d.Capabilities) > 0 && len(k.Descriptor.Capabilities) > 0 && &d.Capabilities[0] == &k.Descriptor.Capabilities[0] {
				kit = k.Ref
			}
		}
		err := c.c.Handlers.Accept(ctx, s, capability.Contribution{Kit: kit, Request: r})
		if err == nil {
			return true, ""
		}
		var refused *capability.RefusedError
		if errors.As(err, &refused) {
			return false, refused.Reason
		}
		if !errors.Is(err, kiterr.ErrRefused) && host == nil {
			host = err
		}
		return false, err.Error()
	}))
	if host != nil {
		return nil, host
	}
	return sel, err
}

// skipped is what was left out, one line for each, with why.
func skipped(sel *resolve.Selection) []plan.Skipped {
	out := []plan.Skipped{}
	for _, r := range sel.Skipped {
		out = append(out, plan.Skipped{Kit: r.Kit, Path: r.Path, Type: r.Type, Reason: strings.Join(r.Messages, "; ")})
	}
	return out
}

func requests(cs []capability.Contribution) []capability.Request {
	var rs []capability.Request
	for _, c := range cs {
		rs = append(rs, c.Request)
	}
	return rs
}
