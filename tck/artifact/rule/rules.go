package rule

import (
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/resolve/packages"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// What a rule needs before it can be asked.
type need int

const (
	documents need = iota // manifest and config
	readable              // and a descriptor that decodes
	files                 // and a file system
)

// A rule judges by one statement, which it names.
type rule struct {
	id       string
	check    string // the promise in words
	needs    need
	exported bool // asks about what an exporter makes
	judge    func(*judge)
	waived   string // why no artifact can show it; judge is nil then
}

// idValid is the statement of what the grammar finds without naming another.
const idValid = "SPEC-v3 §9.1/descriptor-valid"

// rules are in the order in which they are judged and reported. It is set by
// init because rules report by statements of each other.
var rules []rule

func init() {
	rules = []rule{
		{id: "SPEC-v3 §9.3/descriptor-annotation", check: "every platform manifest carries the descriptor", judge: (*judge).carried},
		{id: idValid, check: "the descriptor is valid in its published form", judge: (*judge).descriptor},
		{id: "SPEC-v3 §9.3/descriptor-compact", check: "the annotation is compact JSON", needs: readable, judge: (*judge).compact},
		{id: "SPEC-v3 §9.3/annotations-agree", check: "the annotations say what the descriptor says", needs: readable, judge: func(j *judge) {
			j.annotations(func(f annotation.Fault) bool { return f.Key != annotation.BuiltBy && f.Statement == "" })
		}},
		{id: "SPEC-v3 §9.3/built-by-form", check: "built-by is compact JSON that names a program and its version", needs: readable, judge: func(j *judge) {
			j.annotations(func(f annotation.Fault) bool { return f.Key == annotation.BuiltBy })
		}},
		{id: "SPEC-v3 §9.3/created-rfc3339", check: "created, where stated, is RFC 3339", needs: readable, judge: func(j *judge) {
			j.annotations(func(f annotation.Fault) bool { return f.Statement == "SPEC-v3 §9.3/created-rfc3339" })
		}},
		{id: "SPEC-v3 §9.3/created-not-wall-clock", check: "created does not come from the clock", waived: "one artifact does not show where its time came from"},
		{id: "SPEC-v3 §9.3/no-revision-no-base", check: "no revision and no base annotation", judge: (*judge).never},
		{id: "SPEC-v3 §9.3/annotations-promoted", check: "the index carries the annotations of its manifests", exported: true, judge: (*judge).promoted},
		{id: "SPEC-v3 §9.5/declarations-platform-independent", check: "all platforms carry one descriptor", judge: (*judge).onePlatform},
		{id: "SPEC-v3 §10/plain-image", check: "a plain image: no artifact type, no media types of its own", exported: true, judge: (*judge).plain},
		{id: "SPEC-v3 §10/platform-stated", check: "the config states its platform, and the index agrees", judge: (*judge).platform},
		{id: "SPEC-v3 §10/has-layer", check: "at least one layer, and none that is empty by type", exported: true, judge: (*judge).hasLayer},
		{id: "SPEC-v3 §10/layers-intact", check: "the layers are what manifest and config say", exported: true, judge: (*judge).intact},
		{id: "SPEC-v3 §10/entries-contained", check: "no entry of a layer leads out of it", needs: files, exported: true, judge: (*judge).contained},
		{id: "SPEC-v3 §3.5/workload-has-content", check: "a workload ships a file system", needs: files, judge: (*judge).workloadContent},
		{id: idFloor, check: "a workload ships what content may assume: shells, git, a CA store, the user agent", needs: files, judge: (*judge).platformFloor},
		{id: "SPEC-v3 §10/workload-launches", check: "a workload states an entrypoint or a command", needs: readable, judge: (*judge).launches},
		{id: "SPEC-v3 §10/sources-staged", check: "the Kit's own descriptor is staged, and says what the annotation says", needs: files, judge: (*judge).staged},
		{id: "SPEC-v3 §10/recipe-staged", check: "the recipe is staged beside the descriptor", needs: files, judge: (*judge).recipe},
		{id: "SPEC-v3 §3.3/comment-descriptor-no-content", check: "a recipe that holds the descriptor is the only one", needs: files, judge: (*judge).commentAlone},
		{id: "SPEC-v3 §5.1/derived-namespaces-reserved", check: "package names are derived, not written", waived: "a published provide does not show who wrote it; what is wrong with one is judged by §9.6"},
		{id: "SPEC-v3 §4/licenses-spdx", check: "licenses are SPDX ids", needs: readable, judge: (*judge).linted},
		{id: "SPEC-v3 §10/overlay-home-ownership", check: "a mixin leaves /home and /home/agent with their owners", needs: files, judge: (*judge).home},
		{id: "SPEC-v3 §10/overlay-links-resolve", check: "a mixin's symlinks lead to what it ships", needs: files, judge: (*judge).links},
		{id: "SPEC-v3 §10/mixin-config-delta", check: "a mixin's PATH holds only what it adds", needs: readable, judge: (*judge).delta},
		{id: "SPEC-v3 §9.6/workload-only", check: "only workloads state packages", needs: readable, judge: (*judge).packagesOfMixin},
		{id: "SPEC-v3 §9.6/installed-only", check: "stated packages are installed", needs: files, judge: (*judge).installed},
		{id: "SPEC-v3 §9.6/version-is-upstream-core", check: "packages are stated in the core of their version", needs: files, judge: (*judge).core},
		{id: "SPEC-v3 §9.6/prerelease-dropped", check: "packages without a version that can be stated are not", needs: files, judge: (*judge).prerelease},
		{id: "SPEC-v3 §9.6/agreed-across-platforms", check: "stated packages are on all platforms", needs: files, judge: (*judge).agreed},
		{id: "SPEC-v3 §9.6/every-package-stated", check: "packages that could be stated are", needs: files, judge: (*judge).unstated},
		{id: "SPEC-v3 §10/merged-set-carries-sources", check: "a set carries the staged sources of every Kit it lists", needs: files, judge: (*judge).setSources},
		{id: "SPEC-v3 §10/merged-set-sources-told-apart", check: "what a set stages says which Kit it is of", needs: files, judge: (*judge).toldApart},
		{id: "SPEC-v3 §10/merged-set-files-agree", check: "the Kits of a set do not replace each other's files", needs: files, exported: true, judge: (*judge).setFiles},
		{id: "SPEC-v3 §5.3/one-workload", check: "a set holds at most one workload", needs: files, judge: (*judge).coherent},
		{id: "SPEC-v3 §5.3/one-provider-per-name", check: "no two Kits of a set provide one name", needs: files, judge: (*judge).coherent},
		{id: "SPEC-v3 §5.3/conflicts-fail", check: "no Kit of a set conflicts with another", needs: files, judge: (*judge).coherent},
		{id: "SPEC-v3 §5.3/integrates-violation-fails", check: "the Kits of a set integrate with each other as they state", needs: files, judge: (*judge).coherent},
		{id: "SPEC-v3 §5.3/dependency-order", check: "the Kits of a set can be ordered", needs: files, judge: (*judge).coherent},
		{id: idArgSupplied, check: "a set binds what its Kits require", needs: files, judge: (*judge).coherent},
		{id: idReExport, check: "a set declares what it re-exports at least as strictly", needs: files, judge: (*judge).coherent},
		{id: "SPEC-v3 §9.5/kind-derived", check: "a set is of the kind that its Kits make", needs: files, judge: (*judge).setKind},
		{id: "SPEC-v3 §9.5/licenses-union", check: "a set states the licenses of every Kit it lists", needs: files, judge: (*judge).setLicenses},
		{id: "SPEC-v3 §9.5/provides-union", check: "a set provides what every Kit it lists provides", needs: files, judge: (*judge).setProvides},
		{id: "SPEC-v3 §9.5/internal-requires-dropped", check: "a set does not require what it provides", needs: readable, judge: (*judge).setRequires},
		{id: "SPEC-v3 §9.5/relations-merged", check: "a set requires, integrates and conflicts as its Kits do", needs: files, judge: (*judge).setRelations},
		{id: idMerged, check: "a set asks for all that its Kits ask for", needs: files, judge: (*judge).setCapabilities},
		{id: "SPEC-v3 §9.5/capability-name-first", check: "merged entries keep their labels", needs: files, judge: (*judge).setLabels},
		{id: "SPEC-v3 §7.1.1/publishing", check: "a set keeps the groups of its Kits", needs: files, judge: (*judge).setGroups},
		{id: "SPEC-v3 §7.1.1/provenance", check: "entries of a set say which Kit they come from", needs: files, judge: (*judge).setProvenance},
		{id: "SPEC-v3 §9.5/layers-preserved", check: "a set keeps the layers of its Kits", needs: readable, exported: true, judge: (*judge).preserved},
		{id: "credential@1/inject-domain-in-allow", check: "credentials are injected where traffic is allowed", needs: readable, judge: (*judge).injected},
		{id: "acp@1/optional-for-compatibility", check: "agent protocols are optional", needs: readable, judge: (*judge).acpOptional},
		{id: "privileged@1/description-says-why", check: "privileged says why", needs: readable, judge: (*judge).linted},
		{id: "resources@1/workload-owns-declaration", check: "only workloads declare resources", needs: readable, judge: (*judge).linted},
		{id: "agent-context@1/content-file-present", check: "guidance that is named is shipped", needs: files, judge: (*judge).guidance},
		{id: "agent-skill@1/content-present", check: "a skill has a SKILL.md at its root", needs: files, judge: (*judge).skills},
		{id: "agent-skill@1/frontmatter-names-skill", check: "a SKILL.md is headed by the skill's name and description", needs: files, judge: (*judge).skillText},
		{id: "sbx@1/posix-shell-present", check: "the user can execute /bin/sh", needs: files, judge: func(j *judge) { j.shell("/bin/sh") }},
		{id: "sbx@1/bash-present", check: "the user can execute /bin/bash", needs: files, judge: func(j *judge) { j.shell("/bin/bash") }},
		{id: "sbx@1/image-declares-user", check: "the image declares a user", needs: readable, judge: (*judge).declaresUser},
		{id: "sbx@1/user-resolves-in-passwd", check: "that user resolves in the image", needs: files, judge: (*judge).userResolves},
		{id: "sbx@1/bash-env-names-a-shipped-file", check: "BASH_ENV names a file of the image", needs: files, judge: (*judge).bashEnv},

		// What no artifact shows, so that the tally is complete.
		{id: "SPEC-v3 §6/expanded-key-collision-rejected", check: "no two keys expand to one", waived: "keys become what they are when arguments are given, at create"},
		{id: "SPEC-v3 §7/name-display-only", check: "labels change nothing", waived: "says what a program makes of a label, not what an artifact holds"},
		{id: "SPEC-v3 §7/name-not-identity", check: "labels identify nothing", waived: "says what a program records, not what an artifact holds"},
		{id: "SPEC-v3 §7.1.1/validate-declarations", check: "declarations are validated before selection", waived: "says when a program judges; what it would find, groups included, is judged by §9.1"},
		{id: "SPEC-v3 §7.4/widenings-gate", check: "more authority waits for approval", waived: "is about two versions of a Kit and who uses them"},
		{id: "SPEC-v3 §9.3/manifest-fallback", check: "a reader falls back to the annotations of a manifest", waived: "says what a reader does; that index and manifests agree is judged by annotations-promoted"},
		{id: "host-mount@1/runtime-owned-location", check: "a Kit does not choose where the host keeps a directory", waived: "the grammar has no field for it, and one nobody knows is judged by §9.1"},
		{id: "kit-registry@1/content-must-not-assume-address", check: "a Kit reads the address of the registry that it is announced", waived: "an address in a file cannot be told from any other"},
		{id: "network-policy@1/inject-domain-in-allow", check: "credentials are injected where traffic is allowed", waived: "is the other half of credential@1/inject-domain-in-allow, and judged there"},
		{id: "network-policy@2/inject-domain-in-allow", check: "credentials are injected where traffic is allowed", waived: "is the other half of credential@1/inject-domain-in-allow, and judged there"},
	}
}

// grammarIDs are the statements that the grammar names for a published
// descriptor. What it finds without naming one of them is [idValid]'s.
var grammarIDs = []string{
	"SPEC-v3 §3.4/kit-published-reference",
	"SPEC-v3 §3.4/set-declares-no-recipe",
	"SPEC-v3 §3.4/set-has-kits",
	"SPEC-v3 §3.4/set-kind-never-published",
	"SPEC-v3 §4/schema-version-3",
	"SPEC-v3 §4/sandbox-spelling-not-written",
	"SPEC-v3 §4/dockerfile-inside-context",
	"SPEC-v3 §5/requires-literal",
	"SPEC-v3 §5.1/namespace-reverse-dns",
	"SPEC-v3 §6/arg-key-grammar",
	"SPEC-v3 §6/references-declared",
	"SPEC-v3 §6/env-expanded",
	"SPEC-v3 §7/name-round-trip",
	"SPEC-v3 §7.1.1/group-grammar",
	"SPEC-v3 §9.2/versioned-provides",
	"acp@1/agent-unique",
	"acp@1/config-valid",
	"agent-interactive-sessions@1/list-matches-agent-sessions",
	"agent-interactive-sessions@1/new-session-matches-lifecycle-interactive",
	"agent-interactive-sessions@1/prompt-placeholder-required",
	"agent-interactive-sessions@1/session-id-placeholder-required",
	"agent-sessions@1/prompt-placeholder-required",
	"agent-sessions@1/session-id-placeholder-required",
	"agent-skill@1/name-valid",
	"agent-skill@1/source-literal",
	"credential@1/name-or-inject",
	"credential@1/one-of-apikey-oauth",
	"git-identity@1/no-config",
	"long-running@1/no-config",
	"network-policy@2/bounded-allow-hosts-literal",
}

// Statements returns the ids of all statements that a finding can cite, in no
// order that means anything.
func Statements() []string {
	var ids []string
	for _, r := range rules {
		if r.waived == "" {
			ids = append(ids, r.id)
		}
	}
	return append(ids, grammarIDs...)
}

// keep names the files whose content the rules look at.
func keep(name string) bool {
	switch name {
	case passwdFile, groupFile, packages.DpkgStatus, packages.ApkInstalled, "/usr" + packages.ApkInstalled:
		return true
	}
	base := path.Base(name)
	return base == skillFile || strings.HasPrefix(name, content.StageRoot+"/") && (base == content.StagedDescriptor || base == content.StagedRecipe)
}

// under reports whether name is dir or below it.
func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, path.Clean(dir)+"/") }
