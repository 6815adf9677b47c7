// Package summary shows what the Kits of a sandbox are granted, before it runs, and
// what its boundary refused, afterwards.
//
// It writes text for people. What it shows is decided elsewhere; --json shows the
// same values as they come from package sandbox.
package summary

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// BuildNetwork is what a user should know of a network that is given to
// recipes.
func BuildNetwork(v string) string {
	if v == "host" {
		return "RUN steps of Kits that are built reach whatever this machine reaches"
	}
	return "RUN steps of Kits that are built reach public hosts"
}

// Granted prints, before anything runs, what the Kits get.
func Granted(w io.Writer, g *sandbox.Plan) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "kitbox: %s is granted\n", g.Name)
	Plan(&b, g, "  ")
	_, _ = w.Write(b.Bytes())
}

// Plan prints g as aligned lines, each with prefix in front.
func Plan(w io.Writer, g *sandbox.Plan, prefix string) {
	line := func(label, text string) { fmt.Fprintf(w, "%s%-10s %s\n", prefix, label, output.Printable(text)) }
	for i, k := range g.Kits {
		label := ""
		if i == 0 {
			label = "kits"
		}
		line(label, fmt.Sprintf("%s (%s) %s", k.Ref, k.Kind, output.Digest(k.Digest)))
	}
	if g.BuildNetwork != "" {
		line("build", g.BuildNetwork+": "+BuildNetwork(g.BuildNetwork))
	}
	if g.DenyAll {
		line("floor", "nothing that Kits ask to reach without your word (--deny-all)")
	}
	for _, phase := range []string{"install", "runtime"} {
		var allow, deny []string
		for _, n := range g.Network {
			if n.Phase != phase {
				continue
			}
			if n.Allow {
				allow = append(allow, n.String())
			} else {
				deny = append(deny, n.String())
			}
		}
		switch {
		case len(allow) > 0 && len(deny) > 0:
			line("network", phase+": "+strings.Join(dedupe(allow), ", ")+"; never "+strings.Join(dedupe(deny), ", "))
		case len(allow) > 0:
			line("network", phase+": "+strings.Join(dedupe(allow), ", "))
		case phase == "runtime":
			line("network", phase+": nothing")
		}
	}
	for _, c := range g.Credentials {
		text := c.Service + ": " + strings.Join(c.Phases, " and ")
		if len(c.Hosts) > 0 {
			text += ", presented to " + strings.Join(c.Hosts, ", ")
		}
		if c.Variable != "" {
			text += "; " + c.Variable + " stands for it"
		}
		line("credential", text)
	}
	for _, r := range g.Routes {
		line("route", r.Name+" dials "+r.Addr)
	}
	if len(g.Proxies) > 0 {
		line("proxy", strings.Join(g.Proxies, ", ")+", by which this machine reaches the outside; names are resolved there, and addresses judged only where they resolve here too")
	}
	for _, s := range g.Storage {
		text := s.Path
		switch {
		case s.Tmpfs:
			text += " (memory)"
		case s.Transient:
			text += " (until it is removed)"
		default:
			text += " (kept)"
		}
		if s.SizeBytes > 0 {
			text += " " + output.Bytes(s.SizeBytes)
		}
		if s.Note != "" {
			text += ", " + s.Note
		}
		line("storage", text)
	}
	for _, m := range g.HostMounts {
		line("host mount", m.Path+", shared by all sandboxes of "+m.Identity+" ("+m.Handle+")")
	}
	if g.Privileged {
		line("PRIVILEGED", "root inside has every capability of Linux within the sandbox")
	}
	switch {
	case g.LongRunning:
		line("idle", "never stopped for want of a session (long-running)")
	case g.IdleMs == 0:
		line("idle", "never stopped for want of a session")
	default:
		line("idle", "stopped after "+(time.Duration(g.IdleMs)*time.Millisecond).String()+" without a session")
	}
	for _, p := range g.Ports {
		text := fmt.Sprintf("%d/%s", p.Container, p.Transport)
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		line("port", text+", published on this machine's loopback")
	}
	for _, p := range g.HostPorts {
		line("host port", HostPort(p)+", reachable as host.kitbox.internal")
	}
	for _, l := range g.Logins {
		line("login", "of "+l.Registry+" is used at the boundary; asked for by "+strings.Join(l.Kits, ", "))
	}
	if len(g.Registry) > 0 {
		line("registry", "reads and pushes Kits of the local store; asked for by "+strings.Join(g.Registry, ", "))
	}
	for _, b := range g.Limits {
		text := boundText(b.Limit, b.Amount) + ", " + b.Source
		if b.Asked != 0 && b.Asked != b.Amount {
			text += " (the Kits ask for " + boundText(b.Limit, b.Asked) + ")"
		}
		line("limit", text)
	}
	for _, u := range g.GPUs {
		line("gpu", GPU(u)+"; asked for as "+u.Asked+" by "+strings.Join(u.Kits, ", "))
		for _, n := range u.Notes {
			line("gpu", u.Name+": "+n)
		}
	}
	if g.Workspace != nil {
		workspaceLines(line, g.Workspace)
	}
	for _, m := range g.Mounts {
		text := m.Source + " at " + m.Path
		if m.ReadOnly {
			text += ", read-only"
		}
		line("mount", text)
	}
	var hooks []string
	for _, phase := range []string{"install", "runtime"} {
		count := 0
		for _, h := range g.Hooks {
			if h.Phase == phase {
				count++
			}
		}
		if count > 0 {
			hooks = append(hooks, fmt.Sprintf("%d %s", count, HookList(phase)))
		}
	}
	if len(hooks) > 0 {
		line("hooks", strings.Join(hooks, ", "))
	}
	for _, s := range g.Skipped {
		line("skipped", Skipped(s))
	}
	for _, w := range g.Warnings {
		line("warning", w)
	}
}

// GPU says which one u is, and by what nodes it is used.
func GPU(u sandbox.GPU) string { return u.Name + " (" + strings.Join(u.Devices, ", ") + ")" }

// HookList is what the list of hooks of a phase is called where Kits declare it.
func HookList(phase string) string {
	if phase == "runtime" {
		return "startup"
	}
	return "install"
}

func workspaceLines(line func(label, text string), w *sandbox.Workspace) {
	text := w.Host + " at " + w.Path
	if w.Mode == sandbox.WorkspaceCloned {
		text = "a clone of " + w.From + " at " + w.Path + ", which ends with the sandbox"
	}
	if w.ReadOnly {
		text += ", read-only"
	}
	line("workspace", text)
	if len(w.Masks) > 0 {
		line("masked", strings.Join(w.Masks, ", "))
	}
	if len(w.Protected) > 0 {
		line("protected", "hooks and configuration of whatever Git repositories it holds now")
	}
}

// HostPort is p in words.
func HostPort(p sandbox.HostPort) string {
	text := p.String() + " of this machine"
	if p.Name != "" {
		text += " (" + p.Name + ")"
	}
	return text
}

// Skipped says what a Kit goes without, and why.
func Skipped(s sandbox.Skipped) string {
	what := s.Type
	if what == "" {
		what = "group " + s.Path
	}
	return what + " of " + s.Kit + ": " + s.Reason
}

func boundText(limit string, amount int64) string {
	switch limit {
	case "cpu":
		return fmt.Sprintf("%g cores", float64(amount)/1000)
	case "memory":
		return output.Bytes(amount) + " of memory"
	case "disk":
		return output.Bytes(amount) + " of disk"
	}
	return fmt.Sprintf("%d %s", amount, limit)
}

func dedupe(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
