// Package resources is this host's answer to resources@1: bounds on processors
// and memory that the driver's control groups hold, and GPUs. What this machine does
// not have, or could not hold, is refused, never cut down in silence; the operator
// may set other amounts.
//
// The grammar is in capability/resources.
package resources

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/resources"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Host says what the machine has. Its zero value has any amount of everything
// and holds every limit.
type Host struct {
	CPUMillis   int64 // thousandths of a core; 0: unknown
	MemoryBytes int64 // 0: unknown

	// Unenforced names each of the limits that cannot hold here, with the
	// reason. Nil: all hold.
	Unenforced func(plan.Limits) []string

	// GPUs are those of the machine now. Nil: there are none.
	GPUs func() gpu.Found
}

// A Handler bounds machines.
type Handler struct{ Host Host }

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{resources.Type} }

// leastCPUMillis is the smallest share that the kernel takes: a millisecond of every
// hundred.
const leastCPUMillis = 10

// Accept implements [handler.Handler].
func (h *Handler) Accept(_ context.Context, s *handler.Scene, c capability.Contribution) error {
	config, err := resources.Decode(c.Request)
	if err != nil {
		return err
	}
	refuse := func(format string, args ...any) error {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: fmt.Sprintf(format, args...)}
	}
	if config.GPU != "" {
		if _, err := h.choose(config.GPU); err != nil {
			return refuse("it asks for GPU %s, and %v", config.GPU, err)
		}
	}
	l := wanted(config)
	// What the operator sets instead is not asked of the host.
	if s.Limits.CPUMillis > 0 {
		l.CPUMillis = 0
	}
	if s.Limits.MemoryBytes > 0 {
		l.MemoryBytes = 0
	}
	if h.Host.CPUMillis > 0 && l.CPUMillis > h.Host.CPUMillis {
		return refuse("it asks for %s and this machine has %s; --cpus sets another number", cores(l.CPUMillis), cores(h.Host.CPUMillis))
	}
	if h.Host.MemoryBytes > 0 && l.MemoryBytes > h.Host.MemoryBytes {
		return refuse("it asks for %d MiB of memory and this machine has %d; --memory sets another amount", l.MemoryBytes>>20, h.Host.MemoryBytes>>20)
	}
	if l.MemoryBytes > 0 && l.MemoryBytes < sandbox.LeastMemoryBytes {
		return refuse("no sandbox comes up with %d bytes of memory; ask for at least %d MiB", l.MemoryBytes, sandbox.LeastMemoryBytes>>20)
	}
	if h.Host.Unenforced != nil {
		if not := h.Host.Unenforced(l); len(not) > 0 {
			return refuse("limits cannot be enforced here: %s; 'kitbox doctor' says what they need", strings.Join(not, "; "))
		}
	}
	return nil
}

// wanted is what a config comes to. No processors at all is no constraint, and
// a share too small for the kernel becomes the smallest it takes.
func wanted(c resources.Config) plan.Limits {
	var l plan.Limits
	if c.CPU != nil && *c.CPU > 0 {
		l.CPUMillis = max(leastCPUMillis, int64(math.Ceil(min(*c.CPU, 1e6)*1000)))
	}
	l.MemoryBytes, _ = c.Bytes()
	return l
}

// Plan implements [handler.Handler]. The merged request holds the most that any
// Kit wants.
func (h *Handler) Plan(_ context.Context, s *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	for _, c := range cs {
		config, err := resources.Decode(c.Request)
		if err != nil {
			return err
		}
		want := wanted(config)
		var kits []string
		for _, part := range handler.Parts(c) {
			kits = append(kits, part.Kit)
			// A bound that a Kit cannot do without holds or the sandbox does
			// not start, also at a later start on a changed host.
			p.Machine.Limits.Enforce = p.Machine.Limits.Enforce || !part.Request.Optional
		}
		slices.Sort(kits)
		set := func(name string, to *int64, want, operator int64) {
			if want == 0 {
				return
			}
			if operator == 0 {
				*to = want
			}
			p.Bounds = append(p.Bounds, plan.Bound{Limit: name, Kits: kits, Asked: want})
		}
		set(plan.BoundCPU, &p.Machine.Limits.CPUMillis, want.CPUMillis, s.Limits.CPUMillis)
		if config.GPU != "" {
			if err := h.give(c, config.GPU, p); err != nil {
				return err
			}
		}
		set(plan.BoundMemory, &p.Machine.Limits.MemoryBytes, want.MemoryBytes, s.Limits.MemoryBytes)
	}
	return nil
}

func cores(millis int64) string {
	if millis == 1000 {
		return "1 core"
	}
	return fmt.Sprintf("%g cores", float64(millis)/1000)
}
