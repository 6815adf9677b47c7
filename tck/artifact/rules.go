package artifact

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// What a rule needs before it can be asked.
type need int

const (
	documents need = iota // manifest and config
	readable              // and a descriptor that decodes
	layers                // and a file system
)

// A rule judges by one statement, which it names.
type rule struct {
	id     string
	check  string // the promise in words
	needs  need
	judge  func(*judge)
	waived string // why no artifact can show it; judge is nil then
}

// idValid is the statement of what the grammar finds without naming another.
const idValid = "SPEC-v3 §9.1/descriptor-valid"

const (
	idRevision    = "org.opencontainers.image.revision"
	idBasePrefix  = "org.opencontainers.image.base."
	emptyMedia    = ocispec.MediaTypeEmptyJSON
	layerOCI      = ocispec.MediaTypeImageLayer
	managedPrefix = "vnd.docker.sandbox.kit."
)

// rules are in the order in which they are judged and reported.
var rules = []rule{
	{id: "SPEC-v3 §9.3/descriptor-annotation", check: "every platform manifest carries the descriptor", judge: (*judge).carried},
	{id: idValid, check: "the descriptor is valid in its published form"},
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
	{id: "SPEC-v3 §9.3/annotations-promoted", check: "the index carries the annotations of its manifests", judge: (*judge).promoted},
	{id: "SPEC-v3 §9.5/declarations-platform-independent", check: "all platforms carry one descriptor", judge: (*judge).onePlatform},
	{id: "SPEC-v3 §10/plain-image", check: "a plain image: no artifact type, no media types of its own", judge: (*judge).plain},
	{id: "SPEC-v3 §10/platform-stated", check: "the config states its platform, and the index agrees", judge: (*judge).platform},
	{id: "SPEC-v3 §10/has-layer", check: "at least one layer, and none that is empty by type", judge: (*judge).hasLayer},
	{id: "SPEC-v3 §10/layers-intact", check: "the layers are what manifest and config say", judge: (*judge).intact},
	{id: "SPEC-v3 §10/entries-contained", check: "no entry of a layer leads out of it", needs: layers, judge: (*judge).contained},
	{id: "SPEC-v3 §3.5/workload-has-content", check: "a workload ships a file system", needs: layers, judge: (*judge).workloadContent},
	{id: "SPEC-v3 §10/workload-launches", check: "a workload states an entrypoint or a command", needs: readable, judge: (*judge).launches},
	{id: "SPEC-v3 §10/sources-staged", check: "the Kit's own descriptor is staged, and says what the annotation says", needs: layers, judge: (*judge).staged},
	{id: "SPEC-v3 §10/recipe-staged", check: "the recipe is staged beside the descriptor", needs: layers, judge: (*judge).recipe},
	{id: "SPEC-v3 §10/overlay-home-ownership", check: "a mixin leaves /home and /home/agent with their owners", needs: layers, judge: (*judge).home},
	{id: "SPEC-v3 §10/overlay-links-resolve", check: "a mixin's symlinks lead to what it ships", needs: layers, judge: (*judge).links},
	{id: "SPEC-v3 §10/mixin-config-delta", check: "a mixin's PATH holds only what it adds", needs: readable, judge: (*judge).delta},
	{id: "SPEC-v3 §9.6/workload-only", check: "only workloads state packages", needs: readable, judge: (*judge).packagesOfMixin},
	{id: "SPEC-v3 §9.6/installed-only", check: "stated packages are installed", needs: layers, judge: (*judge).installed},
	{id: "SPEC-v3 §9.6/version-is-upstream-core", check: "packages are stated in the core of their version", needs: layers, judge: (*judge).core},
	{id: "SPEC-v3 §9.6/prerelease-dropped", check: "packages without a version that can be stated are not", needs: layers, judge: (*judge).prerelease},
	{id: "SPEC-v3 §9.6/agreed-across-platforms", check: "stated packages are on all platforms", needs: layers, judge: (*judge).agreed},
	{id: "SPEC-v3 §9.6/every-package-stated", check: "packages that could be stated are", needs: layers, judge: (*judge).unstated},
	{id: "SPEC-v3 §10/merged-set-carries-sources", check: "a set carries the staged sources of every Kit it lists", needs: layers, judge: (*judge).setSources},
	{id: "SPEC-v3 §10/merged-set-files-agree", check: "the Kits of a set do not replace each other's files", needs: layers, judge: (*judge).setFiles},
	{id: "SPEC-v3 §9.5/licenses-union", check: "a set states the licenses of every Kit it lists", needs: layers, judge: (*judge).setLicenses},
	{id: "SPEC-v3 §9.5/provides-union", check: "a set provides what every Kit it lists provides", needs: layers, judge: (*judge).setProvides},
	{id: "SPEC-v3 §9.5/internal-requires-dropped", check: "a set does not require what it provides", needs: readable, judge: (*judge).setRequires},
	{id: "SPEC-v3 §9.5/layers-preserved", check: "a set keeps the layers of its Kits", waived: "the layers of the listed Kits are not part of the artifact"},
	{id: "agent-context@1/content-file-present", check: "guidance that is named is shipped", needs: layers, judge: (*judge).guidance},
	{id: "agent-skill@1/content-present", check: "a skill has a SKILL.md at its root", needs: layers, judge: (*judge).skills},
	{id: "sbx@1/posix-shell-present", check: "the user can execute /bin/sh", needs: layers, judge: func(j *judge) { j.shell("/bin/sh") }},
	{id: "sbx@1/bash-present", check: "the user can execute /bin/bash", needs: layers, judge: func(j *judge) { j.shell("/bin/bash") }},
	{id: "sbx@1/image-declares-user", check: "the image declares a user", needs: readable, judge: (*judge).declaresUser},
	{id: "sbx@1/user-resolves-in-passwd", check: "that user resolves in the image", needs: layers, judge: (*judge).userResolves},
	{id: "sbx@1/bash-env-names-a-shipped-file", check: "BASH_ENV names a file of the image", needs: layers, judge: (*judge).bashEnv},
}

