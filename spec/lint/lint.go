// Package lint finds what is valid in a Kit descriptor and will not do what its
// author thinks.
//
// Whether a descriptor is valid is the business of package spec, and a finding
// here is never an error. Every rule has a stable id, by which a finding can be
// silenced, and every finding names its place and its remedy in one line. The
// rules prefer silence: what they cannot read for certain, such as a value that
// waits for an argument or a script that sources another, they let pass.
//
// The package is pure. The recipe, if a rule is to see it, is handed in.
package lint

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/lint/recipe"
)

// A Rule is one thing that authors stumble over.
type Rule struct {
	ID        string // stable; what --ignore and "# kit:ignore" take
	Summary   string // what the rule finds, in one clause
	Statement string // id in the statement registry, if the specification says so
}

// A Finding is a warning.
type Finding struct {
	ID string // of the rule
	spec.Diagnostic
}

// Options say what is known about a Kit besides its descriptor. The zero value
// is ready to use.
type Options struct {
	// Names are what the Kit is called where it lies: the stem of its
	// descriptor's file, the name of its directory.
	Names []string

	// Recipe is the text of the Dockerfile that builds the content, for a
	// companion; empty if there is none or it is not known. An inline build
	// and a comment descriptor's recipe are found without it.
	Recipe string

	// Ignore holds ids of rules that are not to be applied.
	Ignore []string
}

// A check is a rule and what applies it. Find is nil where the finding is made
// elsewhere and only its id is kept here.
type check struct {
	Rule
	find func(*kit, reporter)
}

// rules in the order in which [Rules] lists them.
var rules = []check{
	{Rule{"hook-env-undeclared", "a hook reads a variable that it does not declare in env", ""}, hookEnv},
	{Rule{"install-host-runtime-only", "an install hook downloads from a host that is allowed only at runtime", ""}, installRuntimeOnly},
	{Rule{"install-host-not-allowed", "an install hook downloads, and the install phase does not allow it", ""}, installNotAllowed},
	{Rule{"unversioned-provide", "a provide has no version and the Kit states none either, so that it cannot be published", "SPEC-v3 §9.2/versioned-provides"}, unversionedProvide},
	{Rule{"unversioned-provide-foreign", "a provide without a version takes the Kit's, though it names somebody else's software", ""}, foreignProvide},
	{Rule{"latest-in-provides", "an argument that versions a provide has a default that is not a version, such as latest", ""}, latestProvide},
	{Rule{"literal-provide-floating-version", "a provide states a version that nothing pins", ""}, floatingProvide},
	{Rule{"deb-require-in-mixin", "a mixin requires a distribution's package and names no base", ""}, packageRequire},
	{Rule{"required-could-be-optional", "a required capability that the Kit could do without", ""}, couldBeOptional},
	{Rule{"renamed-namespace", "a capability type of the old namespace com.docker.runtime", ""}, renamedNamespace},
	{Rule{"unknown-type", "a capability type that looks like a well-known one misspelt", ""}, unknownType},
	{Rule{"privileged-without-description", "privileged does not say why", "privileged@1/description-says-why"}, privilegedWhy},
	{Rule{"resources-in-mixin", "a mixin declares resources, which the workload owns", "resources@1/workload-owns-declaration"}, resourcesInMixin},
	{Rule{"host-pattern", "a host pattern that no boundary can apply, so that the Kit does not start", ""}, unusableHosts},
	{Rule{"workload-base", "a workload starts from an image without the platform's floor", "SPEC-v3 §3.5/workload-base-should-match-runtime"}, workloadBase},
	{Rule{"license-not-spdx", "a license is not an SPDX id", "SPEC-v3 §4/licenses-spdx"}, unknownLicense},
	{Rule{WorkloadWithoutContent, "a workload that is checked as a file alone has no recipe yet", "SPEC-v3 §3.5/workload-has-content"}, nil},
	{Rule{CompanionUnused, "a companion recipe lies beside a descriptor that has content of its own", ""}, nil},
	{Rule{descriptorLarge, "the descriptor is larger than readers like", ""}, nil},
	{Rule{unknownIgnore, "a kit:ignore names no rule", ""}, nil},
}

// The ids of findings about files, which only a caller with a file system can
// make.
const (
	CompanionUnused        = "companion-unused"
	WorkloadWithoutContent = "workload-without-content"
)

const (
	descriptorLarge = "descriptor-large"
	unknownIgnore   = "unknown-ignore"
)

// Rules returns all rules.
func Rules() []Rule {
	out := make([]Rule, len(rules))
	for i := range rules {
		out[i] = rules[i].Rule
	}
	return out
}

// Known reports whether id is that of a rule.
func Known(id string) bool {
	return slices.ContainsFunc(rules, func(r check) bool { return r.ID == id })
}

