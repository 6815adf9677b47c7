package artifact_test

import (
	"archive/tar"
	"bytes"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// spoilers has, for every rule, an artifact made wrong on purpose and nothing
// else.
var spoilers = []struct {
	id, what string
	make     func(*testing.T) product
}{
	{"SPEC-v3 §9.3/descriptor-annotation", "a manifest without a descriptor", func(t *testing.T) product {
		p := twice(t)
		delete(p.images[1].annotations, annotation.Descriptor)
		return p
	}},
	{"SPEC-v3 §9.1/descriptor-valid", "an unknown key", spoilWorkload(func(t *testing.T, im *built) {
		text := strings.Replace(im.annotations[annotation.Descriptor], `"version":`, `"vresion":"1","version":`, 1)
		im.annotations[annotation.Descriptor] = text
	})},
	{"SPEC-v3 §9.1/descriptor-valid", "more than 512 KiB", says(`{"schemaVersion":"3","kind":"mixin","description":"` + strings.Repeat("x", 512<<10) + `"}`)},
	{"SPEC-v3 §9.2/versioned-provides", "a provide without a version", spoilMixin(func(t *testing.T, im *built) {
		text := `{"schemaVersion":"3","kind":"mixin","provides":["m"]}`
		im.annotations[annotation.Descriptor] = text
		delete(im.annotations, annotation.Version)
		im.layers = im.layers[:1]
		im.layers[0] = append(im.layers[0], reg("usr/share/sandbox/kit/m/kit.yaml", text))
	})},
	{"SPEC-v3 §9.3/descriptor-compact", "blanks", spoilMixin(func(t *testing.T, im *built) {
		im.annotations[annotation.Descriptor] = strings.Replace(im.annotations[annotation.Descriptor], ":", ": ", 1)
	})},
	{"SPEC-v3 §9.3/annotations-agree", "a title nobody stated", spoilMixin(annotate(annotation.Title, "M"))},
	{"SPEC-v3 §9.3/annotations-agree", "a missing version", spoilMixin(annotate(annotation.Version, ""))},
	{"SPEC-v3 §9.3/annotations-agree", "another capability list", spoilWorkload(annotate(annotation.Capabilities, "x/y@1"))},
	{"SPEC-v3 §9.3/built-by-form", "not JSON", spoilMixin(annotate(annotation.BuiltBy, "me"))},
	{"SPEC-v3 §9.3/built-by-form", "no version", spoilMixin(annotate(annotation.BuiltBy, `{"name":"x"}`))},
	{"SPEC-v3 §9.3/created-rfc3339", "a date alone", spoilMixin(annotate(annotation.Created, "2026-01-01"))},
	{"SPEC-v3 §9.3/no-revision-no-base", "a revision", spoilMixin(annotate("org.opencontainers.image.revision", "abc"))},
	{"SPEC-v3 §9.3/no-revision-no-base", "a base", spoilMixin(annotate("org.opencontainers.image.base.name", "abc"))},
	{"SPEC-v3 §9.3/annotations-promoted", "an index that says less", func(t *testing.T) product {
		p := twice(t)
		delete(p.index, annotation.Title)
		return p
	}},
	{"SPEC-v3 §9.5/declarations-platform-independent", "another builder for one platform", func(t *testing.T) product {
		p := twice(t)
		p.images[1].annotations[annotation.BuiltBy] = `{"name":"other","version":"1"}`
		return p
	}},
	{"SPEC-v3 §10/plain-image", "an artifact type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.ArtifactType = "application/x" }
	})},
	{"SPEC-v3 §10/plain-image", "a config of another type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Config.MediaType = "application/x" }
	})},
	{"SPEC-v3 §10/plain-image", "a layer of another type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].MediaType = "application/x" }
	})},
	{"SPEC-v3 §10/plain-image", "a layer whose type is nearly one", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].MediaType += "+encrypted" }
	})},
	{"SPEC-v3 §10/plain-image", "a layer that is not to be passed on", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) {
			m.Layers[0].MediaType = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
		}
	})},
	{"SPEC-v3 §10/plain-image", "a manifest that calls itself an index", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.MediaType = ocispec.MediaTypeImageIndex }
	})},
	{"SPEC-v3 §10/plain-image", "an index that calls itself a manifest", func(t *testing.T) product {
		p := twice(t)
		p.root = func(ix *ocispec.Index) { ix.MediaType = ocispec.MediaTypeImageManifest }
		return p
	}},
	{"SPEC-v3 §10/plain-image", "a manifest that its index calls an index", func(t *testing.T) product {
		p := twice(t)
		p.root = func(ix *ocispec.Index) { ix.Manifests[1].MediaType = ocispec.MediaTypeImageIndex }
		return p
	}},
	{"SPEC-v3 §10/plain-image", "an artifact type in the index", func(t *testing.T) product {
		p := twice(t)
		p.root = func(ix *ocispec.Index) { ix.Manifests[1].ArtifactType = "application/x" }
		return p
	}},
	{"SPEC-v3 §10/plain-image", "a manifest of another schema", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.SchemaVersion = 1 }
	})},
	{"SPEC-v3 §10/plain-image", "a root file system of no layers", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.RootFS.Type = "disk" }
	})},
	{"SPEC-v3 §10/platform-stated", "two images for one", func(t *testing.T) product {
		p := twice(t)
		p.images[1] = workload(t, "amd64")
		p.images[1].config.StopSignal = "SIGINT"
		return p
	}},
	{"SPEC-v3 §10/platform-stated", "another variant than the index says", func(t *testing.T) product {
		p := twice(t)
		p.root = func(ix *ocispec.Index) { ix.Manifests[1].Platform.Variant = "v8" }
		p.images[1].image = func(c *ocispec.Image) { c.Variant = "v9" }
		return p
	}},
	{"SPEC-v3 §10/layers-intact", "gzip that is called zstd", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].MediaType = ocispec.MediaTypeImageLayerZstd }
	})},
	{"SPEC-v3 §10/layers-intact", "gzip that is called a tar", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[1].MediaType = ocispec.MediaTypeImageLayer }
	})},
	{"SPEC-v3 §10/layers-intact", "a digest that is none", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].Digest = "sha256:x" }
	})},
	{"SPEC-v3 §10/layers-intact", "another size", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].Size++ }
	})},
	{"SPEC-v3 §10/entries-contained", "a whiteout of the directory above", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], reg("opt/.wh...", ""))
	})},
	{"SPEC-v3 §10/entries-contained", "hard links in a circle", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], file{Header: tarLink("opt/x", "opt/y")}, file{Header: tarLink("opt/y", "opt/x")})
	})},
	{"SPEC-v3 §10/overlay-home-ownership", "an agent's home of root, by a link of its own", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(slices.Delete(im.layers[0], 3, 6), link("opt/h", "/home"), dir("opt/h/agent", 0))
	})},
	{"SPEC-v3 §10/overlay-home-ownership", "an agent's home of root, by a link below", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], link("opt/h", "/home"))
		im.layers[1] = append(im.layers[1], dir("opt/h/agent", 0))
	})},
	{"SPEC-v3 §10/mixin-config-delta", "an element of every base, spelled otherwise", spoilMixin(func(_ *testing.T, im *built) { im.config.Env = []string{"PATH=/opt/m/bin:/usr//bin/"} })},
	{"SPEC-v3 §10/workload-launches", "a command without a name", spoilWorkload(func(_ *testing.T, im *built) { im.config.Entrypoint = []string{""} })},
	{"sbx@1/posix-shell-present", "a sh in a directory of root's", spoilWorkload(func(_ *testing.T, im *built) {
		d := dir("opt/closed", 0)
		d.Mode = 0o750
		im.layers[0][3] = link("usr/bin/sh", "/opt/closed/in/dash")
		im.layers[0] = append(im.layers[0], d, exe("opt/closed/in/dash"))
	})},
	{"SPEC-v3 §9.3/created-rfc3339", "a comma", spoilMixin(annotate(annotation.Created, "2026-01-01T00:00:00,5Z"))},
	{"SPEC-v3 §9.3/no-revision-no-base", "a revision of the index", func(t *testing.T) product {
		p := twice(t)
		p.index["org.opencontainers.image.revision"] = "abc"
		return p
	}},
	{"SPEC-v3 §9.6/agreed-across-platforms", "a package in two versions", func(t *testing.T) product {
		p := twice(t)
		p.images[1].layers[0][7].data = strings.Replace(dpkg, "2.1-3", "2.2-3", 1)
		return p
	}},
	{"agent-skill@1/content-present", "a skill that one platform lacks", func(t *testing.T) product {
		p := twice(t)
		p.images[1].layers[0][8] = reg("x", "")
		return p
	}},
	{"SPEC-v3 §10/sources-staged", "sources that are taken away", spoilMixin(func(_ *testing.T, im *built) {
		im.layers = append(im.layers, []file{reg("usr/share/sandbox/kit/m/.wh.kit.yaml", "")})
	})},
	{"SPEC-v3 §10/recipe-staged", "a recipe that is a directory", spoilWorkload(func(_ *testing.T, im *built) { im.layers[1][1] = dir("usr/share/sandbox/kit/w/kit.dockerfile", 0) })},
	{"SPEC-v3 §9.5/internal-requires-dropped", "a partner of its own", respell(`["x >= 1"]`, `["x >= 1","m >= 1"]`)},
	{"SPEC-v3 §9.5/layers-preserved", "a mixin below its workload", func(t *testing.T) product {
		p := withKits(t)
		l := p.images[0].layers
		p.images[0].layers = [][]file{l[2], l[3], l[0], l[1], l[4]}
		return p
	}},
	{"SPEC-v3 §9.5/layers-preserved", "content of no Kit", func(t *testing.T) product {
		p := withKits(t)
		p.images[0].layers[4] = append(p.images[0].layers[4], exe("usr/bin/own"))
		return p
	}},
	{"SPEC-v3 §9.5/layers-preserved", "a layer of no Kit", func(t *testing.T) product {
		p := withKits(t)
		p.images[0].layers = slices.Insert(p.images[0].layers, 4, []file{exe("usr/bin/own")})
		return p
	}},
	{"SPEC-v3 §10/platform-stated", "no architecture", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.Architecture = "" }
	})},
	{"SPEC-v3 §10/platform-stated", "another than the index says", func(t *testing.T) product {
		p := twice(t)
		p.images[1].image = func(c *ocispec.Image) { c.Architecture = "riscv64" }
		return p
	}},
	{"SPEC-v3 §10/layers-intact", "a diff id that is another's", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.RootFS.DiffIDs[0] = c.RootFS.DiffIDs[1] }
	})},
	{"SPEC-v3 §10/layers-intact", "a diff id too many", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, c.RootFS.DiffIDs[0]) }
	})},
	{"SPEC-v3 §10/layers-intact", "a blob cut short", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(n int, b []byte) []byte { return b[:len(b)-9+n] }
	})},
	{"SPEC-v3 §10/layers-intact", "another blob", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(_ int, b []byte) []byte { b = bytes.Clone(b); b[4]++; return b } // the time in a gzip header
	})},
	{"SPEC-v3 §10/layers-intact", "a missing blob", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(n int, b []byte) []byte { return nil }
	})},
	{"SPEC-v3 §10/entries-contained", "a path upwards", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], reg("opt/../../etc/x", ""))
	})},
	{"SPEC-v3 §10/entries-contained", "a hard link to nothing", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], file{Header: tarLink("opt/x", "opt/none")})
	})},
	{"SPEC-v3 §10/entries-contained", "a hard link to a layer below", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[1] = append(im.layers[1], file{Header: tarLink("opt/x", "opt/m/bin/m")})
	})},
	{"SPEC-v3 §10/entries-contained", "a device node", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], file{Header: tar.Header{Name: "opt/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}})
	})},
	{"SPEC-v3 §10/entries-contained", "an owner that no machine has", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], dir("opt/m/lib", 70000))
	})},
	{"SPEC-v3 §3.5/workload-has-content", "nothing but sources", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.layers = im.layers[1:]
		im.describe(t, "w", `{"schemaVersion":"3","kind":"workload","build":"FROM base\n"}`)
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §10/workload-launches", "neither entrypoint nor command", spoilWorkload(func(_ *testing.T, im *built) { im.config.Entrypoint = nil })},
	{"SPEC-v3 §10/sources-staged", "another descriptor staged", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[1][0] = reg("usr/share/sandbox/kit/m/kit.yaml", `{"schemaVersion":"3","kind":"mixin","provides":["m@2"]}`)
	})},
	{"SPEC-v3 §10/sources-staged", "none staged", spoilMixin(func(_ *testing.T, im *built) { im.layers = im.layers[:1] })},
	{"SPEC-v3 §10/recipe-staged", "no recipe staged", spoilWorkload(func(_ *testing.T, im *built) {
		im.layers[1] = slices.Delete(im.layers[1], 1, 2)
	})},
	{"SPEC-v3 §10/recipe-staged", "another recipe staged", spoilWorkload(func(_ *testing.T, im *built) { im.layers[1][1].data = "FROM other\n" })},
	{"SPEC-v3 §10/overlay-home-ownership", "a home that is a link", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(slices.Delete(im.layers[0], 3, 6), link("home", "opt"))
	})},
	{"SPEC-v3 §10/overlay-home-ownership", "an agent's home that is a file", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(slices.Delete(im.layers[0], 4, 6), reg("home/agent", ""))
	})},
	{"SPEC-v3 §10/overlay-home-ownership", "a home of another user", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], dir("home", 1000)) })},
	{"SPEC-v3 §10/overlay-home-ownership", "an agent's home of root", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], dir("home/agent", 0)) })},
	{"SPEC-v3 §10/overlay-links-resolve", "a dangling link", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], link("opt/m/x", "none")) })},
	{"SPEC-v3 §10/overlay-links-resolve", "links in a circle", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], link("opt/m/x", "x")) })},
	{"SPEC-v3 §10/mixin-config-delta", "the base's PATH", spoilMixin(func(_ *testing.T, im *built) { im.config.Env = []string{"PATH=/usr/bin:/bin:/opt"} })},
	{"SPEC-v3 §10/mixin-config-delta", "an element of every base", spoilMixin(func(_ *testing.T, im *built) { im.config.Env = []string{"PATH=/opt/m/bin:/usr/local/bin"} })},
	{"SPEC-v3 §9.6/workload-only", "a mixin's package", func(t *testing.T) product {
		im := mixin(t)
		im.describe(t, "m", `{"schemaVersion":"3","kind":"mixin","provides":["m@1","deb/oak@2.1"]}`)
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §9.6/installed-only", "a package that was removed", provides("ash@1")},
	{"SPEC-v3 §9.6/installed-only", "a package that never was", provides("elm@1")},
	{"SPEC-v3 §9.6/prerelease-dropped", "a pre-release", provides("fir@1")},
	{"SPEC-v3 §9.6/version-is-upstream-core", "a packaging suffix", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.describe(t, "w", strings.Replace(workloadText, "oak@2.1", "oak@2.1-3", 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §9.6/agreed-across-platforms", "a package that one platform lacks", func(t *testing.T) product {
		p := twice(t)
		p.images[1].layers[0][7].data = ""
		return p
	}},
	{"SPEC-v3 §9.6/every-package-stated", "a package nobody states", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.describe(t, "w", strings.Replace(workloadText, `,"deb/oak@2.1"`, "", 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §10/merged-set-carries-sources", "a Kit without sources", spoilSet(func(_ *testing.T, im *built) { im.layers[3] = nil })},
	{"SPEC-v3 §10/merged-set-carries-sources", "sources that cannot be read", spoilSet(func(_ *testing.T, im *built) { im.layers[3][0].data = "{" })},
	{"SPEC-v3 §10/merged-set-files-agree", "a file of another Kit", spoilSet(func(_ *testing.T, im *built) {
		im.layers[2] = append(im.layers[2], reg("etc/env.sh", "other"))
	})},
	{"SPEC-v3 §10/merged-set-files-agree", "a file of another Kit taken away", spoilSet(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], reg("opt/w/x", ""))
		im.layers[2] = append(im.layers[2], reg("opt/w/.wh.x", ""))
	})},
	{"SPEC-v3 §10/merged-set-files-agree", "a directory of another Kit emptied", spoilSet(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], reg("opt/w/x", ""))
		im.layers[2] = append(im.layers[2], reg("opt/w/.wh..wh..opq", ""))
	})},
	{"SPEC-v3 §10/merged-set-files-agree", "a file of another Kit with another mode", spoilSet(func(_ *testing.T, im *built) {
		f := reg("etc/env.sh", "")
		f.Mode = 0o666
		im.layers[2] = append(im.layers[2], f)
	})},
	{"SPEC-v3 §10/merged-set-sources-told-apart", "sources of which nobody can say whose they are", spoilSet(func(_ *testing.T, im *built) {
		text := im.layers[3][0].data
		im.layers[3] = []file{staged("x", text), staged("y", strings.Replace(text, "b.example", "c.example", 1))}
	})},
	{"SPEC-v3 §9.5/kind-derived", "a workload called a mixin", func(t *testing.T) product {
		im := setOf(t, authoredSet, strings.Replace(workloadText, `{"type":"com.docker.sandbox/sbx@1"},`, ``, 1), memberText)
		im.describe(t, "both", strings.Replace(im.annotations[annotation.Descriptor], `"kind":"workload"`, `"kind":"mixin"`, 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §9.5/provides-union", "another version", respell(`"m@1",`, `"m@2",`)},
	{"SPEC-v3 §7.1.1/provenance", "an entry that no longer says where it is from", respell(`,"source":{"kit":"r.example/m:1","path":"capabilities[2]"}`, ``)},
	{"SPEC-v3 §9.5/licenses-union", "a license left out", respell(`"licenses":["MIT"],`, ``)},
	{"SPEC-v3 §9.5/provides-union", "a provide left out", respell(`"m@1",`, ``)},
	{"SPEC-v3 §9.5/internal-requires-dropped", "a require of its own", respell(`["outside >= 2"]`, `["outside >= 2","m"]`)},
	{"agent-context@1/content-file-present", "guidance that is not shipped", spoilWorkload(func(_ *testing.T, im *built) { im.layers[1] = im.layers[1][:2] })},
	{"agent-skill@1/content-present", "a skill that is a link", spoilWorkload(func(_ *testing.T, im *built) {
		im.layers[0][8] = link("usr/share/skills/s/SKILL.md", "/etc/passwd")
	})},
	{"sbx@1/posix-shell-present", "no sh", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][3] = link("usr/bin/sh", "zsh") })},
	{"sbx@1/posix-shell-present", "a FIFO", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][2].Typeflag, im.layers[0][2].data = '6', "" })},
	{"sbx@1/bash-present", "a bash for root alone", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][1].Mode = 0o750 })},
	{"sbx@1/image-declares-user", "no user", spoilWorkload(func(_ *testing.T, im *built) { im.config.User = "" })},
	{"sbx@1/user-resolves-in-passwd", "a user nobody knows", spoilWorkload(func(_ *testing.T, im *built) { im.config.User = "nobody" })},
	{"sbx@1/bash-env-names-a-shipped-file", "a file that is not there", spoilWorkload(func(_ *testing.T, im *built) { im.config.Env = []string{"BASH_ENV=/none"} })},
	{"sbx@1/bash-env-names-a-shipped-file", "no such variable", spoilWorkload(func(_ *testing.T, im *built) { im.config.Env = nil })},
	{"SPEC-v3 §3.5/workload-base-should-match-runtime", "no git", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][11] = reg("x", "") })},
	{"SPEC-v3 §3.5/workload-base-should-match-runtime", "an agent of another uid", spoilWorkload(func(_ *testing.T, im *built) {
		im.layers[0][5].data = strings.Replace(im.layers[0][5].data, ":1000:", ":1001:", 1)
	})},
	{"SPEC-v3 §3.3/comment-descriptor-no-content", "a recipe in a recipe", spoilWorkload(func(t *testing.T, im *built) {
		im.describe(t, "w", strings.Replace(workloadText, `"build":"FROM base\n"`, `"dockerfile":"w.dockerfile"`, 1))
		im.layers[1][1].data = "# syntax=docker/sandbox-kit:3\n# kit:\n#   kind: workload\nFROM base\n"
	})},
	{"SPEC-v3 §4/licenses-spdx", "a license nobody lists", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.describe(t, "w", strings.Replace(workloadText, `["MIT"]`, `["MIT","Freeware"]`, 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §5.3/one-workload", "two", restage(3, `"kind":"mixin"`, `"kind":"workload"`)},
	{"SPEC-v3 §5.3/one-provider-per-name", "two providers", restage(3, `"provides":["m@1"]`, `"provides":["m@1","w@9"]`)},
	{"SPEC-v3 §5.3/conflicts-fail", "a Kit that cannot stand another", restage(3, `["enemy"]`, `["enemy","w"]`)},
	{"SPEC-v3 §5.3/integrates-violation-fails", "too old a partner", restage(3, `["x >= 1"]`, `["w >= 9"]`)},
	{"SPEC-v3 §5.3/dependency-order", "Kits that require each other", restage(1, `"provides":`, `"requires":["m"],"provides":`)},
	{"SPEC-v3 §6/required-arg-supplied", "a required argument not bound", respell(`,"must":"x"`, ``)},
	{"SPEC-v3 §9.5/re-export-restates-contract", "a default that went", respell(`"host":{"default":"c.example"}`, `"host":{}`)},
	{"SPEC-v3 §9.5/relations-merged", "a conflict left out", respell(`"conflicts":["enemy"],`, ``)},
	{"SPEC-v3 §9.5/relations-merged", "a require left out", respell(`"requires":["outside >= 2"],`, ``)},
	{"SPEC-v3 §9.5/capabilities-merged", "a host left out", respell(`"b.example",`, ``)},
	{"SPEC-v3 §9.5/capabilities-merged", "a port left out", respell(`"container":80`, `"container":81`)},
	{"SPEC-v3 §9.5/capabilities-merged", "a type left out", respell(`{"type":"com.docker.sandbox/sbx@1"`, `{"optional":true,"type":"x.example/y@1"`)},
	{"SPEC-v3 §9.5/capabilities-merged", "a hook left out", respell(`,{"command":"two"}`, ``)},
	{"SPEC-v3 §9.5/capabilities-merged", "hooks in another order", respell(`{"command":"one"},{"command":"two"}`, `{"command":"two"},{"command":"one"}`)},
	{"SPEC-v3 §9.5/capabilities-merged", "a file with another content", respell(`"content":"x"`, `"content":"y"`)},
	{"SPEC-v3 §9.5/capabilities-merged", "what became optional", respell(`{"type":"com.docker.sandbox/port@1",`, `{"optional":true,"type":"com.docker.sandbox/port@1",`)},
	{"SPEC-v3 §9.5/capabilities-merged", "Kits with one file", restage(1, `"capabilities":[`, `"capabilities":[{"type":"com.docker.sandbox/lifecycle@1","config":{"files":[{"path":"/f","content":"z"}]}},`)},
	{"SPEC-v3 §9.5/layers-preserved", "a layer left out", func(t *testing.T) product {
		p := withKits(t)
		p.images[0].layers = slices.Delete(p.images[0].layers, 2, 3)
		return p
	}},
	{"SPEC-v3 §9.5/layers-preserved", "a layer between", func(t *testing.T) product {
		p := withKits(t)
		p.images[0].layers = slices.Insert(p.images[0].layers, 1, []file{reg("opt/x", "")})
		return p
	}},
	{"SPEC-v3 §9.5/capability-name-first", "another label", respell(`"name":"Net"`, `"name":"Web"`)},
	{"SPEC-v3 §7.1.1/publishing", "a group that became required", respell(`{"group":{"optional":true,`, `{"group":{`)},
	{"SPEC-v3 §7.1.1/provenance", "a Kit that is not listed", respell(`{"kit":"r.example/m:1","path":"capabilities[2]"}`, `{"kit":"r.example/o:1","path":"capabilities[2]"}`)},
	{"SPEC-v3 §7.1.1/provenance", "a place that is not there", respell(`{"kit":"r.example/m:1","path":"capabilities[2]"}`, `{"kit":"r.example/m:1","path":"capabilities[7]"}`)},
	{"acp@1/optional-for-compatibility", "a required protocol", asks(`{"type":"com.docker.sandbox/acp@1","config":{"agent":"m","command":"m acp"}}`)},
	{"acp@1/optional-for-compatibility", "one in a required group", asks(`{"group":{"capabilities":[{"type":"com.docker.sandbox/acp@1","config":{"agent":"m","command":"m acp"}}]}}`)},
	{"privileged@1/description-says-why", "no reason", asks(`{"type":"com.docker.sandbox/privileged@1"}`)},
	{"resources@1/workload-owns-declaration", "a mixin's", asks(`{"type":"com.docker.sandbox/resources@1","config":{"cpu":1}}`)},
	{"agent-skill@1/frontmatter-names-skill", "no frontmatter", skill("# s\n")},
	{"agent-skill@1/frontmatter-names-skill", "another name", skill("---\nname: t\ndescription: x\n---\n")},
	{"agent-skill@1/frontmatter-names-skill", "no description", skill("---\nname: s\ndescription: \"\"\n---\n")},
	{"agent-skill@1/frontmatter-names-skill", "no mapping", skill("---\n- s\n---\n")},

	{"credential@1/inject-domain-in-allow", "a host that is not allowed", asks(injecting(`"runtime":{"allow":["a.example"]}`))},
	{"credential@1/inject-domain-in-allow", "one of another phase", asks(injecting(`"install":{"allow":["b.example"]}`))},

	{"SPEC-v3 §3.4/kit-published-reference", "a directory", saysOf(`"kits":[{"ref":"./x","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000001"}]`)},
	{"SPEC-v3 §3.4/set-declares-no-recipe", "a recipe", saysOf(`"build":"FROM x\n","kits":[{"ref":"r.example/x:1","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000001"}]`)},
	{"SPEC-v3 §3.4/set-has-kits", "none", saysOf(`"kits":[]`)},
	{"SPEC-v3 §3.4/set-kind-never-published", "the kind", says(`{"schemaVersion":"3","kind":"set","kits":[{"ref":"r.example/x:1","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000001"}]}`)},
	{"SPEC-v3 §4/schema-version-3", "another", says(`{"schemaVersion":"4","kind":"mixin"}`)},
	{"SPEC-v3 §4/sandbox-spelling-not-written", "the old kind", says(`{"schemaVersion":"3","kind":"sandbox"}`)},
	{"SPEC-v3 §4/dockerfile-inside-context", "a recipe elsewhere", saysOf(`"dockerfile":"../x"`)},
	{"SPEC-v3 §5/requires-literal", "a reference", saysOf(`"args":{"a":{"default":"x"}},"requires":["${{ kit.args.a }}"]`)},
	{"SPEC-v3 §5.1/namespace-reverse-dns", "one label", saysOf(`"provides":["single/x@1"]`)},
	{"SPEC-v3 §6/arg-key-grammar", "a hyphen", saysOf(`"args":{"a-b":{"default":"x"}}`)},
	{"SPEC-v3 §6/references-declared", "nobody's", saysOf(`"capabilities":[{"type":"com.docker.sandbox/volume@1","config":{"path":"/${{ kit.args.none }}"}}]`)},
	{"SPEC-v3 §6/env-expanded", "in a key", saysOf(`"capabilities":[{"type":"x.example/y@1","config":{"${{ kit.env.A }}":1}}]`)},
	{"SPEC-v3 §7/name-round-trip", "a number", saysOf(`"capabilities":[{"type":"com.docker.sandbox/privileged@1","name":1}]`)},
	{"SPEC-v3 §7.1.1/group-grammar", "an empty group", saysOf(`"capabilities":[{"group":{"capabilities":[]}}]`)},
	{"acp@1/agent-unique", "two entries for one agent", saysOf(`"capabilities":[{"type":"com.docker.sandbox/acp@1","optional":true,"config":{"agent":"m","command":"m"}},{"type":"com.docker.sandbox/acp@1","optional":true,"config":{"agent":"com.docker.kit/m","command":"m acp"}}]`)},
	{"acp@1/config-valid", "a versioned agent", saysOf(`"capabilities":[{"type":"com.docker.sandbox/acp@1","optional":true,"config":{"agent":"m@1","command":"m"}}]`)},
	{"agent-interactive-sessions@1/list-matches-agent-sessions", "two lists", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-sessions@1","config":{"list":"a"}},{"type":"com.docker.sandbox/agent-interactive-sessions@1","config":{"list":"b"}}]`)},
	{"agent-interactive-sessions@1/new-session-matches-lifecycle-interactive", "two tails", saysOf(`"capabilities":[{"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"x"}],"interactive":["-a"]}},{"type":"com.docker.sandbox/agent-interactive-sessions@1","config":{"newSession":["-b"]}}]`)},
	{"agent-interactive-sessions@1/prompt-placeholder-required", "no prompt", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-interactive-sessions@1","config":{"prompt":["-p"]}}]`)},
	{"agent-interactive-sessions@1/session-id-placeholder-required", "no session", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-interactive-sessions@1","config":{"resume":["-r"]}}]`)},
	{"agent-sessions@1/prompt-placeholder-required", "no prompt", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-sessions@1","config":{"prompt":["-p"]}}]`)},
	{"agent-sessions@1/session-id-placeholder-required", "no session", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-sessions@1","config":{"resume":["-r"]}}]`)},
	{"agent-skill@1/name-valid", "two components", saysOf(`"capabilities":[{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/s","name":"a/b"}}]`)},
	{"agent-skill@1/source-literal", "a reference", saysOf(`"args":{"a":{"default":"x"}},"capabilities":[{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/${{ kit.args.a }}"}}]`)},
	{"credential@1/name-or-inject", "neither", saysOf(`"capabilities":[{"type":"com.docker.sandbox/credential@1","config":{"service":"s","phase":"runtime","apiKey":{}}}]`)},
	{"credential@1/one-of-apikey-oauth", "neither", saysOf(`"capabilities":[{"type":"com.docker.sandbox/credential@1","config":{"service":"s","phase":"runtime"}}]`)},
	{"git-identity@1/no-config", "a config", saysOf(`"capabilities":[{"type":"com.docker.sandbox/git-identity@1","config":{}}]`)},
	{"long-running@1/no-config", "a config", saysOf(`"capabilities":[{"type":"com.docker.sandbox/long-running@1","config":{}}]`)},
	{"network-policy@2/bounded-allow-hosts-literal", "a wildcard", saysOf(`"capabilities":[{"type":"com.docker.sandbox/network-policy@2","config":{"runtime":{"allow":[{"hosts":["*.example"],"methods":["GET"]}]}}}]`)},
}

// injecting is a policy with these rules beside a credential for b.example.
func injecting(rules string) string {
	return `{"type":"com.docker.sandbox/network-policy@1","config":{` + rules + `}},` +
		`{"type":"com.docker.sandbox/credential@1","config":{"service":"s","phase":"runtime","apiKey":{"inject":[{"domain":"b.example","header":"X"}]}}}`
}

func spoilWorkload(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := workload(t, "amd64"); f(t, im); return product{images: []*built{im}} }
}

func spoilMixin(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := mixin(t); f(t, im); return product{images: []*built{im}} }
}

func spoilSet(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := set(t); f(t, im); return product{images: []*built{im}} }
}

// respell replaces text in what a set publishes.
func respell(old, now string) func(*testing.T) product {
	return spoilSet(func(t *testing.T, im *built) {
		text := im.annotations[annotation.Descriptor]
		if !strings.Contains(text, old) {
			t.Fatalf("%s is not in %s", old, text)
		}
		im.describe(t, "both", strings.Replace(text, old, now, 1))
	})
}

// restage replaces text in the staged sources of one Kit of a set: layer 1 is
// the workload's, 3 the mixin's.
func restage(layer int, old, now string) func(*testing.T) product {
	return spoilSet(func(t *testing.T, im *built) {
		f := &im.layers[layer][0]
		if !strings.Contains(f.data, old) {
			t.Fatalf("%s is not in %s", old, f.data)
		}
		f.data = strings.Replace(f.data, old, now, 1)
	})
}

// asks is a mixin with these capabilities.
func asks(entries string) func(*testing.T) product {
	return func(t *testing.T) product {
		im := mixin(t)
		im.describe(t, "m", strings.Replace(mixinText, `"provides"`, `"capabilities":[`+entries+`],"provides"`, 1))
		return product{images: []*built{im}}
	}
}

// says is a mixin that publishes a descriptor which is not valid.
func says(text string) func(*testing.T) product {
	return spoilMixin(func(_ *testing.T, im *built) { im.annotations = map[string]string{annotation.Descriptor: text} })
}

// saysOf is one with these members in place of the kind and the provides.
func saysOf(members string) func(*testing.T) product {
	return says(`{"schemaVersion":"3","kind":"mixin",` + members + `}`)
}

// skill is a workload whose SKILL.md reads so.
func skill(text string) func(*testing.T) product {
	return spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][8].data = text })
}

func provides(entry string) func(*testing.T) product {
	return spoilWorkload(func(t *testing.T, im *built) {
		im.describe(t, "w", strings.Replace(workloadText, `"deb/oak@2.1"`, `"deb/oak@2.1","deb/`+entry+`"`, 1))
	})
}

func annotate(key, value string) func(*testing.T, *built) {
	return func(_ *testing.T, im *built) {
		if im.annotations[key] = value; value == "" {
			delete(im.annotations, key)
		}
	}
}

func tarLink(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink}
}

