package cgroup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// DefaultPids bounds the tasks of a machine that asks for no bound: enough for
// any build, too few to fill the host's table.
const DefaultPids = 4096

// Of returns what groups shall hold of a plan's limits, and a line for each of
// those that was asked for and cannot hold here. Disks are not the business of
// groups.
func Of(p plan.Limits) (l Limits, unenforced []string) {
	l = Limits{CPUMillis: p.CPUMillis, MemoryBytes: p.MemoryBytes, Pids: p.Pids}
	unenforced = System{}.Check(l)
	if l.Pids == 0 {
		l.Pids = DefaultPids
	}
	return l, unenforced
}

// Asked adds what Make noted to unenforced: not what is only the driver's own
// default, and nothing twice.
func Asked(unenforced, notes []string, p plan.Limits) []string {
	for _, n := range notes {
		if p.Pids == 0 && strings.HasPrefix(n, "pids:") || slices.Contains(unenforced, n) {
			continue
		}
		unenforced = append(unenforced, n)
	}
	return unenforced
}

// A LimitError refuses a machine whose limits must be enforced and cannot be.
// It is [kiterr.ErrRefused], and [kiterr.ErrUnsupported] since another backend
// might.
type LimitError struct {
	ID         string
	Unenforced []string // as in driver.Machine
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("machine %s: limits cannot be enforced here: %s", e.ID, strings.Join(e.Unenforced, "; "))
}

// Is makes the two families match.
func (e *LimitError) Is(target error) bool {
	return target == kiterr.ErrRefused || target == kiterr.ErrUnsupported
}
