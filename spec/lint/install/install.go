// Package install knows the programs that download and install software: from
// where, what, and whether a version is settled.
package install

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/spec/lint/shell"
	"github.com/kitbox-dev/kitbox/spec/lint/wordset"
)

// A Download is one that a command makes. Host is "" if only the program knows
// where from.
type Download struct{ Program, Host string }

// Address matches the beginning of an address of the network; its group is the
// host. It is compiled when it is first needed, since most commands link this
// package and few lint.
var Address = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^(?:git\+)?(?:https?|ftp|git|ssh|git\+ssh)://(?:[^/@]*@)?(\[[^\]]*\]|[^/:?#]+)`)
})

var scpStyle = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]+@([A-Za-z0-9.-]+):`) })

// local reports whether traffic to host stays inside the sandbox or is another
// capability's.
func local(host string) bool {
	return host == "localhost" || strings.HasPrefix(host, "127.") || host == "[::1]" || host == "0.0.0.0" ||
		host == "host.kitbox.internal" || host == "host.docker.internal" || strings.Contains(host, shell.Unknown)
}

// Downloads returns the downloads that cmd makes. Cmd is as [shell.Simple]
// returns it.
func Downloads(cmd []string) []Download {
	if len(cmd) == 0 {
		return nil
	}
	program, args := cmd[0], cmd[1:]
	hosts := func() (out []Download) {
		for i, a := range args {
			if i > 0 && carries.Has(args[i-1]) {
				continue // an address within a header, or of something sent
			}
			m := Address().FindStringSubmatch(a)
			if m == nil && program == "git" {
				m = scpStyle().FindStringSubmatch(a)
			}
			if m != nil && !local(strings.ToLower(m[1])) {
				out = append(out, Download{program, strings.ToLower(m[1])})
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
		if slices.ContainsFunc(args, func(a string) bool { return gitFetches.Has(a) }) {
			return hosts()
		}
		return nil
	}
	if out := hosts(); len(out) > 0 && len(Software(cmd)) > 0 {
		return out
	}
	for _, p := range Software(cmd) {
		if !p.Local {
			return []Download{{program, ""}}
		}
	}
	return nil
}

var (
	carries    = wordset.Of("-H --header -d --data -e --referer -A --user-agent -F --form --data-raw --data-binary")
	gitFetches = wordset.Of("clone fetch pull ls-remote submodule")
)

// A Package is one that a package manager is told to install.
type Package struct {
	Name   string // "" if the command names none, such as npm ci
	Pinned bool   // to one version, or to one that only running would tell
	Local  bool   // a file or directory
}

// Software returns what cmd installs through a package manager that downloads.
// Cmd is as [shell.Simple] returns it.
func Software(cmd []string) []Package {
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
		return managed(args, wordset.Of("install"), wordset.Of("-r -c -i -t -e --target --prefix --index-url --extra-index-url --requirement --constraint"), pip)
	}
	switch program {
	case "apt-get", "apt", "aptitude":
		return managed(args, wordset.Of("install"), wordset.Of("-o -t -c --target-release --option"), apt)
	case "apk":
		if slices.Contains(args, "--no-network") {
			return nil
		}
		return managed(args, wordset.Of("add"), wordset.Of("-t --virtual -X --repository"), apt)
	case "dnf", "yum", "microdnf", "zypper", "brew":
		return managed(args, wordset.Of("install"), nil, plain)
	case "npm", "pnpm", "yarn", "bun":
		return managed(args, wordset.Of("install i add ci"), wordset.Of("--prefix -C --registry --cwd"), npm)
	case "uv":
		if len(args) > 0 && (args[0] == "pip" || args[0] == "tool") {
			args = args[1:]
		}
		return managed(args, wordset.Of("install add"), wordset.Of("-r -p --python"), pip)
	case "pipx":
		return managed(args, wordset.Of("install"), nil, pip)
	case "go":
		return managed(args, wordset.Of("install get"), nil, golang)
	case "cargo":
		if slices.ContainsFunc(args, func(a string) bool { return a == "--path" }) {
			return nil
		}
		return flagged(managed(args, wordset.Of("install"), wordset.Of("--version --vers --root --git --tag --rev --branch --features"), plain), args, "--version", "--vers", "--tag", "--rev")
	case "gem":
		return flagged(managed(args, wordset.Of("install"), wordset.Of("-v --version -i --install-dir"), plain), args, "-v", "--version")
	}
	return nil
}

// managed returns the packages that stand behind one of the verbs. Valued are
// the flags that take the next word.
func managed(args []string, verbs, valued *wordset.Set, parse func(string) Package) []Package {
	verb := false
	var out []Package
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case valued.Has(a):
			if a == "-e" || a == "-r" || a == "--requirement" {
				out = append(out, Package{Pinned: true, Local: a == "-e"})
			}
			i++
		case a == "--no-index" || a == "--dry-run" || a == "--offline" || a == "--no-download":
			return nil
		case strings.HasPrefix(a, "-"):
		case !verb:
			if !verbs.Has(a) {
				return nil
			}
			verb = true
		case strings.HasPrefix(a, "./"), strings.HasPrefix(a, "/"), strings.HasPrefix(a, "../"), a == ".", strings.HasPrefix(a, "file:"):
			out = append(out, Package{Pinned: true, Local: true})
		case strings.Contains(a, shell.Unknown):
			out = append(out, Package{Name: strings.ReplaceAll(a, shell.Unknown, ""), Pinned: true})
		default:
			out = append(out, parse(a))
		}
	}
	if verb && out == nil {
		out = []Package{{Pinned: true}}
	}
	return out
}

func flagged(list []Package, args []string, flags ...string) []Package {
	for _, a := range args {
		for _, f := range flags {
			if a == f || strings.HasPrefix(a, f+"=") {
				for i := range list {
					list[i].Pinned = true
				}
			}
		}
	}
	return list
}

func plain(s string) Package { return Package{Name: s} }

func apt(s string) Package {
	name := strings.TrimRight(s[:indexOf(s, "=~<>@")], "+")
	return Package{Name: name, Pinned: len(name) < len(strings.TrimRight(s, "+"))}
}

func pip(s string) Package {
	if Address().MatchString(s) {
		return Package{Name: path.Base(s), Pinned: strings.Contains(path.Base(s), "@")}
	}
	name := s[:indexOf(s, "=<>~!@[ ;")]
	rest, _, _ := strings.Cut(s[len(name):], ";")
	return Package{Name: name, Pinned: strings.Contains(rest, "==") || strings.Contains(rest, "@") && !strings.HasSuffix(rest, "@latest")}
}

func npm(s string) Package {
	at := strings.LastIndexByte(s, '@')
	if at <= 0 {
		return Package{Name: s}
	}
	v := s[at+1:]
	return Package{Name: s[:at], Pinned: v != "" && v[0] >= '0' && v[0] <= '9'}
}

func golang(s string) Package {
	name, version, _ := strings.Cut(s, "@")
	base := path.Base(name)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(name))
	}
	return Package{Name: base, Pinned: version != "latest" && version != "" && version != "main" && version != "master", Local: strings.HasPrefix(name, ".")}
}

func indexOf(s, chars string) int {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return i
	}
	return len(s)
}