// What cannot be broken without the statement beside it.
var alone = map[string][]string{
	// A mixin has no packages, and what is a workload's is a base's.
	"SPEC-v3 §9.5/kind-derived":         {"SPEC-v3 §9.6/workload-only", "SPEC-v3 §10/mixin-config-delta"},
	"SPEC-v3 §9.1/descriptor-valid":     {"SPEC-v3 §10/sources-staged"}, // what is staged is what was meant
	"SPEC-v3 §9.5/capabilities-merged":  {"SPEC-v3 §7.1.1/provenance"},  // an entry in the place of another
	"SPEC-v3 §3.5/workload-has-content": {"SPEC-v3 §3.5/workload-base-should-match-runtime"},
	"sbx@1/posix-shell-present":         {"SPEC-v3 §3.5/workload-base-should-match-runtime"},
	"sbx@1/bash-present":                {"SPEC-v3 §3.5/workload-base-should-match-runtime"},
	"sbx@1/user-resolves-in-passwd":     {"SPEC-v3 §3.5/workload-base-should-match-runtime"},
}

func TestEveryRuleIsSeenToFail(t *testing.T) {
	seen := map[string]bool{"SPEC-v3 §10/has-layer": true} // below
	for _, s := range spoilers {
		seen[s.id] = true
		t.Run(s.id+", "+s.what, func(t *testing.T) {
			r := judge(t, s.make(t), "")
			got := broken(r)
			// Of a descriptor that is not valid, more may be wrong.
			if doc, ds := spec.Decode([]byte(s.make(t).images[0].annotations[annotation.Descriptor]), spec.Options{Form: capability.Published}); doc != nil && !ds.HasErrors() && !doc.Validate().HasErrors() {
				got = slices.DeleteFunc(got, func(id string) bool { return slices.Contains(alone[s.id], id) })
			} else if i := slices.Index(got, s.id); i >= 0 {
				got = got[i : i+1]
			}
			if !slices.Equal(got, []string{s.id}) {
				t.Errorf("broken %q: %+v", got, r.Findings)
			}
			st, ok := tck.Lookup(s.id)
			if !ok || st.Level.Binding() && r.OK() {
				t.Errorf("%s: level %q and verdict %v do not agree", s.id, st.Level, r.OK())
			}
			for _, f := range r.Findings {
				if f.Section == "" || f.Message == "" || strings.Contains(f.Section, "/") || f.Statement == s.id && (f.Outcome == tck.Fail) != st.Level.Binding() {
					t.Errorf("%+v", f)
				}
			}
		})
	}
	for _, id := range rule.Statements() {
		if !seen[id] {
			t.Errorf("%s: no artifact breaks it", id)
		}
		if _, ok := tck.Lookup(id); !ok {
			t.Errorf("%s is not in the registry", id)
		}
	}
	good := judge(t, product{images: []*built{workload(t, "amd64")}}, "").Verdicts
	for _, s := range tck.Statements() {
		if s.Observable == "none (build/library)" && !slices.Contains(rule.Statements(), s.ID) && !slices.ContainsFunc(good, func(v tck.Verdict) bool { return v.Statement == s.ID }) {
			t.Errorf("%s is neither judged nor waived", s.ID)
		}
	}
	for _, v := range good {
		if !slices.Contains(rule.Statements(), v.Statement) && v.Outcome != tck.Waived {
			t.Errorf("%s is not listed", v.Statement)
		}
	}
}
