package engine

import (
	"fmt"
	"math"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/handler/resources"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// capacity is what this machine has.
func capacity(unenforced func(plan.Limits) []string) resources.Host {
	h := resources.Host{CPUMillis: int64(runtime.NumCPU()) * 1000, Unenforced: unenforced}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	}
	return h
}

// operatorLimits is what the user set, which holds or the sandbox is not made.
func (e *Engine) operatorLimits(o sandbox.Limits) (plan.Limits, error) {
	if o.CPUs < 0 || math.IsNaN(o.CPUs) || o.CPUs > 1e6 || o.MemoryBytes < 0 || o.Pids < 0 || o.DiskBytes < 0 {
		return plan.Limits{}, fmt.Errorf("limits %+v: a limit is a positive amount, or 0 for none", o)
	}
	l := plan.Limits{CPUMillis: int64(math.Ceil(o.CPUs * 1000)), MemoryBytes: o.MemoryBytes, Pids: o.Pids, DiskBytes: o.DiskBytes}
	if l == (plan.Limits{}) {
		return l, nil
	}
	l.Enforce = true
	if e.c.Unenforced != nil {
		if not := e.c.Unenforced(l); len(not) > 0 {
			return l, fmt.Errorf("limits cannot be enforced here: %s: %w", strings.Join(not, "; "), kiterr.ErrRefused)
		}
	}
	return l, nil
}
