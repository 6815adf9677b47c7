package lint

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
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
	script  script
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
				k.script = scriptOf(cmd, nil)
			case []any:
				argv := []string{}
				for _, w := range cmd {
					s, _ := w.(string)
					argv = append(argv, s)
				}
				k.script = scriptOf("", argv)
			}
			out = append(out, k)
		}
	}
	return out
}

// provided are the variables that a hook sees undeclared: the platform's
// baseline, and what a shell sets by itself.
var provided = words(`PATH HOME HOSTNAME TERM PWD OLDPWD SHLVL _
	IFS PPID OPTARG OPTIND OPTERR UID EUID GROUPS RANDOM SRANDOM LINENO SECONDS EPOCHSECONDS EPOCHREALTIME REPLY
	BASH BASHPID BASH_VERSION BASH_VERSINFO BASH_SOURCE BASH_LINENO BASH_COMMAND BASH_SUBSHELL BASH_REMATCH BASHOPTS SHELLOPTS
	FUNCNAME PIPESTATUS DIRSTACK HOSTTYPE MACHTYPE OSTYPE COLUMNS LINES COPROC MAPFILE PS1 PS2 PS3 PS4 ZSH_VERSION KSH_VERSION`)

var conventional = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// hookEnv finds variables that are always empty. A hook sees only what it
// declares (lifecycle@1/hook-env-restricted).
func hookEnv(k *kit, report reporter) {
	platform := words("WORKSPACE_DIR SANDBOX_NAME SANDBOX_ID IS_SANDBOX")
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
		if h.script.opaque || slices.ContainsFunc(h.env, capability.HasReference) {
			continue
		}
		told := map[string]bool{}
		for _, r := range h.script.reads {
			switch {
			case told[r.name], provided[r.name], h.script.sets[r.name], slices.Contains(h.env, r.name):
				continue
			case platform[r.name]:
			case r.fallback, !conventional.MatchString(r.name):
				// A portable script asks for what may not be there, and a
				// name in lower case is one that it sets in a way unseen.
				continue
			}
			told[r.name] = true
			report(h.path+".command", fmt.Sprintf("the hook reads $%s, which it does not declare, so that it is always unset: add env: [%s] to the hook", r.name, r.name))
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

var port = regexp.MustCompile(`:[0-9]+$`)

func withoutPort(h string) string {
	if port.MatchString(h) && strings.Count(h, ":") == 1 {
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
	k.downloads(func(h hook, d download) {
		if d.host != "" && !allows(k.network.install, d.host) && allows(k.network.runtime, d.host) {
			report(h.path+".command", fmt.Sprintf("%s downloads from %s, which is allowed only in the runtime phase: allow it under install in the network policy", d.program, d.host))
		}
	})
}

func installNotAllowed(k *kit, report reporter) {
	k.downloads(func(h hook, d download) {
		switch {
		case d.host == "" && len(k.network.install) == 0:
			report(h.path+".command", fmt.Sprintf("%s downloads, and nothing is allowed in the install phase: allow its hosts under install in a network policy", d.program))
		case d.host != "" && !allows(k.network.install, d.host) && !allows(k.network.runtime, d.host):
			report(h.path+".command", fmt.Sprintf("%s downloads from %s, which is allowed in no phase: allow it under install in a network policy", d.program, d.host))
		}
	})
}

// A download is one that a command makes. Host is "" if only the program knows
// where from.
type download struct{ program, host string }

// downloads calls found once for each different download of each install hook.
func (k *kit) downloads(found func(hook, download)) {
	for _, h := range k.hooks {
		if !h.install {
			continue
		}
		told := map[download]bool{}
		for _, cmd := range h.script.commands {
			for _, d := range downloadsOf(simple(cmd)) {
				if !told[d] {
					told[d] = true
					found(h, d)
				}
			}
		}
	}
}

var (
	address  = regexp.MustCompile(`(?i)^(?:git\+)?(?:https?|ftp|git|ssh|git\+ssh)://(?:[^/@]*@)?(\[[^\]]*\]|[^/:?#]+)`)
	scpStyle = regexp.MustCompile(`^[A-Za-z0-9_-]+@([A-Za-z0-9.-]+):`)
)

// local reports whether traffic to host stays inside the sandbox or is another
// capability's.
func local(host string) bool {
	return host == "localhost" || strings.HasPrefix(host, "127.") || host == "[::1]" || host == "0.0.0.0" ||
		host == "host.kitbox.internal" || host == "host.docker.internal" || strings.Contains(host, unknown)
}

func downloadsOf(cmd []string) []download {
	if len(cmd) == 0 {
		return nil
	}
	program, args := cmd[0], cmd[1:]
	hosts := func() (out []download) {
		for i, a := range args {
			if i > 0 && carries[args[i-1]] {
				continue // an address within a header, or of something sent
			}
			m := address.FindStringSubmatch(a)
			if m == nil && program == "git" {
				m = scpStyle.FindStringSubmatch(a)
			}
			if m != nil && !local(strings.ToLower(m[1])) {
				out = append(out, download{program, strings.ToLower(m[1])})
			}
		}
		return out
	}
	switch program {
	case "curl":
		if slices.ContainsFunc(args, func(a string) bool {
			return strings.HasPrefix(a, "--unix-socket") || strings.HasPrefix(a, "--abstract-unix-socket")
		}) {
			return nil
		}
		return hosts()
	case "wget", "aria2c":
		return hosts()
	case "git":
		if slices.ContainsFunc(args, func(a string) bool { return gitFetches[a] }) {
			return hosts()
		}
		return nil
	}
	if out := hosts(); len(out) > 0 && len(installs(cmd)) > 0 {
		return out
	}
	for _, p := range installs(cmd) {
		if !p.local {
			return []download{{program, ""}}
		}
	}
	return nil
}

var (
	carries    = words("-H --header -d --data -e --referer -A --user-agent -F --form --data-raw --data-binary")
	gitFetches = words("clone fetch pull ls-remote submodule")
)

// A software is one that a package manager is told to install.
type software struct {
	name   string // "" if the command names none, such as npm ci
	pinned bool   // to one version, or to one that only running would tell
	local  bool   // a file or directory
}

// installs returns what cmd installs through a package manager that downloads.
// Cmd is as [simple] returns it.
func installs(cmd []string) []software {
	if len(cmd) < 2 {
		return nil
	}
	program, args := cmd[0], cmd[1:]
	if m := strings.TrimRight(program, "0123456789."); m == "pip" || m == "python" {
		if m == "python" {
			if len(args) < 2 || args[0] != "-m" || args[1] != "pip" {
				return nil
			}
			args = args[2:]
		}
		return managed(args, words("install"), words("-r -c -i -t -e --target --prefix --index-url --extra-index-url --requirement --constraint"), pip)
	}
	switch program {
	case "apt-get", "apt", "aptitude":
		return managed(args, words("install"), words("-o -t -c --target-release --option"), apt)
	case "apk":
		if slices.Contains(args, "--no-network") {
			return nil
		}
		return managed(args, words("add"), words("-t --virtual -X --repository"), apt)
	case "dnf", "yum", "microdnf", "zypper", "brew":
		return managed(args, words("install"), nil, plain)
	case "npm", "pnpm", "yarn", "bun":
		return managed(args, words("install i add ci"), words("--prefix -C --registry --cwd"), npm)
	case "uv":
		if len(args) > 0 && (args[0] == "pip" || args[0] == "tool") {
			args = args[1:]
		}
		return managed(args, words("install add"), words("-r -p --python"), pip)
	case "pipx":
		return managed(args, words("install"), nil, pip)
	case "go":
		return managed(args, words("install get"), nil, golang)
	case "cargo":
		if slices.ContainsFunc(args, func(a string) bool { return a == "--path" }) {
			return nil
		}
		return flagged(managed(args, words("install"), words("--version --vers --root --git --tag --rev --branch --features"), plain), args, "--version", "--vers", "--tag", "--rev")
	case "gem":
		return flagged(managed(args, words("install"), words("-v --version -i --install-dir"), plain), args, "-v", "--version")
	}
	return nil
}

// managed returns the packages that stand behind one of the verbs. Valued are
// the flags that take the next word.
func managed(args []string, verbs, valued map[string]bool, parse func(string) software) []software {
	verb := false
	var out []software
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case valued[a]:
			if a == "-e" || a == "-r" || a == "--requirement" {
				out = append(out, software{pinned: true, local: a == "-e"})
			}
			i++
		case a == "--no-index" || a == "--dry-run" || a == "--offline" || a == "--no-download":
			return nil
		case strings.HasPrefix(a, "-"):
		case !verb:
			if !verbs[a] {
				return nil
			}
			verb = true
		case strings.HasPrefix(a, "./"), strings.HasPrefix(a, "/"), strings.HasPrefix(a, "../"), a == ".", strings.HasPrefix(a, "file:"):
			out = append(out, software{pinned: true, local: true})
		case strings.Contains(a, unknown):
			out = append(out, software{name: strings.ReplaceAll(a, unknown, ""), pinned: true})
		default:
			out = append(out, parse(a))
		}
	}
	if verb && out == nil {
		out = []software{{pinned: true}}
	}
	return out
}

func flagged(list []software, args []string, flags ...string) []software {
	for _, a := range args {
		for _, f := range flags {
			if a == f || strings.HasPrefix(a, f+"=") {
				for i := range list {
					list[i].pinned = true
				}
			}
		}
	}
	return list
}

func plain(s string) software { return software{name: s} }

func apt(s string) software {
	name := strings.TrimRight(s[:indexOf(s, "=~<>@")], "+")
	return software{name: name, pinned: len(name) < len(strings.TrimRight(s, "+"))}
}

func pip(s string) software {
	if address.MatchString(s) {
		return software{name: path.Base(s), pinned: strings.Contains(path.Base(s), "@")}
	}
	name := s[:indexOf(s, "=<>~!@[ ;")]
	rest, _, _ := strings.Cut(s[len(name):], ";")
	return software{name: name, pinned: strings.Contains(rest, "==") || strings.Contains(rest, "@") && !strings.HasSuffix(rest, "@latest")}
}

func npm(s string) software {
	at := strings.LastIndexByte(s, '@')
	if at <= 0 {
		return software{name: s}
	}
	v := s[at+1:]
	return software{name: s[:at], pinned: v != "" && v[0] >= '0' && v[0] <= '9'}
}

func golang(s string) software {
	name, version, _ := strings.Cut(s, "@")
	base := path.Base(name)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(name))
	}
	return software{name: base, pinned: version != "latest" && version != "" && version != "main" && version != "master", local: strings.HasPrefix(name, ".")}
}

func indexOf(s, chars string) int {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return i
	}
	return len(s)
}