// carried finds manifests without a descriptor.
func (j *judge) carried() {
	for _, im := range j.images {
		if im.text == "" {
			j.fail(im, annotation.Descriptor, "the manifest %s has no descriptor", im.Descriptor.Digest)
		}
	}
}

func (j *judge) compact() {
	v := jsontext.Value(j.text)
	if !v.IsValid() {
		j.fail(nil, annotation.Descriptor, "is not JSON")
		return
	}
	if err := v.Compact(); err != nil || string(v) != j.text {
		j.fail(nil, annotation.Descriptor, "holds blanks that compact JSON has not")
	}
}

// annotations reports the faults of every manifest, and of the index, that ours
// picks. A fault they share is reported once.
func (j *judge) annotations(ours func(annotation.Fault) bool) {
	seen := map[annotation.Fault]bool{}
	hold := func(im *image, have map[string]string) {
		for _, f := range annotation.Check(have, j.doc.Descriptor) {
			if ours(f) && !seen[f] {
				seen[f] = true
				j.fail(im, f.Key, "%s", f.Message)
			}
		}
	}
	for _, im := range j.images {
		hold(im, im.Manifest.Annotations)
	}
}

// never finds annotations that no Kit has.
func (j *judge) never() {
	look := func(im *image, have map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(have)) {
			if k == idRevision || strings.HasPrefix(k, idBasePrefix) {
				j.fail(im, k, "is present; it is never stated")
			}
		}
	}
	if j.Index != nil {
		look(nil, j.Index.Annotations)
	}
	for _, im := range j.images {
		look(im, im.Manifest.Annotations)
	}
}

// promoted compares the index with its manifests.
func (j *judge) promoted() {
	if j.Index == nil {
		j.skip("there is no index")
		return
	}
	first := j.images[0].Manifest.Annotations
	for _, k := range annotation.Keys() {
		want, stated := first[k]
		got, present := j.Index.Annotations[k]
		switch {
		case stated && !present:
			j.fail(nil, k, "is on the manifests and not on the index")
		case got != want:
			j.fail(nil, k, "differs between the index and a manifest")
		}
	}
}

