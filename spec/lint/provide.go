package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/lint/install"
	"github.com/kitbox-dev/kitbox/spec/lint/recipe"
	"github.com/kitbox-dev/kitbox/spec/lint/shell"
	"github.com/kitbox-dev/kitbox/spec/lint/wordset"
)

// roles are names that say what a Kit is for rather than whose software it is.
var roles = wordset.Of("agent assistant base browser cli desktop editor env environment harness ide lsp mcp model runtime sdk server service shell terminal tool tools toolchain workspace")

// wellKnown are names of software that many Kits carry and few authors write.
var wellKnown = wordset.Of(`bash bun cargo clang cmake codex curl deno docker dotnet elixir erlang gcc gh git go golang gradle helm
	java jdk jq julia kubectl make maven mise mysql nginx node nodejs npm openjdk opentofu perl php pip pnpm podman postgres
	postgresql python python3 redis ripgrep ruby rust rustc sqlite swift terraform uv yarn zig`)

// foreignProvide finds provides that get the Kit's version though they are not
// named like the Kit. Without a name to compare with it says nothing.
func foreignProvide(k *kit, report reporter) {
	if k.Version == "" || len(k.names) == 0 {
		return
	}
	own := func(n constraint.Name) bool {
		if n.Namespace != constraint.DefaultNamespace {
			return true // a namespace is its author's
		}
		joined := strings.Join(k.names, "")
		return slices.ContainsFunc(nameWords(n.Base), func(w string) bool {
			return slices.Contains(k.names, w) || len(w) > 2 && strings.Contains(joined, w)
		})
	}
	role := func(n constraint.Name) bool {
		return slices.ContainsFunc(nameWords(n.Base), func(w string) bool { return roles.Has(w) })
	}
	hasOwn := false
	var foreign []int
	for i, s := range k.Provides {
		name, version, _ := strings.Cut(s, "@")
		n, err := constraint.ParseName(strings.TrimSpace(name))
		switch {
		case err != nil:
		case own(n):
			hasOwn = true
		case version == "" && !role(n):
			foreign = append(foreign, i)
		}
	}
	for _, i := range foreign {
		if n, _ := constraint.ParseName(strings.TrimSpace(k.Provides[i])); hasOwn || wellKnown.Has(n.Base) {
			report("provides["+strconv.Itoa(i)+"]", fmt.Sprintf("%s gets this Kit's version, %s, though it is not this Kit's software: write %s@VERSION with the version that is installed", n.Short(), k.Version, n.Short()))
		}
	}
}

// unversionedProvide finds provides that publishing will refuse. An author may
// leave the version open while writing, so that it is no error before.
func unversionedProvide(k *kit, report reporter) {
	if k.Version != "" {
		return
	}
	for i, s := range k.Provides {
		if p, err := constraint.ParseProvide(s); err == nil && p.Version == "" && !p.Name.Derived() {
			report("provides["+strconv.Itoa(i)+"]", fmt.Sprintf("%s has no version, and the Kit none to give it; it cannot be built so: write %s@VERSION or set version", p.Name.Short(), p.Name.Short()))
		}
	}
}

// latestProvide finds defaults that cannot version a provide.
func latestProvide(k *kit, report reporter) {
	judge := func(at, text string) {
		r, ok := spec.WholeReference(text)
		if !ok || r.Scope != spec.ScopeArgs {
			return
		}
		a, ok := k.Args[r.Name]
		if !ok || a.Default == nil || *a.Default == "" || constraint.ValidVersion(*a.Default) {
			return
		}
		remedy := "give it a version as its default, or make it required"
		if v := strings.TrimPrefix(*a.Default, "v"); constraint.ValidVersion(v) {
			remedy = "write " + v
		}
		report(at, fmt.Sprintf("the default of args.%s, %q, is not a version that others could require: %s", r.Name, *a.Default, remedy))
	}
	for i, s := range k.Provides {
		if _, version, ok := strings.Cut(s, "@"); ok {
			judge("provides["+strconv.Itoa(i)+"]", version)
		}
	}
	judge("version", k.Version)
}

var latestSegment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/latest(/|$)`) })

// floatingProvide finds literal versions of software that the recipe or a hook
// installs without naming a version. That the version stands anywhere in the
// recipe counts as pinning it.
func floatingProvide(k *kit, report reporter) {
	var scripts []shell.Script
	for _, s := range k.recipe.Stages {
		scripts = append(scripts, s.Runs...)
	}
	hooks := ""
	for _, h := range k.hooks {
		scripts = append(scripts, h.script)
		for _, c := range h.script.Commands {
			hooks += strings.Join(c, " ") + "\n"
		}
	}
	for i, s := range k.Provides {
		p, err := constraint.ParseProvide(s)
		if err != nil || p.Version == "" || strings.Contains(k.recipe.Text, p.Version) || strings.Contains(hooks, p.Version) {
			continue
		}
		if how := floats(p.Name.Base, scripts, k.recipe); how != "" {
			report("provides["+strconv.Itoa(i)+"]", fmt.Sprintf("states version %s, but %s: pin that version, or provide %s without one", p.Version, how, p.Name.Short()))
		}
	}
}

// floats says how name comes to be installed in whatever version is current, or
// returns "".
func floats(name string, scripts []shell.Script, r recipe.Recipe) string {
	how := ""
	for _, s := range scripts {
		for _, cmd := range s.Commands {
			cmd = shell.Simple(cmd)
			for _, p := range install.Software(cmd) {
				if path.Base(p.Name) != name {
					continue
				}
				if p.Pinned {
					return ""
				}
				how = cmd[0] + " installs the latest " + p.Name
			}
			if len(cmd) == 0 || cmd[0] != "curl" && cmd[0] != "wget" {
				continue
			}
			for _, a := range cmd[1:] {
				if install.Address().MatchString(a) && latestSegment().MatchString(a) && containsAll(nameWords(a), nameWords(name)) {
					how = cmd[0] + " downloads the latest release"
				}
			}
		}
	}
	if how != "" {
		return how
	}
	if image, _ := r.Base(); image != "" {
		repository, tag, _ := strings.Cut(path.Base(image), ":")
		if repository == name && (tag == "" || tag == "latest") && !strings.Contains(image, "@") {
			return "the recipe starts from " + image
		}
	}
	return ""
}

func containsAll(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return len(want) > 0
}

// packageRequire finds mixins that only workloads of one distribution can
// satisfy. One that names a base as well is not meant for any.
func packageRequire(k *kit, report reporter) {
	if k.Kind != spec.KindMixin {
		return
	}
	var derived []int
	for i, s := range k.Requires {
		r, err := constraint.ParseRelation(s)
		if err != nil || !r.Name.Derived() {
			return
		}
		derived = append(derived, i)
	}
	for _, i := range derived {
		r, _ := constraint.ParseRelation(k.Requires[i])
		report("requires["+strconv.Itoa(i)+"]", fmt.Sprintf("only a workload built on packages of this kind has %s/%s: ship what it is needed for in the mixin, or require the base by name as well", r.Name.Namespace, r.Name.Base))
	}
}
