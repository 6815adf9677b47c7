package resources

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/resources"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// choose returns the GPUs that selector chooses now. The error goes on from "it asks
// for GPU".
func (h *Handler) choose(selector string) ([]gpu.GPU, error) {
	if h.Host.GPUs == nil {
		return nil, errors.New("this host passes none into sandboxes")
	}
	return h.Host.GPUs().Select(selector)
}

// give adds to p the GPUs that c, merged, chooses by selector.
func (h *Handler) give(c capability.Contribution, selector string, p *plan.Plan) error {
	chosen, err := h.choose(selector)
	if err != nil {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: fmt.Sprintf("it asks for GPU %s, and %v", selector, err)}
	}
	var kits []string
	optional := true
	for _, part := range handler.Parts(c) {
		config, err := resources.Decode(part.Request)
		if err != nil {
			return err
		}
		if config.GPU != "" {
			kits = append(kits, part.Kit)
			optional = optional && part.Request.Optional
		}
	}
	slices.Sort(kits)
	devices := map[string]string{} // source by path
	for _, g := range chosen {
		shown := plan.GPU{Name: g.Name, Asked: selector, Kits: kits, Notes: g.Notes}
		for _, d := range g.Devices {
			d.Optional = optional
			shown.Devices = append(shown.Devices, d.Path)
			switch source, ok := devices[d.Path]; {
			case !ok:
				devices[d.Path] = d.Source
				p.Machine.Devices = append(p.Machine.Devices, d)
			case source != d.Source:
				return fmt.Errorf("kit %s: GPU %s would have %s at %s, where %s is: choose one of them by its name", c.Kit, g.Name, d.Source, d.Path, source)
			}
		}
		for _, m := range g.Mounts {
			if !slices.ContainsFunc(p.Machine.Mounts, func(o plan.Mount) bool { return o.Path == m.Path && o.Source == m.Source }) {
				p.Machine.Mounts = append(p.Machine.Mounts, m)
			}
		}
		for _, kv := range g.Env {
			setEnv(p, kv)
		}
		p.GPUs = append(p.GPUs, shown)
	}
	slices.Sort(p.Launch.Env)
	return nil
}

// setEnv sets a variable for the workload, whatever the image says, unless it is one
// of the host's own.
func setEnv(p *plan.Plan, kv string) {
	name, _, _ := strings.Cut(kv, "=")
	if slices.Contains(p.Launch.Owned, name) {
		return
	}
	p.Launch.Env = append(slices.DeleteFunc(slices.Clone(p.Launch.Env), func(have string) bool {
		return strings.HasPrefix(have, name+"=")
	}), kv)
}
