package lint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/lint"
)

// A kit is a descriptor for a test: the parts that matter, in YAML.
type kit struct {
	kind    string // empty: mixin
	top     string // top-level keys
	entries []string
	recipe  string
	name    string // stem
}

func (k kit) source() string {
	kind := k.kind
	if kind == "" {
		kind = "mixin"
	}
	s := "schemaVersion: \"3\"\nkind: " + kind + "\n" + k.top
	if s[len(s)-1] != '\n' {
		s += "\n"
	}
	if len(k.entries) > 0 {
		s += "capabilities:\n"
	}
	for _, e := range k.entries {
		s += "  - " + strings.ReplaceAll(strings.TrimRight(e, "\n"), "\n", "\n    ") + "\n"
	}
	return s
}

func (k kit) findings(t testing.TB) []string {
	t.Helper()
	d, ds := spec.Decode([]byte(k.source()), spec.Options{File: "kit.yaml"})
	if ds.HasErrors() {
		t.Fatalf("%v\n%s", ds, k.source())
	}
	var names []string
	if k.name != "" {
		names = []string{k.name}
	}
	var out []string
	for _, f := range lint.Check(d, lint.Options{Recipe: k.recipe, Names: names}) {
		if f.Severity != spec.Warning || f.Stage != spec.StageValidate || f.Line < 1 || f.Column < 1 || f.File != "kit.yaml" || f.Excerpt == "" ||
			f.Message == "" || strings.Contains(f.Message, "\n") || strings.HasSuffix(f.Message, ".") {
			t.Errorf("malformed finding: %+v", f)
		}
		out = append(out, f.ID+" "+f.Path)
	}
	return out
}

func network(install, runtime string) string {
	return fmt.Sprintf("type: com.docker.sandbox/network-policy@1\nconfig: {install: {allow: [%s]}, runtime: {allow: [%s]}}", install, runtime)
}

func hook(phase, body string) string {
	return "type: com.docker.sandbox/lifecycle@1\nconfig:\n  " + phase + ":\n    - " + strings.ReplaceAll(body, "\n", "\n      ")
}

func startup(command string) string {
	return hook("startup", "command: |\n  "+strings.ReplaceAll(command, "\n", "\n  "))
}
func install(command string) string {
	return hook("install", "command: |\n  "+strings.ReplaceAll(command, "\n", "\n  "))
}

const startupCommand = "capabilities[0].config.startup[0].command"

