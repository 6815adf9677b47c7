// Package display shows plans, and what is granted in them, in the terms of the
// SDK, which a user decides by.
//
// It judges nothing: whether what is shown is consented to is up to the engine.
package display

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Left is what p asks for and does not get on machine m: optional requests that
// were skipped, and limits that do not hold.
func Left(p *plan.Plan, m driver.Machine) (skipped []sandbox.Skipped, unenforced []string) {
	for _, s := range p.Skipped {
		skipped = append(skipped, sandbox.Skipped(s))
	}
	unenforced = append(unenforced, m.Unenforced...)
	for _, v := range p.Volumes {
		if v.Note != "" {
			unenforced = append(unenforced, "volume "+v.Path+": "+v.Note)
		}
	}
	return skipped, unenforced
}

// HostPorts are the ports of this machine that p opens to the sandbox.
func HostPorts(p *plan.Plan) []sandbox.HostPort {
	var out []sandbox.HostPort
	for _, h := range p.HostPorts {
		out = append(out, sandbox.HostPort(h))
	}
	return out
}

// Plan is p in the terms a user decides by.
func Plan(p *plan.Plan) (*sandbox.Plan, error) {
	detail, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	d := &sandbox.Plan{Name: p.Name, Dir: p.Launch.Dir, Detail: detail,
		Launch:  p.Launch.Command(nil, false),
		Kits:    []sandbox.Kit{},
		Network: []sandbox.NetworkGrant{}, Storage: []sandbox.Storage{}, Hooks: []sandbox.Hook{}, Files: []string{}, Skipped: []sandbox.Skipped{}}
	d.User = p.Launch.User.Name
	if d.User == "" {
		d.User = fmt.Sprint(p.Launch.User.UID)
	}
	for _, k := range p.Kits {
		d.Kits = append(d.Kits, sandbox.Kit(k))
	}
	d.DenyAll = p.Egress.DenyAll
	for _, r := range p.Egress.Rules {
		d.Network = append(d.Network, Grant(r, sandbox.ScopeKit))
	}
	for _, r := range p.Egress.Routes {
		d.Routes = append(d.Routes, sandbox.Route(r))
	}
	if u := p.Egress.Upstream; u != nil {
		for _, proxy := range []string{u.HTTPS, u.HTTP, u.All} {
			if proxy != "" && !slices.Contains(d.Proxies, proxy) {
				d.Proxies = append(d.Proxies, proxy)
			}
		}
	}
	for _, c := range p.Credentials {
		d.Credentials = append(d.Credentials, Credential(c))
	}
	for _, v := range p.Volumes {
		s := sandbox.Storage{Path: v.Path, Kits: v.Kits, Tmpfs: v.Tmpfs, Transient: v.Transient, Note: v.Note}
		if v.SizeBytes != nil {
			s.SizeBytes = *v.SizeBytes
		}
		d.Storage = append(d.Storage, s)
	}
	if p.Workspace != "" {
		d.Workspace = workspace.Shown(p)
	}
	for _, b := range p.Binds {
		d.Mounts = append(d.Mounts, sandbox.Mount(b))
	}
	d.Limits = bounds(p)
	d.GPUs = GPUs(p)
	for _, m := range p.HostMounts {
		d.HostMounts = append(d.HostMounts, sandbox.HostMount{Handle: m.Handle, Identity: m.Identity, Path: m.Path, Dir: m.Source})
	}
	d.Privileged = p.Privileged
	if d.LongRunning = p.LongRunning; !d.LongRunning {
		d.IdleMs = p.IdleMillis
	}
	for _, port := range p.Ports {
		d.Ports = append(d.Ports, sandbox.PortGrant(port))
	}
	d.HostPorts = HostPorts(p)
	for _, a := range p.DockerAuth {
		d.Logins = append(d.Logins, sandbox.Login{Registry: a.Registry, Kits: a.Kits})
	}
	if p.Registry != nil {
		d.Registry = p.Registry.Kits
	}
	for _, h := range p.Hooks {
		d.Hooks = append(d.Hooks, sandbox.Hook{Kit: h.Kit, Phase: string(h.Phase), Index: h.Index, Args: h.Argv, User: h.User, Description: h.Description})
	}
	for _, f := range p.Files {
		d.Files = append(d.Files, f.Path)
	}
	for _, s := range p.Skipped {
		d.Skipped = append(d.Skipped, sandbox.Skipped(s))
	}
	return d, nil
}

// GPUs shows the GPUs of p.
func GPUs(p *plan.Plan) []sandbox.GPU {
	var out []sandbox.GPU
	for _, g := range p.GPUs {
		out = append(out, sandbox.GPU(g))
	}
	return out
}

// bounds shows the limits of p and who set them.
func bounds(p *plan.Plan) []sandbox.Bound {
	var out []sandbox.Bound
	for _, b := range []struct {
		limit string
		holds int64
	}{{plan.BoundCPU, p.Machine.Limits.CPUMillis}, {plan.BoundMemory, p.Machine.Limits.MemoryBytes}, {"pids", p.Machine.Limits.Pids}, {"disk", p.Machine.Limits.DiskBytes}} {
		if b.holds == 0 {
			continue
		}
		shown := sandbox.Bound{Limit: b.limit, Amount: b.holds, Source: "operator"}
		for _, asked := range p.Bounds {
			if asked.Limit != b.limit {
				continue
			}
			if shown.Asked = asked.Asked; asked.Asked == b.holds {
				shown.Source = "kit " + strings.Join(asked.Kits, ", ")
			}
		}
		out = append(out, shown)
	}
	return out
}
