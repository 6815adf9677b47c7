package compose

import (
	"fmt"
	"math"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// operatorLimits is what the user set, which holds or the sandbox is not made.
func (c *Composer) operatorLimits(o sandbox.Limits) (plan.Limits, error) {
	if o.CPUs < 0 || math.IsNaN(o.CPUs) || o.CPUs > 1e6 || o.MemoryBytes < 0 || o.Pids < 0 || o.DiskBytes < 0 {
		return plan.Limits{}, fmt.Errorf("limits %+v: a limit is a positive amount, or 0 for none", o)
	}
	l := plan.Limits{CPUMillis: int64(math.Ceil(o.CPUs * 1000)), MemoryBytes: o.MemoryBytes, Pids: o.Pids, DiskBytes: o.DiskBytes}
	if l == (plan.Limits{}) {
		return l, nil
	}
	l.Enforce = true
	if c.c.Unenforced != nil {
		if not := c.c.Unenforced(l); len(not) > 0 {
			return l, fmt.Errorf("limits cannot be enforced here: %s; leave them out, or see 'kitbox doctor' for what they need: %w", strings.Join(not, "; "), kiterr.ErrRefused)
		}
	}
	return l, nil
}