// cases holds what each rule finds, and next to it the spellings closest to
// that, which it must let pass.
var cases = map[string][]struct {
	name string
	kit  kit
	want []string // paths; nil: nothing is found by any rule
}{
	"hook-env-undeclared": {
		{"undeclared", kit{entries: []string{startup("echo $FOO")}}, []string{startupCommand}},
		{"declared", kit{entries: []string{hook("startup", "command: echo $FOO\nenv: [FOO]")}}, nil},
		{"in braces and double quotes", kit{entries: []string{startup(`echo "a${FOO}b"`)}}, []string{startupCommand}},
		{"each once", kit{entries: []string{startup("echo $FOO $FOO $BAR")}}, []string{startupCommand, startupCommand}},
		{"in single quotes", kit{entries: []string{startup(`echo '$FOO'`)}}, nil},
		{"escaped", kit{entries: []string{startup(`echo \$FOO "\$FOO"`)}}, nil},
		{"in a comment", kit{entries: []string{startup("true # it's $FOO\necho ok")}}, nil},
		{"after a comment with an apostrophe", kit{entries: []string{startup("true # it's\necho $FOO")}}, []string{startupCommand}},
		{"baseline", kit{entries: []string{startup("echo $HOME $PATH $PWD $SHLVL $_ $1 $@ $? $$ $!")}}, nil},
		{"the shell's own", kit{entries: []string{startup("echo $UID $RANDOM $BASH_SOURCE ${PIPESTATUS[0]}")}}, nil},
		{"assigned", kit{entries: []string{startup("FOO=1\necho $FOO")}}, nil},
		{"assigned before a command", kit{entries: []string{startup("FOO=1 sh -c 'x'; echo $FOO")}}, nil},
		{"exported", kit{entries: []string{startup("export FOO=1; echo $FOO")}}, nil},
		{"exported without a value", kit{entries: []string{startup("export FOO; echo $FOO")}}, []string{startupCommand}},
		{"a loop", kit{entries: []string{startup("for F in a b; do echo $F; done")}}, nil},
		{"read", kit{entries: []string{startup("while IFS= read -r LINE REST; do echo $LINE $REST; done < /f")}}, nil},
		{"getopts", kit{entries: []string{startup("while getopts ab OPT; do case $OPT in a) X=1;; esac; done; echo $X")}}, nil},
		{"lower case", kit{entries: []string{startup("echo $foo")}}, nil},
		{"a fallback for a stranger", kit{entries: []string{startup(`echo "${XDG_CONFIG_HOME:-$HOME/.config}" ${TMPDIR-/tmp} ${DEBIAN_FRONTEND:+x}`)}}, nil},
		{"a fallback for the platform's", kit{entries: []string{startup(`cd "${WORKSPACE_DIR:-/w}"`)}}, []string{startupCommand}},
		{"an assigned fallback", kit{entries: []string{startup(`: "${FOO:=1}" ; echo $FOO`)}}, nil},
		{"exported from a file", kit{entries: []string{startup(`export $(xargs < /etc/tool.env); echo $FOO`)}}, nil},
		{"a required value", kit{entries: []string{startup(`echo ${FOO:?missing}`)}}, []string{startupCommand}},
		{"an argument's export in lower case", kit{top: "args: {a: {default: x, env: greeting}}", entries: []string{startup("echo $greeting")}}, []string{startupCommand}},
		{"a sourced file", kit{entries: []string{startup(". /etc/os-release && echo $VERSION_CODENAME")}}, nil},
		{"a login shell", kit{entries: []string{hook("startup", "command: [bash, -lc, 'echo $FOO']")}}, nil},
		{"a shell's argv", kit{entries: []string{hook("startup", "command: [sh, -ec, 'echo $FOO']")}}, []string{startupCommand}},
		{"behind a wrapper", kit{entries: []string{hook("startup", "command: [sudo, -u, agent, bash, -c, 'echo $FOO']")}}, []string{startupCommand}},
		{"not a shell", kit{entries: []string{hook("startup", "command: [python3, -c, 'print(\"$FOO\")']")}}, nil},
		{"a script's file", kit{entries: []string{hook("startup", "command: [bash, /opt/x.sh]")}}, nil},
		{"a quoted here-document", kit{entries: []string{startup("cat > /f <<'EOF'\nit's $FOO\nEOF\necho ok")}}, nil},
		{"a here-document", kit{entries: []string{startup("cat > /f <<EOF\nit's $FOO\nEOF\necho ok")}}, []string{startupCommand}},
		{"behind a here-document", kit{entries: []string{startup("cat > /f <<-\"X\"\n$A\n\tX\necho $FOO")}}, []string{startupCommand}},
		{"a substitution", kit{entries: []string{startup(`echo "$(cat "$FOO" | sed 's/)/$A/')"`)}}, []string{startupCommand}},
		{"a Kit's argument", kit{top: "args: {a: {default: x}}", entries: []string{startup("echo ${{ kit.args.a }} ${{kit.env.HOME}}")}}, nil},
		{"awk", kit{entries: []string{startup(`awk '{print $NF, $FOO}' /f; sed "s/a$/b/"`)}}, nil},
		{"arithmetic", kit{entries: []string{startup(`N=1; echo $((N + 1))`)}}, nil},
		{"folded", kit{entries: []string{hook("startup", "command: >-\n  echo\n  $FOO")}}, []string{startupCommand}},
		{"env of an argument", kit{top: "args: {a: {default: FOO}}", entries: []string{hook("startup", "command: echo $FOO\nenv: [\"${{ kit.args.a }}\"]")}}, nil},
		{"a credential's sentinel", kit{entries: []string{install("test -n \"${GH_TOKEN:-}\""), "type: com.docker.sandbox/credential@1\nconfig: {service: gh, phase: install, apiKey: {name: GH_TOKEN, proxyManaged: true}}"}}, []string{"capabilities[0].config.install[0].command"}},
	},
	"install-host-runtime-only": {
		{"runtime only", kit{entries: []string{install("curl -fsSL https://get.example.com/x | sh"), network("", "get.example.com:443")}}, []string{"capabilities[0].config.install[0].command"}},
		{"allowed", kit{entries: []string{install("curl -fsSL https://get.example.com/x | sh"), network("get.example.com:443", "")}}, nil},
		{"a wildcard", kit{entries: []string{install("curl https://get.example.com/x"), network(`"*.example.com"`, "get.example.com")}}, nil},
		{"everything", kit{entries: []string{install("curl https://get.example.com/x"), network(`'*'`, "get.example.com")}}, nil},
		{"everything, twice", kit{entries: []string{install("curl https://get.example.com/x"), network(`"**"`, "get.example.com")}}, nil},
		{"at startup", kit{entries: []string{startup("curl https://get.example.com/x"), network("", "get.example.com")}}, nil},
		{"bounded", kit{entries: []string{install("curl https://get.example.com/x"), "type: com.docker.sandbox/network-policy@2\nconfig: {runtime: {allow: [{hosts: [get.example.com], methods: [GET]}]}}"}}, []string{"capabilities[0].config.install[0].command"}},
		{"git", kit{entries: []string{install("sudo -u agent git clone --depth 1 https://u@github.com/x/y.git /y"), network("", "github.com")}}, []string{"capabilities[0].config.install[0].command"}},
		{"git over ssh", kit{entries: []string{install("git clone git@github.com:x/y"), network("", "github.com")}}, []string{"capabilities[0].config.install[0].command"}},
		{"git elsewhere", kit{entries: []string{install("git config --global url.https://github.com/.insteadOf git@github.com:"), network("", "github.com")}}, nil},
		{"by another user", kit{entries: []string{install(`su agent -c "curl https://a.example.com"`), network("", "a.example.com")}}, []string{"capabilities[0].config.install[0].command"}},
		{"a text", kit{entries: []string{install("echo 'see https://docs.example.com' > /etc/motd"), network("", "docs.example.com")}}, nil},
		{"a header", kit{entries: []string{install("curl -H 'Referer: https://a.example.com' -e https://b.example.com https://c.example.com"), network("c.example.com", "a.example.com, b.example.com")}}, nil},
		{"loopback", kit{entries: []string{install("curl http://localhost:8080/ http://127.0.0.1/"), network("", "localhost")}}, nil},
		{"a variable host", kit{entries: []string{install("H=x; curl https://$H/x"), network("", "x")}}, nil},
		{"an argument among the hosts", kit{top: "args: {h: {default: x}}", entries: []string{install("curl https://a.example.com"), network(`"${{ kit.args.h }}"`, "a.example.com")}}, nil},
		{"argv", kit{entries: []string{hook("install", "command: [curl, -o, /x, 'https://a.example.com/x']"), network("", "a.example.com")}}, []string{"capabilities[0].config.install[0].command"}},
		{"in a group", kit{entries: []string{install("curl https://a.example.com"), "group:\n  optional: true\n  capabilities:\n    - type: com.docker.sandbox/network-policy@1\n      config: {install: {allow: [a.example.com]}}"}}, nil},
		{"a policy in a group", kit{entries: []string{install("curl https://a.example.com"), "group:\n  optional: true\n  capabilities:\n    - type: com.docker.sandbox/network-policy@1\n      config: {runtime: {allow: [a.example.com]}}"}}, []string{"capabilities[0].config.install[0].command"}},
	},
	"install-host-not-allowed": {
		{"no policy", kit{entries: []string{install("curl https://a.example.com")}}, []string{"capabilities[0].config.install[0].command"}},
		{"another host", kit{entries: []string{install("wget -q https://a.example.com"), network("b.example.com", "")}}, []string{"capabilities[0].config.install[0].command"}},
		{"a package manager", kit{entries: []string{install("apt-get update && apt-get install -y jq")}}, []string{"capabilities[0].config.install[0].command"}},
		{"a package manager with hosts", kit{entries: []string{install("apt-get update && apt-get install -y jq"), network("deb.debian.org", "")}}, nil},
		{"a package manager and the runtime", kit{entries: []string{install("npm install -g x"), network("", "registry.npmjs.org")}}, []string{"capabilities[0].config.install[0].command"}},
		{"a local file", kit{entries: []string{install("apt-get install -y ./x.deb; pip install --no-index x; pip install /src; npm install ./p; apk add --no-network x")}}, nil},
		{"no download", kit{entries: []string{install("npm run build; git status; pip list; go build ./...; apt-get clean; cargo build")}}, nil},
		{"a socket", kit{entries: []string{install("curl --unix-socket /run/x http://x/y")}}, nil},
	},
	"unversioned-provide": {
		{"no version anywhere", kit{top: "provides: [a@1, b]"}, []string{"provides[1]"}},
		{"the Kit's", kit{top: "version: 1.0.0\nprovides: [a]"}, nil},
		{"an argument's", kit{top: "args: {v: {required: true, buildArg: V}}\nprovides: [\"a@${{ kit.args.v }}\"]"}, nil},
	},
	"unversioned-provide-foreign": {
		{"beside its own", kit{name: "claude", top: "version: 1.0.0\nprovides: [claude-code, nodejs]"}, []string{"provides[1]"}},
		{"well known", kit{name: "web-stack", top: "version: 1.0.0\nprovides: [node]"}, []string{"provides[0]"}},
		{"its own", kit{name: "gh", top: "version: 1.0.0\nprovides: [gh]"}, nil},
		{"part of its own", kit{name: "sbx-kit-gh-mixin", top: "version: 1.0.0\nprovides: [gh]"}, nil},
		{"its display name", kit{name: "x", top: "displayName: Node tools\nversion: 1.0.0\nprovides: [node]"}, nil},
		{"versioned", kit{name: "claude", top: "version: 1.0.0\nprovides: [claude, nodejs@22.1.0]"}, nil},
		{"an author's namespace", kit{name: "claude", top: "version: 1.0.0\nprovides: [claude, com.example/thing]"}, nil},
		{"a role", kit{name: "claude", top: "version: 1.0.0\nprovides: [claude, agent, shell]"}, nil},
		{"no name to compare with", kit{top: "version: 1.0.0\nprovides: [node]"}, nil},
		{"a directory with another name", kit{name: "examples", top: "version: 1.0.0\nprovides: [something]"}, nil},
	},
	"latest-in-provides": {
		{"latest", kit{top: "args: {v: {default: latest, buildArg: V}}\nprovides: [\"x@${{ kit.args.v }}\"]"}, []string{"provides[0]"}},
		{"in version", kit{top: "args: {v: {default: stable, buildArg: V}}\nversion: ${{ kit.args.v }}"}, []string{"version"}},
		{"a tag", kit{top: "args: {v: {default: v1.2.3, buildArg: V}}\nprovides: [\"x@${{ kit.args.v }}\"]"}, []string{"provides[0]"}},
		{"a version", kit{top: "args: {v: {default: 1.2.3, buildArg: V}}\nprovides: [\"x@${{ kit.args.v }}\"]"}, nil},
		{"empty", kit{top: "args: {v: {default: \"\", pattern: \"|[0-9.]+\", buildArg: V}}\nprovides: [\"x@${{ kit.args.v }}\"]"}, nil},
		{"required", kit{top: "args: {v: {required: true, buildArg: V}}\nprovides: [\"x@${{ kit.args.v }}\"]"}, nil},
		{"elsewhere", kit{top: "args: {v: {default: latest, buildArg: V}}\nprovides: [x@1]"}, nil},
		{"within a name", kit{top: "args: {v: {default: latest, buildArg: V}}\nprovides: [\"x-${{ kit.args.v }}@1\"]"}, nil},
	},
	"literal-provide-floating-version": {
		{"apt", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN apt-get update && \\\n  # comment\n  apt-get install -y --no-install-recommends git gh\n"}, []string{"provides[0]"}},
		{"apt, over several lines", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN apt-get update \\\n && apt-get install -y \\\n    git \\\n    gh\n"}, []string{"provides[0]"}},
		{"apt, pinned", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN apt-get install -y gh=2.72.0-1\n"}, nil},
		{"apt, pinned otherwise", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN apt-get install -y gh=\"$V\"\n"}, nil},
		{"npm", kit{top: "provides: [claude-code@2.1.0]", recipe: "FROM node AS b\nRUN npm install -g @anthropic-ai/claude-code\n"}, []string{"provides[0]"}},
		{"npm latest", kit{top: "provides: [claude-code@2.1.0]", recipe: "FROM node AS b\nRUN npm i -g @anthropic-ai/claude-code@latest\n"}, []string{"provides[0]"}},
		{"npm, pinned", kit{top: "provides: [claude-code@2.1.0]", recipe: "FROM node AS b\nRUN npm i -g @anthropic-ai/claude-code@2.1.0\n"}, nil},
		{"npm, by argument", kit{top: "provides: [claude-code@2.1.0]", recipe: "ARG V\nFROM node AS b\nRUN npm i -g @anthropic-ai/claude-code@${V}\n"}, nil},
		{"pip", kit{top: "provides: [aider@1.0]", recipe: "FROM python AS b\nRUN pip install aider\n"}, []string{"provides[0]"}},
		{"pip, pinned", kit{top: "provides: [aider@1.0]", recipe: "FROM python AS b\nRUN pip install 'aider==0.9.1'\n"}, nil},
		{"go", kit{top: "provides: [gopls@0.20.0]", recipe: "FROM golang AS b\nRUN [\"go\", \"install\", \"golang.org/x/tools/gopls@latest\"]\n"}, []string{"provides[0]"}},
		{"go, pinned", kit{top: "provides: [gopls@0.20.0]", recipe: "FROM golang AS b\nRUN go install golang.org/x/tools/gopls@v0.20.0\n"}, nil},
		{"cargo", kit{top: "provides: [ripgrep@14.1.0]", recipe: "FROM rust AS b\nRUN cargo install --version 14.1.1 ripgrep\n"}, nil},
		{"a release", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN curl -fsSL https://github.com/cli/gh/releases/latest/download/gh.tgz | tar xz\n"}, []string{"provides[0]"}},
		{"another's release", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN curl -fsSL https://github.com/x/jq/releases/latest/download/jq\n"}, nil},
		{"the version in an argument", kit{top: "provides: [gh@2.72.0]", recipe: "ARG GH=2.72.0\nFROM debian AS b\nRUN apt-get install gh\n"}, nil},
		{"a base", kit{top: "provides: [node@22.1.0]", recipe: "FROM node:latest\n"}, []string{"provides[0]"}},
		{"a tagged base", kit{top: "provides: [node@22.1.0]", recipe: "FROM node:22\n"}, nil},
		{"a document", kit{top: "provides: [gh@2.72.0]", recipe: "FROM debian AS b\nRUN <<EOF\napt-get update\napt-get install -y gh\nEOF\n"}, []string{"provides[0]"}},
		{"a file that speaks of it", kit{top: "provides: [gh@2.72.0]", recipe: "FROM scratch\nCOPY <<EOF /x\napt-get install gh\nEOF\n"}, nil},
		{"a hook", kit{top: "provides: [gh@2.72.0]", entries: []string{install("apt-get install -y gh"), network("deb.debian.org", "")}}, []string{"provides[0]"}},
		{"no version stated", kit{top: "version: \"1\"\nprovides: [gh]", recipe: "FROM debian AS b\nRUN apt-get install -y gh\n"}, nil},
		{"inline", kit{top: "provides: [gh@2.72.0]\nbuild: |\n  FROM debian AS b\n  RUN apt-get install -y gh\n"}, []string{"provides[0]"}},
	},
	"deb-require-in-mixin": {
		{"deb", kit{top: "requires: [\"deb/libssl3 >= 3\", \"apk/jq\"]"}, []string{"requires[0]", "requires[1]"}},
		{"a base as well", kit{top: "requires: [debian-base, deb/libssl3]"}, nil},
		{"a workload", kit{kind: "workload", top: "requires: [deb/libssl3]\nbuild: FROM x/y"}, nil},
		{"other names", kit{top: "requires: [node >= 18]"}, nil},
	},
	"required-could-be-optional": {
		{"acp", kit{entries: []string{"type: com.docker.sandbox/acp@1\nconfig: {agent: x, command: x}"}}, []string{"capabilities[0].type"}},
		{"acp, optional", kit{entries: []string{"type: com.docker.sandbox/acp@1\noptional: true\nconfig: {agent: x, command: x}"}}, nil},
		{"says so", kit{entries: []string{"type: com.docker.sandbox/git-identity@1\ndescription: Optional, for commits"}}, []string{"capabilities[0].description"}},
		{"says so in another way", kit{entries: []string{"type: com.docker.sandbox/git-identity@1\ndescription: Used when available"}}, []string{"capabilities[0].description"}},
		{"does not say so", kit{entries: []string{"type: com.docker.sandbox/git-identity@1\ndescription: Attribute commits to the user's Git identity"}}, nil},
		{"optional", kit{entries: []string{"type: com.docker.sandbox/git-identity@1\noptional: true\ndescription: Optional, for commits"}}, nil},
		{"in an optional group", kit{entries: []string{"group:\n  optional: true\n  capabilities:\n    - type: com.docker.sandbox/git-identity@1\n      description: if available"}}, nil},
		{"in a group", kit{entries: []string{"group:\n  capabilities:\n    - type: com.docker.sandbox/git-identity@1\n      description: if available"}}, []string{"capabilities[0].group.capabilities[0].description"}},
	},
	"renamed-namespace": {
		{"old", kit{entries: []string{"type: com.docker.runtime/volume@1\nconfig: {path: /x}"}}, []string{"capabilities[0].type"}},
		{"old and optional", kit{entries: []string{"type: com.docker.runtime/volume@1\noptional: true\nconfig: {path: /x}"}}, []string{"capabilities[0].type"}},
		{"new", kit{entries: []string{"type: com.docker.sandbox/volume@1\nconfig: {path: /x}"}}, nil},
	},
	"unknown-type": {
		{"misspelt", kit{entries: []string{"type: com.docker.sandbox/volumes@1\noptional: true\nconfig: {path: /x}"}}, []string{"capabilities[0].type"}},
		{"letters exchanged", kit{entries: []string{"type: com.docker.sandbox/prot@1\nconfig: {container: 80}"}}, []string{"capabilities[0].type"}},
		{"without its hyphen", kit{entries: []string{"type: com.docker.sandbox/networkpolicy@1"}}, []string{"capabilities[0].type"}},
		{"a later version, required", kit{entries: []string{"type: com.docker.sandbox/volume@2\nconfig: {path: /x}"}}, []string{"capabilities[0].type"}},
		{"a later version", kit{entries: []string{"type: com.docker.sandbox/volume@9\noptional: true\nconfig: {}"}}, nil},
		{"made up, required", kit{entries: []string{"type: com.docker.sandbox/teleport@1"}}, []string{"capabilities[0].type"}},
		{"made up, optional", kit{entries: []string{"type: com.docker.sandbox/teleport@1\noptional: true"}}, nil},
		{"a third party's", kit{entries: []string{"type: io.cbx/docker-auth@1\nconfig: {}", "type: com.example/run-label@1\noptional: true"}}, nil},
	},
	"privileged-without-description": {
		{"without", kit{entries: []string{"type: com.docker.sandbox/privileged@1"}}, []string{"capabilities[0].type"}},
		{"with", kit{entries: []string{"type: com.docker.sandbox/privileged@1\ndescription: Runs nested containers"}}, nil},
	},
	"resources-in-mixin": {
		{"a mixin", kit{entries: []string{"type: com.docker.sandbox/resources@1\nconfig: {memory: 1g}"}}, []string{"capabilities[0].type"}},
		{"a workload", kit{kind: "workload", top: "build: FROM x/y", entries: []string{"type: com.docker.sandbox/resources@1\nconfig: {memory: 1g}"}}, nil},
	},
	"host-pattern": {
		{"an empty label", kit{entries: []string{network("", "api..example.com")}}, []string{"capabilities[0].config.runtime.allow[0]"}},
		{"no port", kit{entries: []string{network(`"a.example:443x"`, `ok.example, "a.example:0"`)}}, []string{"capabilities[0].config.install.allow[0]", "capabilities[0].config.runtime.allow[1]"}},
		{"wildcards", kit{entries: []string{network("", `"*.*.example.com", "*api.example.com"`)}}, []string{"capabilities[0].config.runtime.allow[0]", "capabilities[0].config.runtime.allow[1]"}},
		{"no name", kit{entries: []string{network("", `"api,example.com", api.example.com/`)}}, []string{"capabilities[0].config.runtime.allow[0]", "capabilities[0].config.runtime.allow[1]"}},
		{"a denial", kit{entries: []string{"type: com.docker.sandbox/network-policy@1\nconfig: {install: {deny: [a..b]}, runtime: {deny: [ok.example, .b]}}"}}, []string{"capabilities[0].config.install.deny[0]", "capabilities[0].config.runtime.deny[1]"}},
		{"among several", kit{entries: []string{"type: com.docker.sandbox/network-policy@2\nconfig: {runtime: {allow: [{hosts: [a.example, b..example], methods: [GET]}], deny: [{hosts: [c..example]}]}}"}}, []string{"capabilities[0].config.runtime.allow[0].hosts[1]", "capabilities[0].config.runtime.deny[0]"}},
		{"requests to a range", kit{entries: []string{"type: com.docker.sandbox/network-policy@2\nconfig: {runtime: {allow: [{hosts: [192.0.2.0/24], methods: [GET]}], deny: [{hosts: [192.0.2.0/24], methods: [GET]}]}}"}}, []string{"capabilities[0].config.runtime.allow[0].hosts[0]"}},
		{"in a group", kit{entries: []string{"group:\n  optional: true\n  capabilities:\n    - type: com.docker.sandbox/network-policy@1\n      config: {runtime: {allow: [a..b]}}"}}, []string{"capabilities[0].group.capabilities[0].config.runtime.allow[0]"}},
		{"usable", kit{top: "args: {h: {default: x}}", entries: []string{network(`"*"`, `a.example, A.example., "a.example:443", "*.a.example", "**.a.example:80", "**", 192.0.2.1, 192.0.2.0/24, "[::1]:80", "::1", bücher.example, "${{ kit.args.h }}..example", a_b.example`)}}, nil},
		{"another namespace's", kit{entries: []string{"type: com.example/network-policy@1\noptional: true\nconfig: {runtime: {allow: [a..b]}}"}}, nil},
	},
	"workload-base": {
		{"alpine", kit{kind: "workload", recipe: "FROM alpine:3.22\n"}, []string{"kind"}},
		{"through stages and arguments", kit{kind: "workload", recipe: "ARG BASE=docker.io/library/debian\nFROM ${BASE}:13 AS base\nFROM base AS final\nRUN true\n"}, []string{"kind"}},
		{"inline", kit{kind: "workload", top: "build: FROM ubuntu"}, []string{"build"}},
		{"makes the user", kit{kind: "workload", recipe: "FROM debian:13\nRUN apt-get update && useradd -m -u 1000 agent\n"}, nil},
		{"makes the user in a stage below", kit{kind: "workload", recipe: "FROM debian:13 AS b\nRUN adduser --uid 1000 agent\nFROM b\nRUN true\n"}, nil},
		{"renames a user", kit{kind: "workload", recipe: "FROM ubuntu\nRUN usermod -l agent ubuntu\n"}, nil},
		{"a sandbox base", kit{kind: "workload", recipe: "FROM docker/sandbox-templates:base\n"}, nil},
		{"an unknown base", kit{kind: "workload", recipe: "ARG KIT_BASE\nFROM ${KIT_BASE}\n"}, nil},
		{"an argument with a default", kit{kind: "workload", recipe: "ARG KIT_BASE=kitbox.local/base:1\nFROM $KIT_BASE\n"}, nil},
		{"scratch", kit{kind: "workload", recipe: "FROM alpine AS b\nFROM scratch\nCOPY --from=b / /\n"}, nil},
		{"a file system copied in", kit{kind: "workload", recipe: "FROM alpine\nADD rootfs.tar /\n"}, nil},
		{"accounts copied in", kit{kind: "workload", recipe: "FROM alpine\nCOPY passwd /etc/passwd\n"}, nil},
		{"a mixin", kit{recipe: "FROM alpine\n"}, nil},
		{"no recipe", kit{kind: "workload"}, nil},
	},
	"license-not-spdx": {
		{"known", kit{top: "licenses: [MIT, Apache-2.0, GPL-2.0+, mit, \"MIT OR (Apache-2.0 AND BSD-3-Clause)\", \"GPL-2.0-only WITH Classpath-exception-2.0\", LicenseRef-mine, GPL-3.0]"}, nil},
		{"as spoken", kit{top: "licenses: [Apache2, GPLv3]"}, []string{"licenses[0]", "licenses[1]"}},
		{"misspelt", kit{top: "licenses: [\"MIT OR Apache-2\"]"}, []string{"licenses[0]"}},
		{"one's own", kit{top: "licenses: [Proprietary]"}, []string{"licenses[0]"}},
		{"an exception", kit{top: "licenses: [\"GPL-2.0-only WITH Nothing-1.0\"]"}, []string{"licenses[0]"}},
		{"not the shape, which is reported elsewhere", kit{top: "licenses: [Apache License, \"MIT,BSD\"]"}, []string{"licenses[1]"}},
	},
	"unknown-ignore": {
		{"a typing mistake", kit{top: "# kit:ignore hook-env\n"}, []string{""}},
		{"a rule", kit{top: "# kit:ignore hook-env-undeclared the base sets it\n"}, nil},
	},
}

func TestRules(t *testing.T) {
	for id, list := range cases {
		for _, c := range list {
			t.Run(id+"/"+strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
				var want []string
				for _, p := range c.want {
					want = append(want, id+" "+p)
				}
				if got := c.kit.findings(t); !slices.Equal(got, want) {
					t.Errorf("found %q, want %q in\n%s%s", got, want, c.kit.source(), c.kit.recipe)
				}
			})
		}
	}
}

// TestEveryRuleIsTriedInBothDirections keeps the table whole.
func TestEveryRuleIsTriedInBothDirections(t *testing.T) {
	elsewhere := []string{lint.CompanionUnused, lint.WorkloadWithoutContent, "descriptor-large"} // of the command, and of package spec
	for _, r := range lint.Rules() {
		found, silent := false, false
		for _, c := range cases[r.ID] {
			found = found || c.want != nil
			silent = silent || c.want == nil
		}
		if (!found || !silent) && !slices.Contains(elsewhere, r.ID) {
			t.Errorf("%s: found %v, silent %v", r.ID, found, silent)
		}
		if r.Summary == "" || !lint.Known(r.ID) {
			t.Errorf("%+v", r)
		}
	}
	for id := range cases {
		if !lint.Known(id) {
			t.Errorf("no rule %s", id)
		}
	}
}

// TestEveryRuleIsDocumented reads the page that lists them.
func TestEveryRuleIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/checking.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range lint.Rules() {
		if !strings.Contains(string(page), "| `"+r.ID+"` | ") {
			t.Errorf("%s is not in the table", r.ID)
		}
	}
}

// wild holds what real descriptors look like; nothing in it deserves a word.
const wild = `# kits/tool.yaml
# syntax=docker/sandbox-kit:3@sha256:0000000000000000000000000000000000000000000000000000000000000000
schemaVersion: '3'
kind: mixin
displayName: Tool
# x-release-please-start-version
version: 0.1.0
# x-release-please-end
licenses: [MIT]
provides: [tool]
integrates: ["node >= 18"]
args:
  base_image: {default: "", pattern: "|[a-z./:]+", buildArg: BASE}
  port: {default: "8080", env: TOOL_PORT}
capabilities:
  - type: com.docker.sandbox/network-policy@1
    config:
      install: {allow: ['*']}
      runtime: {allow: &hosts ["api.example.com:443", "**"]}
  - type: com.docker.sandbox/credential@1
    optional: true
    config:
      service: tool
      phase: [install, runtime]
      apiKey:
        name: ""
        proxyManaged: true
        inject: [{domain: api.example.com, header: Authorization, format: "Bearer %s"}]
  - type: com.docker.sandbox/agent-context@2
    optional: true
    config: {anything: 1}
  - type: com.docker.sandbox/lifecycle@1
    config:
      install:
        - command: >-
            curl -fsSL https://get.example.com/install.sh
            | TOOL_VERSION=1 sh
          user: "0"
      startup:
        - command: [sh, -c, 'mkdir -p "$HOME/.tool" && chown -R "$(id -u):$(id -g)" "$HOME/.tool"']
          user: "1000"
        - command: echo "$TOOL_PORT" > /tmp/port
          env: [TOOL_PORT]
`

func TestOrdinarySpellingsAreLetPass(t *testing.T) {
	d, ds := spec.Decode([]byte(wild), spec.Options{})
	if ds = append(ds, d.Validate()...); ds.HasErrors() {
		t.Fatal(ds)
	}
	if fs := lint.Check(d, lint.Options{Names: []string{"tool", "kits"}}); len(fs) > 0 {
		t.Errorf("%v", fs)
	}
}

func TestExamplesAreClean(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*/*.yaml")
	if len(files) == 0 {
		t.Fatal("no examples")
	}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		recipe, _ := os.ReadFile(strings.TrimSuffix(f, ".yaml") + ".dockerfile")
		d, ds := spec.Decode(src, spec.Options{File: f})
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		stem := strings.TrimSuffix(filepath.Base(f), ".yaml")
		for _, fd := range lint.Check(d, lint.Options{Recipe: string(recipe), Names: []string{stem}}) {
			t.Errorf("%s [%s]", fd.Diagnostic, fd.ID)
		}
	}
}

func TestFindingsCanBeSilenced(t *testing.T) {
	for _, c := range []struct {
		comment string
		ignore  []string
		want    int
	}{
		{"", nil, 2},
		{"# kit:ignore hook-env-undeclared", nil, 1},
		{"#kit:ignore hook-env-undeclared, privileged-without-description", nil, 0},
		{"# kit:ignore hook-env-undeclared because privileged-without-description", nil, 1},
		{"# see kit:ignore hook-env-undeclared", nil, 2},
		{"", []string{"privileged-without-description"}, 1},
		{"description: x # kit:ignore privileged-without-description the base image says why", nil, 1},
	} {
		k := kit{top: c.comment + "\n", entries: []string{startup("echo $FOO"), "type: com.docker.sandbox/privileged@1"}}
		d, _ := spec.Decode([]byte(k.source()), spec.Options{})
		if got := lint.Check(d, lint.Options{Ignore: c.ignore}); len(got) != c.want {
			t.Errorf("%q %v: %v", c.comment, c.ignore, got)
		}
	}
}

// TestPlaces holds a finding in a comment descriptor against its place in the
// file, and the order of findings against that of the document.
func TestATypeWithTwoLettersExchangedIsOfferedItsSpelling(t *testing.T) {
	for _, optional := range []string{"", "optional: true\n"} {
		d, _ := spec.Decode([]byte(kit{entries: []string{"type: com.docker.sandbox/prot@1\n" + optional}}.source()), spec.Options{})
		fs := lint.Check(d, lint.Options{})
		if len(fs) != 1 || fs[0].ID != "unknown-type" || fs[0].Message != "prot@1 is not a well-known type: did you mean port@1?" {
			t.Errorf("%q: %+v", optional, fs)
		}
	}
}

func TestAnUnusableHostIsShownWhereItStands(t *testing.T) {
	d, _ := spec.Decode([]byte(kit{entries: []string{"type: com.docker.sandbox/network-policy@1\nconfig:\n  runtime:\n    allow:\n      - ok.example\n      - api..example.com:443\n"}}.source()), spec.Options{})
	fs := lint.Check(d, lint.Options{})
	if len(fs) != 1 || fs[0].Line != 9 || fs[0].Column != 13 || fs[0].Message != `a Kit with this rule does not start: pattern "api..example.com:443": "api..example.com" has an empty label` {
		t.Errorf("%+v", fs)
	}
}

func TestPlaces(t *testing.T) {
	src := "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   licenses: [Apache2]\n#   capabilities:\n#     - type: com.docker.runtime/sbx@1\nFROM alpine\n"
	d, ds := spec.Decode([]byte(src), spec.Options{File: "Dockerfile"})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	var got []string
	for _, f := range lint.Check(d, lint.Options{}) {
		got = append(got, fmt.Sprintf("%s %s:%d:%d", f.ID, f.File, f.Line, f.Column))
	}
	want := []string{"workload-base Dockerfile:4:11", "license-not-spdx Dockerfile:5:16", "renamed-namespace Dockerfile:7:15"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWarningsOfTheGrammarHaveIDs(t *testing.T) {
	d, _ := spec.Decode([]byte("schemaVersion: \"3\"\nkind: mixin\nlicenses: [The MIT]\n#"+strings.Repeat("x", spec.WarnBytes)), spec.Options{})
	var got []string
	for _, dg := range d.Validate() {
		got = append(got, lint.ID(dg))
	}
	if !slices.Equal(got, []string{"descriptor-large", "license-not-spdx"}) {
		t.Errorf("%q", got)
	}
	if id := lint.ID(spec.Diagnostic{Severity: spec.Error}); id != "" {
		t.Errorf("an error can be silenced as %s", id)
	}
}

// TestHostileScriptsAreReadInTime tries what makes scanners quadratic.
func TestHostileScriptsAreReadInTime(t *testing.T) {
	for _, s := range []string{"$(", "${A", "`", "\"", "'", "<<A ", "<<A\n", "(", "$((", "${{", "${{x}} ", "\\", "sh -c '", "a <<E $(b\n", "x=", "# kit:ignore ", "RUN <<A\n"} {
		text := strings.Repeat(s, spec.MaxBytes/len(s)/2/slowdown)
		body := "  " + strings.ReplaceAll(text, "\n", "\n  ")
		src := "schemaVersion: \"3\"\nkind: workload\nbuild: FROM x\nlicenses: [" + strings.Repeat("x", 1000) + "]\ncapabilities:\n- type: com.docker.sandbox/lifecycle@1\n  config:\n    install:\n    - command: |\n      " + strings.ReplaceAll(body, "\n", "\n      ")
		if len(src) > spec.MaxBytes {
			src = src[:spec.MaxBytes]
		}
		start := time.Now()
		d, _ := spec.Decode([]byte(src), spec.Options{})
		if d != nil {
			lint.Check(d, lint.Options{Recipe: text})
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%q repeated takes %v", s, took)
		}
	}
}

// FuzzCheck holds the rules against documents and scripts that nobody wrote:
// nothing may panic, and two runs say the same.
func FuzzCheck(f *testing.F) {
	f.Add(wild, "FROM x\nRUN <<EOF\necho $((1)) ${A:-`b`} $(c <<D\n$E\nD\n)\nEOF\n")
	f.Add("kind: workload\nbuild: FROM\nlicenses: [a WITH]\n", "FROM ${A:-b\nRUN [\"sh\",\"-c\",\"$\"]\nARG\n")
	for _, list := range cases {
		for _, c := range list {
			f.Add(c.kit.source(), c.kit.recipe)
		}
	}
	f.Fuzz(func(t *testing.T, src, recipe string) {
		d, _ := spec.Decode([]byte(src), spec.Options{})
		if d == nil {
			return
		}
		o := lint.Options{Recipe: recipe, Names: []string{"kit", recipe}}
		a, b := lint.Check(d, o), lint.Check(d, o)
		if !slices.Equal(a, b) {
			t.Fatalf("%v, then %v", a, b)
		}
	})
}

// TestALaterVersionIsAnsweredByTheNewest has a type with two versions.
func TestALaterVersionIsAnsweredByTheNewest(t *testing.T) {
	k := kit{entries: []string{"type: com.docker.sandbox/network-policy@3"}}
	d, ds := spec.Decode([]byte(k.source()), spec.Options{})
	if d == nil {
		t.Fatal(ds)
	}
	said := ""
	for _, f := range lint.Check(d, lint.Options{}) {
		said += f.Message + "\n"
	}
	if !strings.Contains(said, "write network-policy@2\n") {
		t.Error(said)
	}
}
