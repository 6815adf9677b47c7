package rule

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/acp"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/lint"
	"github.com/kitbox-dev/kitbox/tck"
)

// The media types of docker, which name the same documents.
const (
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// The media types of each part of an image. A program that does not know one of a
// layer leaves the layer out, or fails; some guess by what is behind a plus sign.
var (
	indexMedia    = []string{ocispec.MediaTypeImageIndex, dockerIndex}
	manifestMedia = []string{ocispec.MediaTypeImageManifest, dockerManifest}
	configMedia   = []string{ocispec.MediaTypeImageConfig, dockerConfig}
	layerMedia    = []string{ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd, emptyMedia,
		dockerLayer, dockerLayer + ".gzip", dockerLayer + ".zstd"}
)

const (
	idRevision   = "org.opencontainers.image.revision"
	idBasePrefix = "org.opencontainers.image.base."
	emptyMedia   = ocispec.MediaTypeEmptyJSON
)

// descriptorText is the descriptor annotation of the manifest.
func (im *Image) descriptorText() string { return im.Manifest.Annotations[annotation.Descriptor] }

// descriptor reports what the grammar found, under the grammar's own statements
// where it names one.
func (j *judge) descriptor() {
	if j.text == "" {
		j.skip("there is no descriptor")
		return
	}
	for _, d := range j.grammar {
		id, o := d.Statement, tck.Warn
		if j.hasRule(id) {
			continue // reported there
		}
		if !slices.Contains(grammarIDs, id) {
			id = idValid
		}
		if d.Severity == spec.Error {
			o = tck.Fail
		}
		j.report(o, id, "", d.Path, "%s", d.Message)
	}
	if j.doc == nil && len(j.findings) == 0 {
		j.fail(nil, annotation.Descriptor, "holds no descriptor")
	}
}

// hasRule reports whether a rule of its own looks after what the grammar also
// warns about.
func (j *judge) hasRule(id string) bool {
	return j.doc != nil && slices.ContainsFunc(rules, func(r rule) bool { return r.id == id && r.judge != nil })
}

// linted reports what the linter knows of the current statement, in the
// grammar's words where that says it too.
func (j *judge) linted() {
	seen := map[string]bool{}
	hold := func(d spec.Diagnostic) {
		if d.Statement == j.rule.id && !seen[d.Path] {
			seen[d.Path] = true
			j.fail(nil, d.Path, "%s", d.Message)
		}
	}
	for _, d := range j.grammar {
		hold(d)
	}
	for _, f := range lint.Check(j.doc, lint.Options{}) {
		hold(f.Diagnostic)
	}
}

// acpOptional finds agent protocols that hosts without one have to refuse.
func (j *judge) acpOptional() {
	for i, it := range j.doc.Capabilities {
		at := "capabilities[" + strconv.Itoa(i) + "]"
		if it.Group == nil {
			if it.Type == acp.Type && !it.Optional {
				j.fail(nil, at, "is required: a host that knows no %s refuses the Kit, whose agent runs without", acp.Type)
			}
			continue
		}
		for n, r := range it.Group.Capabilities {
			if r.Type == acp.Type && !it.Group.Optional {
				j.fail(nil, at+".group.capabilities["+strconv.Itoa(n)+"]", "is in a required group")
			}
		}
	}
}

// carried finds manifests without a descriptor.
func (j *judge) carried() {
	for _, im := range j.Images {
		if im.descriptorText() == "" {
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
	hold := func(im *Image, have map[string]string) {
		for _, f := range annotation.Check(have, j.doc.Descriptor) {
			if ours(f) && !seen[f] {
				seen[f] = true
				j.fail(im, f.Key, "%s", f.Message)
			}
		}
	}
	for _, im := range j.Images {
		hold(im, im.Manifest.Annotations)
	}
}

// never finds annotations that no Kit has.
func (j *judge) never() {
	look := func(im *Image, have map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(have)) {
			if k == idRevision || strings.HasPrefix(k, idBasePrefix) {
				j.fail(im, k, "is present; it is never stated")
			}
		}
	}
	if j.Index != nil {
		look(nil, j.Index.Annotations)
	}
	for _, im := range j.Images {
		look(im, im.Manifest.Annotations)
	}
}

// promoted compares the index with its manifests.
func (j *judge) promoted() {
	if j.Index == nil {
		j.skip("there is no index")
		return
	}
	first := j.Images[0].Manifest.Annotations
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
	if len(j.Images) < 2 {
		j.skip("one platform is judged")
		return
	}
	first := j.Images[0]
	for _, im := range j.Images[1:] {
		for _, k := range annotation.Keys() {
			if im.Manifest.Annotations[k] != first.Manifest.Annotations[k] && (k != annotation.Descriptor || im.descriptorText() != "" && first.descriptorText() != "") {
				j.fail(im, k, "differs from that of %s", first.Platform)
			}
		}
	}
}

func (j *judge) plain() {
	if j.Index != nil && j.Index.ArtifactType != "" {
		j.fail(nil, "artifactType", "the index states %q; a Kit has none", j.Index.ArtifactType)
	}
	// What a document says of itself has to go with what it is listed as, or two
	// programs read two things into the same bytes.
	kind := func(im *Image, at, media, what string, known []string) {
		if !slices.Contains(known, media) {
			j.fail(im, at, "%q is not that of an image %s", media, what)
		}
	}
	if j.Index != nil {
		kind(nil, "mediaType", cmp.Or(j.Index.MediaType, indexMedia[0]), "index", indexMedia)
	}
	for _, im := range j.Images {
		m := im.Manifest
		if m.ArtifactType != "" {
			j.fail(im, "artifactType", "the manifest states %q; a Kit has none", m.ArtifactType)
		}
		if t := im.Descriptor.ArtifactType; t != "" {
			j.fail(im, "manifests.artifactType", "the index states %q for %s; a Kit has none", t, im.Descriptor.Digest)
		}
		kind(im, "mediaType", cmp.Or(m.MediaType, manifestMedia[0]), "manifest", manifestMedia)
		kind(im, "manifests.mediaType", cmp.Or(im.Descriptor.MediaType, manifestMedia[0]), "manifest", manifestMedia)
		if m.SchemaVersion != 2 {
			j.fail(im, "schemaVersion", "is %d; that of an image manifest is 2", m.SchemaVersion)
		}
		if t := im.Config.RootFS.Type; t != "layers" {
			j.fail(im, "config.rootfs.type", "is %q; that of an image is layers", t)
		}
		kind(im, "config.mediaType", m.Config.MediaType, "config", configMedia)
		for n, l := range m.Layers {
			if !slices.Contains(layerMedia, l.MediaType) {
				j.fail(im, "layers["+strconv.Itoa(n)+"].mediaType", "%q is not that of an image layer", l.MediaType)
			}
		}
	}
}

func (j *judge) platform() {
	for _, im := range j.Images {
		if im.Config.OS == "" || im.Config.Architecture == "" {
			j.fail(im, "config", "states no operating system or no architecture")
			continue
		}
		if p := im.Descriptor.Platform; p != nil && (p.OS != im.Config.OS || p.Architecture != im.Config.Architecture) {
			j.fail(im, "config", "states %s; the index says %s/%s", im.Platform, p.OS, p.Architecture)
		} else if v := im.Config.Variant; p != nil && p.Variant != "" && v != "" && p.Variant != v {
			j.fail(im, "config", "states %s; the index says the variant %s", im.Platform, p.Variant)
		}
	}
	for i, im := range j.Images {
		if n := slices.IndexFunc(j.Images, func(o *Image) bool {
			return SamePlatform(o.listedAs(), im.listedAs()) && o.Descriptor.Digest != im.Descriptor.Digest
		}); n >= 0 && n < i {
			j.fail(im, "manifests", "the index lists %s and %s for one platform: which of them it is depends on who asks", j.Images[n].Descriptor.Digest, im.Descriptor.Digest)
		}
	}
}

// listedAs is the platform that an index states of an image, or else its config.
func (im *Image) listedAs() string {
	p := im.Config.Platform
	if im.Descriptor.Platform != nil {
		p = *im.Descriptor.Platform
	}
	return strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/")
}

func (j *judge) hasLayer() {
	for _, im := range j.Images {
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
	for _, im := range j.Images {
		if l, d := len(im.Manifest.Layers), len(im.Config.RootFS.DiffIDs); l != d {
			j.fail(im, "config.rootfs", "the manifest has %d layers and the config %d diff ids", l, d)
		}
	}
	for _, f := range j.Broken {
		j.fail(nil, f.At, "%s", f.Message)
	}
}

func (j *judge) contained() {
	for _, im := range j.Images {
		for _, f := range im.Layers.Faults {
			j.fail(im, "", "%s", f)
		}
	}
}

func (j *judge) launches() {
	if j.doc.Kind != spec.KindWorkload {
		j.skip("not a workload")
		return
	}
	for _, im := range j.Images {
		c := im.Config.Config
		if argv := slices.Concat(c.Entrypoint, c.Cmd); len(argv) == 0 {
			j.fail(im, "config", "states neither an entrypoint nor a command")
		} else if argv[0] == "" {
			j.fail(im, "config", "states a command without a name, %q", argv)
		}
	}
}

// usualPath is the PATH that bases have.
var usualPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// delta finds the elements that every base has in the PATH of a mixin.
func (j *judge) delta() {
	if j.doc.Kind != spec.KindMixin {
		j.skip("not a mixin")
		return
	}
	for _, im := range j.Images {
		for _, kv := range im.Config.Config.Env {
			k, v, _ := strings.Cut(kv, "=")
			if k != "PATH" {
				continue
			}
			usual := slices.DeleteFunc(strings.Split(v, ":"), func(e string) bool { return !slices.Contains(usualPath, path.Clean(e)) })
			if len(usual) > 0 {
				j.fail(im, "config.Env", "PATH is %q; %s is what a base has and not what the mixin adds", v, strings.Join(usual, ":"))
			}
		}
	}
}

// injected finds credentials that are put into requests which the Kit's own
// policy does not allow. Only what needs neither an argument nor a choice of
// groups is judged: of everything else, create tells.
func (j *judge) injected() {
	if j.doc.HasGroups() || slices.ContainsFunc(j.doc.Requests(), func(r capability.Request) bool { return capability.HasReference(string(r.Config)) }) {
		j.waive("what groups and arguments come to is known at create")
		return
	}
	rs := j.doc.Requests()
	for _, f := range spec.Injections(rs) {
		j.fail(nil, index("capabilities", f.Index)+"."+f.Path, "%s", f.Message)
	}
}
