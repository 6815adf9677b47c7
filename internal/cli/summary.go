package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// granted prints, before anything runs, what the Kits get.
func (e *Env) granted(g *sandbox.Plan) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "kitbox: %s is granted\n", g.Name)
	writePlan(&b, g, "  ")
	_, _ = e.Stderr.Write(b.Bytes())
}

// writePlan prints g as aligned lines, each with prefix in front.
func writePlan(w io.Writer, g *sandbox.Plan, prefix string) {
	line := func(label, text string) { fmt.Fprintf(w, "%s%-10s %s\n", prefix, label, printable(text)) }
	for i, k := range g.Kits {
		label := ""
		if i == 0 {
			label = "kits"
		}
		line(label, fmt.Sprintf("%s (%s) %s", k.Ref, k.Kind, shortDigest(k.Digest)))
	}
	if g.BuildNetwork != "" {
		line("build", g.BuildNetwork+": "+buildNetworkText(g.BuildNetwork))
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
		line("proxy", strings.Join(g.Proxies, ", ")+", by which this machine reaches the outside")
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
			text += " " + bytesText(s.SizeBytes)
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
		line("host port", hostPortText(p)+", reachable as host.kitbox.internal")
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
	for _, n := range []struct{ phase, name string }{{"install", "install"}, {"runtime", "startup"}} {
		count := 0
		for _, h := range g.Hooks {
			if h.Phase == n.phase {
				count++
			}
		}
		if count > 0 {
			hooks = append(hooks, fmt.Sprintf("%d %s", count, n.name))
		}
	}
	if len(hooks) > 0 {
		line("hooks", strings.Join(hooks, ", "))
	}
	for _, s := range g.Skipped {
		line("skipped", skippedText(s))
	}
	for _, w := range g.Warnings {
		line("warning", w)
	}
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
		line("protected", "hooks and configuration of a Git repository that is there")
	}
}

func hostPortText(p sandbox.HostPort) string {
	text := p.String() + " of this machine"
	if p.Name != "" {
		text += " (" + p.Name + ")"
	}
	return text
}

func skippedText(s sandbox.Skipped) string {
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
		return bytesText(amount) + " of memory"
	case "disk":
		return bytesText(amount) + " of disk"
	}
	return fmt.Sprintf("%d %s", amount, limit)
}

// refused prints, after the command, what its boundary declined. A sandbox that
// cannot say prints nothing.
func (e *Env) refused(ctx context.Context, sb sandbox.Sandbox) {
	var events []sandbox.PolicyEvent
	for ev, err := range onceEach(sandbox.PolicyLog(ctx, sb, sandbox.PolicyLogOptions{})) {
		if err != nil {
			return
		}
		if !ev.Allowed {
			events = append(events, ev)
		}
	}
	writeRefused(e.Stderr, sb.Name(), events)
}

// refusedHook prints what the boundary declined before an install hook failed,
// and which entries would allow it.
func (e *Env) refusedHook(err error) {
	var h *sandbox.HookError
	if !errors.As(err, &h) || len(h.Refused) == 0 {
		return
	}
	writeRefused(e.Stderr, h.Sandbox, h.Refused)
	var hosts []string
	for _, ev := range h.Refused {
		if ev.Host != "" && ev.Host != "*" {
			hosts = append(hosts, strconv.Quote(printable(ev.Host)))
		}
	}
	if hosts = dedupe(hosts); len(hosts) > 0 && len(hosts) <= mostRefused {
		fmt.Fprintf(e.Stderr, "  if %s needs that, add to its network-policy: install: {allow: [%s]}\n", printable(h.Kit), strings.Join(hosts, ", "))
	}
}

// mostRefused is how many refusals are told before the log is named instead.
const mostRefused = 10

func writeRefused(out io.Writer, name string, events []sandbox.PolicyEvent) {
	type what struct{ name, reason string }
	counts := map[what]int{}
	var order []what
	for _, ev := range events {
		w := what{destination(ev), ev.Reason}
		if counts[w] == 0 {
			order = append(order, w)
		}
		counts[w] += max(ev.Count, 1)
	}
	if len(order) == 0 {
		return
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "kitbox: %s was refused\n", name)
	for i, w := range order {
		if i == mostRefused {
			fmt.Fprintf(&b, "  and %d more; see \"kitbox policy log\"\n", len(order)-mostRefused)
			break
		}
		times := ""
		if counts[w] > 1 {
			times = fmt.Sprintf(" (%d times)", counts[w])
		}
		fmt.Fprintf(&b, "  %s: %s%s\n", printable(w.name), printable(w.reason), times)
	}
	_, _ = out.Write(b.Bytes())
}

func destination(ev sandbox.PolicyEvent) string {
	host := ev.Host
	if ev.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(ev.Port)))
	}
	if ev.Method != "" {
		host = ev.Method + " " + host + ev.Path
	}
	return ev.Kind + " " + host
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

func shortDigest(d string) string {
	algo, hex, ok := strings.Cut(d, ":")
	if !ok || len(hex) < 12 {
		return d
	}
	return algo + ":" + hex[:12]
}

// bytesText writes n the way sizes are written in Kits: powers of 1024.
func bytesText(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d %s", n/u.size, u.name)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
