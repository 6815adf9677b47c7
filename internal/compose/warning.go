package compose

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/spec/spelling"
)

// Warnings is what of p most likely is a mistake, one line each. over are the
// operator's variables.
func Warnings(p *plan.Plan, over map[string]string) []string {
	var out []string
	for _, r := range p.Egress.Routes {
		if allowed(p.Egress.Rules, r.Name) {
			continue
		}
		w := fmt.Sprintf("route %s: no Kit allows %s, so it stays refused", r.Name, r.Name)
		if near := nearest(p.Egress.Rules, r.Name); near != "" {
			w += "; did you mean " + near + "?"
		}
		out = append(out, w)
	}
	for _, name := range p.Launch.Owned {
		if _, ok := over[name]; ok {
			out = append(out, fmt.Sprintf("variable %s: the host sets it, so --env has no effect on it", name))
		}
	}
	for _, c := range p.Credentials {
		if _, ok := over[c.Variable]; ok && c.Variable != "" {
			out = append(out, fmt.Sprintf("variable %s: stands for the credential %s, so --env has no effect on it", c.Variable, c.Service))
		}
		if c.OAuth != nil && c.OAuth.Passthrough {
			out = append(out, fmt.Sprintf("credential %s: with --allow-passthrough, its tokens are given to the sandbox", c.Service))
		}
	}
	if p.Workspace != "" && p.Clone == nil {
		for _, f := range p.Files {
			if below(p.Launch.Dir, f.Path) {
				out = append(out, fmt.Sprintf("file %s of %s: is written into the workspace, which is %s of this machine", f.Path, f.Kit, p.Workspace))
			}
		}
	}
	return append(out, workspace.Warnings(p)...)
}

// below reports whether file is dir or below it. Both are absolute.
func below(dir, file string) bool {
	dir, file = path.Clean(dir), path.Clean(file)
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// allowed reports whether a rule of any phase might allow host. It errs on that
// side: the boundary decides, this only finds slips.
func allowed(rules []plan.EgressRule, host string) bool {
	return slices.ContainsFunc(rules, func(r plan.EgressRule) bool {
		if !r.Allow {
			return false
		}
		name := hostOf(r.Pattern)
		suffix, wild := strings.CutPrefix(strings.TrimLeft(name, "*"), ".")
		switch {
		case strings.Trim(name, "*") == "":
			return true
		case wild:
			return strings.HasSuffix(host, "."+suffix)
		}
		return name == host
	})
}

// hostOf is a pattern without its port.
func hostOf(pattern string) string {
	if i := strings.LastIndexByte(pattern, ':'); i >= 0 && !strings.Contains(pattern[i:], "]") && strings.Count(pattern, ":") == 1 {
		pattern = pattern[:i]
	}
	return strings.ToLower(strings.TrimSuffix(pattern, "."))
}

// nearest is the name that some rule allows and that host may be a slip of.
func nearest(rules []plan.EgressRule, host string) string {
	best, least := "", 4
	for _, r := range rules {
		if name := hostOf(r.Pattern); r.Allow && !strings.Contains(name, "*") {
			if d := spelling.Distance(name, host, least); d < least && d*3 <= len(host) {
				best, least = name, d
			}
		}
	}
	return best
}