// ID returns the id under which a warning of package spec can be silenced, or
// "" for one that cannot.
func ID(d spec.Diagnostic) string {
	switch {
	case d.Severity != spec.Warning:
	case d.Statement == "SPEC-v3 §4/licenses-spdx":
		return "license-not-spdx"
	case d.Path == "":
		return descriptorLarge
	}
	return ""
}

// Check applies the rules to d, valid or not, and returns what they find in
// the order of the document. Findings that o or a comment in the document
// silences are left out.
func Check(d *spec.Document, o Options) []Finding {
	k := gather(d, o)
	silenced, unknown := ignored(d.Text())
	var out []Finding
	for _, r := range rules {
		if r.find == nil || silenced[r.ID] || slices.Contains(o.Ignore, r.ID) {
			continue
		}
		found := 0
		r.find(k, func(path, message string) {
			if found++; found > maxFound {
				return
			}
			out = append(out, Finding{r.ID, d.Place(spec.Diagnostic{
				Severity: spec.Warning, Stage: spec.StageValidate, Path: path, Message: message, Statement: r.Statement,
			})})
		})
	}
	if !silenced[unknownIgnore] && !slices.Contains(o.Ignore, unknownIgnore) {
		for _, id := range unknown {
			dg := d.Place(spec.Diagnostic{Severity: spec.Warning, Stage: spec.StageValidate,
				Message: "kit:ignore " + strconv.Quote(id) + " names no rule: see `kitbox kit check --rules`"})
			out = append(out, Finding{unknownIgnore, dg})
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

// The rules look no further than this: findings of one rule, entries, hooks.
// A Kit that somebody wrote has a fraction of each.
const (
	maxFound   = 200
	maxEntries = 2000
	maxHooks   = 1000
)

// Ignored returns the ids that comments in the document silence.
func Ignored(d *spec.Document) map[string]bool {
	silenced, _ := ignored(d.Text())
	return silenced
}

var ignoreComment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)(?:^|[ \t])#[ \t]*kit:ignore[ \t]+([^\r\n]*)$`) })

// ignored reads the comments "# kit:ignore ID, ID reason". Each silences its
// rules in the whole document.
func ignored(text string) (silenced map[string]bool, unknown []string) {
	if !strings.Contains(text, "kit:ignore") {
		return nil, nil
	}
	silenced = map[string]bool{}
	for _, m := range ignoreComment().FindAllStringSubmatch(text, -1) {
		for i, w := range strings.Fields(m[1]) {
			id := strings.Trim(w, ",;:")
			if Known(id) {
				silenced[id] = true
				continue
			}
			if i == 0 {
				unknown = append(unknown, id)
			}
			break // the reason
		}
	}
	return silenced, unknown
}

// A reporter takes a finding about the value at a dotted path.
type reporter func(path, message string)

// A kit is what the rules look at.
type kit struct {
	*spec.Document
	names   []string // words of what it is called
	entries []entry
	hooks   []hook
	recipe  recipe.Recipe
	network network
}

// An entry is a capability request and where it stands.
type entry struct {
	path string
	*capability.Request
	optional bool // itself or its group
}

func gather(d *spec.Document, o Options) *kit {
	k := &kit{Document: d}
	for i := range d.Capabilities {
		if len(k.entries) >= maxEntries {
			break
		}
		it := &d.Capabilities[i]
		p := "capabilities[" + strconv.Itoa(i) + "]"
		if it.Group == nil {
			k.entries = append(k.entries, entry{p, &it.Request, it.Optional})
			continue
		}
		for j := range it.Group.Capabilities {
			k.entries = append(k.entries, entry{p + ".group.capabilities[" + strconv.Itoa(j) + "]", &it.Group.Capabilities[j], it.Group.Optional})
		}
	}
	for _, n := range append([]string{d.DisplayName}, o.Names...) {
		k.names = append(k.names, nameWords(n)...)
	}
	text, _ := d.Recipe()
	if text == "" {
		text = cmp.Or(d.Build, o.Recipe)
	}
	k.recipe = recipe.Parse(text)
	for _, e := range k.entries {
		switch e.Type {
		case typeLifecycle:
			k.hooks = append(k.hooks, hooksOf(e)...)
			k.hooks = k.hooks[:min(len(k.hooks), maxHooks)]
		case typeNetwork, typeNetworkV2:
			k.network.add(e)
		}
	}
	return k
}

// nameWords splits a name, without the words that say no more than that it is
// a Kit.
func nameWords(s string) []string {
	var out []string
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r < '0' || r > '9' && r < 'a' || r > 'z' }) {
		switch w {
		case "kit", "kits", "sbx", "mixin", "workload", "sandbox":
		default:
			out = append(out, w)
		}
	}
	return out
}
