package compose

import (
	"context"
	"fmt"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/rulebook"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/rootfs"
	"github.com/kitbox-dev/kitbox/internal/trust"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// inspected reports whether some rule is about particular requests.
func inspected(rules []plan.EgressRule) bool {
	return slices.ContainsFunc(rules, plan.EgressRule.Bounded)
}

// introduce makes the sandbox trust this home's authority. Every sandbox does, in
// the image's own stores, since a rule about particular requests may come later.
// Variables, which lead programs with stores of their own there, are set where
// connections have to be looked into from the start: hooks of all others see
// nothing new.
func (c *Composer) introduce(ctx context.Context, p *plan.Plan, dirs rootfs.View) error {
	global, err := rulebook.Read(c.c.Book, rulebook.Everywhere)
	if err != nil {
		return err
	}
	needed := inspected(p.Egress.Rules) || inspected(global) || p.Registry != nil || len(p.DockerAuth) > 0 || len(p.Credentials) > 0
	if c.c.Authority == nil {
		if !needed {
			return nil
		}
		return fmt.Errorf("sandbox %s: its requests have to be looked at, and there is no authority to look into connections with: %w", p.Name, kiterr.ErrUnsupported)
	}
	certs, err := c.c.Authority(ctx)
	if err != nil {
		return err
	}
	trust.Add(p, func(name string) bool { _, _, err := dirs.Find(name); return err == nil }, certs, needed)
	return nil
}