// onePlatform compares the managed annotations of the manifests.
func (j *judge) onePlatform() {
	if len(j.images) < 2 {
		j.skip("one platform is judged")
		return
	}
	first := j.images[0]
	for _, im := range j.images[1:] {
		for _, k := range annotation.Keys() {
			if im.Manifest.Annotations[k] != first.Manifest.Annotations[k] && (k != annotation.Descriptor || im.text != "" && first.text != "") {
				j.fail(im, k, "differs from that of %s", first.Platform)
			}
		}
	}
}

func (j *judge) plain() {
	if j.Index != nil && j.Index.ArtifactType != "" {
		j.fail(nil, "artifactType", "the index states %q; a Kit has none", j.Index.ArtifactType)
	}
	for _, im := range j.images {
		m := im.Manifest
		if m.ArtifactType != "" {
			j.fail(im, "artifactType", "the manifest states %q; a Kit has none", m.ArtifactType)
		}
		if m.Config.MediaType != ocispec.MediaTypeImageConfig && m.Config.MediaType != dockerConfig {
			j.fail(im, "config.mediaType", "%q is not that of an image config", m.Config.MediaType)
		}
		for n, l := range m.Layers {
			base, _, _ := strings.Cut(strings.TrimSuffix(l.MediaType, ".gzip"), "+")
			if base != layerOCI && base != dockerLayer && l.MediaType != emptyMedia {
				j.fail(im, "layers["+strconv.Itoa(n)+"].mediaType", "%q is not that of an image layer", l.MediaType)
			}
		}
	}
}

func (j *judge) platform() {
	for _, im := range j.images {
		if im.Config.OS == "" || im.Config.Architecture == "" {
			j.fail(im, "config", "states no operating system or no architecture")
			continue
		}
		if p := im.Descriptor.Platform; p != nil && (p.OS != im.Config.OS || p.Architecture != im.Config.Architecture) {
			j.fail(im, "config", "states %s; the index says %s/%s", im.Platform, p.OS, p.Architecture)
		}
	}
}

func (j *judge) hasLayer() {
	for _, im := range j.images {
		if len(im.Manifest.Layers) == 0 {
			j.fail(im, "layers", "the manifest has none")
		}
		for n, l := range im.Manifest.Layers {
			if l.MediaType == emptyMedia || l.Digest == ocispec.DescriptorEmptyJSON.Digest {
				j.fail(im, "layers["+strconv.Itoa(n)+"]", "is the empty descriptor")
			}
		}
	}
}

func (j *judge) intact() {
	for _, im := range j.images {
		if l, d := len(im.Manifest.Layers), len(im.Config.RootFS.DiffIDs); l != d {
			j.fail(im, "config.rootfs", "the manifest has %d layers and the config %d diff ids", l, d)
		}
	}
	for _, f := range j.broken {
		j.fail(nil, f.At, "%s", f.Message)
	}
}

func (j *judge) contained() {
	for _, im := range j.images {
		for _, f := range im.fs.Faults {
			j.fail(im, "", "%s", f)
		}
	}
}

func (j *judge) launches() {
	if j.doc.Kind != spec.KindWorkload {
		j.skip("not a workload")
		return
	}
	for _, im := range j.images {
		if len(im.Config.Config.Entrypoint) == 0 && len(im.Config.Config.Cmd) == 0 {
			j.fail(im, "config", "states neither an entrypoint nor a command")
		}
	}
}

// delta finds the elements that every base has in the PATH of a mixin.
func (j *judge) delta() {
	if j.doc.Kind != spec.KindMixin {
		j.skip("not a mixin")
		return
	}
	for _, im := range j.images {
		for _, kv := range im.Config.Config.Env {
			k, v, _ := strings.Cut(kv, "=")
			elements := strings.Split(v, ":")
			if k == "PATH" && slices.Contains(elements, "/usr/bin") && slices.Contains(elements, "/bin") {
				j.fail(im, "config.Env", "PATH is %q, a base's own and not what the mixin adds", v)
			}
		}
	}
}

// under reports whether name is dir or below it.
func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, path.Clean(dir)+"/") }
