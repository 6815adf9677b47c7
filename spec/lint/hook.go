package lint

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/lint/install"
	"github.com/kitbox-dev/kitbox/spec/lint/shell"
	"github.com/kitbox-dev/kitbox/spec/lint/wordset"
)

const (
	typeLifecycle  = capability.Namespace + "/lifecycle@1"
	typeNetwork    = capability.Namespace + "/network-policy@1"
	typeNetworkV2  = capability.Namespace + "/network-policy@2"
	typeCredential = capability.Namespace + "/credential@1"
)

// A hook is one install or startup hook.
type hook struct {
	path    string // of the hook
	install bool
	env     []string
	script  shell.Script
}

func hooksOf(e entry) []hook {
	type raw struct {
		Command any   `json:"command"`
		Env     []any `json:"env"`
	}
	var c struct{ Install, Startup json.RawMessage }
	if json.Unmarshal(e.Config, &c) != nil {
		return nil
	}
	var out []hook
	for i, list := range []json.RawMessage{c.Install, c.Startup} {
		var hs []raw
		if json.Unmarshal(list, &hs) != nil {
			continue
		}
		name := [...]string{"install", "startup"}[i]
		for j, h := range hs {
			k := hook{path: fmt.Sprintf("%s.config.%s[%d]", e.path, name, j), install: i == 0}
			for _, v := range h.Env {
				if s, ok := v.(string); ok {
					k.env = append(k.env, s)
				}
			}
			switch cmd := h.Command.(type) {
			case string:
				k.script = shell.Of(cmd, nil)
			case []any:
				argv := []string{}
				for _, w := range cmd {
					s, _ := w.(string)
					argv = append(argv, s)
				}
				k.script = shell.Of("", argv)
			}
			out = append(out, k)
		}
	}
	return out
}

// provided are the variables that a hook sees undeclared: the platform's
// baseline, and what a shell sets by itself.
var provided = wordset.Of(`PATH HOME HOSTNAME TERM PWD OLDPWD SHLVL _
	IFS PPID OPTARG OPTIND OPTERR UID EUID GROUPS RANDOM SRANDOM LINENO SECONDS EPOCHSECONDS EPOCHREALTIME REPLY
	BASH BASHPID BASH_VERSION BASH_VERSINFO BASH_SOURCE BASH_LINENO BASH_COMMAND BASH_SUBSHELL BASH_REMATCH BASHOPTS SHELLOPTS
	FUNCNAME PIPESTATUS DIRSTACK HOSTTYPE MACHTYPE OSTYPE COLUMNS LINES COPROC MAPFILE PS1 PS2 PS3 PS4 ZSH_VERSION KSH_VERSION`)

var conventional = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`) })

// hookEnv finds variables that are always empty. A hook sees only what it
// declares (lifecycle@1/hook-env-restricted).
func hookEnv(k *kit, report reporter) {
	platform := map[string]bool{"WORKSPACE_DIR": true, "SANDBOX_NAME": true, "SANDBOX_ID": true, "IS_SANDBOX": true}
	for _, a := range k.Args {
		if a.Env != "" {
			platform[a.Env] = true
		}
	}
	for _, e := range k.entries {
		var c struct {
			APIKey struct {
				Name string `json:"name"`
			} `json:"apiKey"`
		}
		if e.Type == typeCredential && json.Unmarshal(e.Config, &c) == nil && c.APIKey.Name != "" {
			platform[c.APIKey.Name] = true
		}
	}
	for _, h := range k.hooks {
		if h.script.Opaque || slices.ContainsFunc(h.env, capability.HasReference) {
			continue
		}
		told := map[string]bool{}
		for _, r := range h.script.Reads {
			switch {
			case told[r.Name], provided.Has(r.Name), h.script.Sets[r.Name], slices.Contains(h.env, r.Name):
				continue
			case platform[r.Name]:
			case r.Fallback, !conventional().MatchString(r.Name):
				// A portable script asks for what may not be there, and a
				// name in lower case is one that it sets in a way unseen.
				continue
			}
			told[r.Name] = true
			report(h.path+".command", fmt.Sprintf("the hook reads $%s, which it does not declare, so that it is always unset: add env: [%s] to the hook", r.Name, r.Name))
		}
	}
}

// network is what the Kit's policies allow, by phase.
type network struct {
	install, runtime []string // patterns, lower case, without ports
}

func (n *network) add(e entry) {
	type rules struct {
		Allow []json.RawMessage `json:"allow"`
	}
	var c struct{ Install, Runtime rules }
	if json.Unmarshal(e.Config, &c) != nil {
		n.install = append(n.install, "*") // unknown: everything
		return
	}
	hosts := func(list []json.RawMessage) (out []string) {
		for _, raw := range list {
			var host string
			var entry struct {
				Hosts []string `json:"hosts"`
			}
			if json.Unmarshal(raw, &host) == nil {
				entry.Hosts = []string{host}
			} else if json.Unmarshal(raw, &entry) != nil {
				entry.Hosts = []string{"*"}
			}
			for _, h := range entry.Hosts {
				if capability.HasReference(h) {
					h = "*"
				}
				out = append(out, withoutPort(strings.ToLower(h)))
			}
		}
		return out
	}
	n.install = append(n.install, hosts(c.Install.Allow)...)
	n.runtime = append(n.runtime, hosts(c.Runtime.Allow)...)
}

var port = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`:[0-9]+$`) })

func withoutPort(h string) string {
	if port().MatchString(h) && strings.Count(h, ":") == 1 {
		h = h[:strings.LastIndexByte(h, ':')]
	}
	return h
}

// allows reports whether a pattern covers host, in the widest reading: what a
// wildcard covers is the runtime's to say.
func allows(patterns []string, host string) bool {
	for _, p := range patterns {
		if p == host || p == "*" || p == "**" {
			return true
		}
		if i := strings.IndexByte(p, '*'); i >= 0 {
			before, after := p[:i], strings.TrimLeft(p[i:], "*")
			if strings.HasPrefix(host, before) && strings.HasSuffix(host, after) {
				return true
			}
		}
	}
	return false
}

func installRuntimeOnly(k *kit, report reporter) {
	k.downloads(func(h hook, d install.Download) {
		if d.Host != "" && !allows(k.network.install, d.Host) && allows(k.network.runtime, d.Host) {
			report(h.path+".command", fmt.Sprintf("%s downloads from %s, which is allowed only in the runtime phase: allow it under install in the network policy", d.Program, d.Host))
		}
	})
}

func installNotAllowed(k *kit, report reporter) {
	k.downloads(func(h hook, d install.Download) {
		switch {
		case d.Host == "" && len(k.network.install) == 0:
			report(h.path+".command", fmt.Sprintf("%s downloads, and nothing is allowed in the install phase: allow its hosts under install in a network policy", d.Program))
		case d.Host != "" && !allows(k.network.install, d.Host) && !allows(k.network.runtime, d.Host):
			report(h.path+".command", fmt.Sprintf("%s downloads from %s, which is allowed in no phase: allow it under install in a network policy", d.Program, d.Host))
		}
	})
}

// downloads calls found once for each different download of each install hook.
func (k *kit) downloads(found func(hook, install.Download)) {
	for _, h := range k.hooks {
		if !h.install {
			continue
		}
		told := map[install.Download]bool{}
		for _, cmd := range h.script.Commands {
			for _, d := range install.Downloads(shell.Simple(cmd)) {
				if !told[d] {
					told[d] = true
					found(h, d)
				}
			}
		}
	}
}
