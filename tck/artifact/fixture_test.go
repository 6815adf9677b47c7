package artifact_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// A file is one entry of a layer.
type file struct {
	tar.Header
	data string
}

func reg(name, data string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, data}
}

func exe(name string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, "#!"}
}

func link(name, to string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, ""}
}

func dir(name string, uid int) file {
	return file{tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: uid, Gid: uid}, ""}
}

// A built is one platform's image before it is written, open to be spoiled.
type built struct {
	arch        string
	layers      [][]file
	config      ocispec.ImageConfig
	annotations map[string]string

	// Spoilers of what is made from the above.
	manifest func(*ocispec.Manifest)
	image    func(*ocispec.Image)
	blob     func(layer int, blob []byte) []byte

	pack func(tar []byte) (mediaType string, blob []byte) // nil: gzip
}

// A product is an artifact before it is written.
type product struct {
	images []*built
	index  map[string]string // annotations; used if there are several images
	root   func(*ocispec.Index)

	// kits are other images of the layout, which images[0], a set, lists.
	kits []*built
}

// published returns the published form of a descriptor and its annotations.
func published(t testing.TB, text string) (string, map[string]string) {
	t.Helper()
	doc, ds := spec.Decode([]byte(text), spec.Options{Form: capability.Published})
	if doc != nil {
		ds = append(ds, doc.Validate()...)
	}
	if err := ds.Err(); err != nil {
		t.Fatal(err)
	}
	epoch := int64(1)
	a, err := annotation.Derive(doc.Descriptor, annotation.Options{Builder: &annotation.Builder{Name: "test"}, SourceDateEpoch: &epoch})
	if err != nil {
		t.Fatal(err)
	}
	return a[annotation.Descriptor], a
}

// write stores p as an OCI layout, under the tag "kit", and returns its
// directory.
func (p product) write(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	put := func(mediaType string, b []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
		name := filepath.Join(root, "blobs", "sha256", d.Digest.Encoded())
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return d
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var ds []ocispec.Descriptor
	one := func(im *built) ocispec.Descriptor {
		cfg := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: im.arch}, Config: im.config}
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: im.annotations}
		for n, l := range im.layers {
			raw := pack(t, l)
			cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, digest.FromBytes(raw))
			var zipped bytes.Buffer
			z := gzip.NewWriter(&zipped)
			z.Write(raw)
			z.Close()
			mediaType, stored := ocispec.MediaTypeImageLayerGzip, zipped.Bytes()
			if im.pack != nil {
				mediaType, stored = im.pack(raw)
			}
			d := put(mediaType, stored)
			if im.blob != nil {
				name := filepath.Join(root, "blobs", "sha256", d.Digest.Encoded())
				if b := im.blob(n, zipped.Bytes()); b == nil {
					os.Remove(name)
				} else if err := os.WriteFile(name, b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m.Layers = append(m.Layers, d)
		}
		cfg.RootFS.Type = "layers"
		if im.image != nil {
			im.image(&cfg)
		}
		m.Config = put(ocispec.MediaTypeImageConfig, encode(cfg))
		if im.manifest != nil {
			im.manifest(&m)
		}
		d := put(ocispec.MediaTypeImageManifest, encode(m))
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: im.arch}
		return d
	}
	for n, k := range p.kits {
		pin := fmt.Sprintf("sha256:%064d", n+1) // as set has it
		text := strings.Replace(p.images[0].annotations[annotation.Descriptor], pin, one(k).Digest.String(), 1)
		p.images[0].describe(t, "both", text)
	}
	for _, im := range p.images {
		ds = append(ds, one(im))
	}
	top := ds[0]
	if len(ds) > 1 {
		ix := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: ds, Annotations: p.index}
		if p.root != nil {
			p.root(&ix)
		}
		top = put(ocispec.MediaTypeImageIndex, encode(ix))
	}
	top.Platform = nil
	top.Annotations = map[string]string{ocispec.AnnotationRefName: "kit"}
	for name, b := range map[string][]byte{
		"index.json": encode(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{top}}),
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
	} {
		if err := os.WriteFile(filepath.Join(root, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func pack(t testing.TB, files []file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := f.Header
		h.Size = int64(len(f.data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const dpkg = "Package: oak\nStatus: install ok installed\nVersion: 2.1-3\n\nPackage: fir\nStatus: install ok installed\nVersion: 1~rc1-1\n\nPackage: ash\nStatus: deinstall ok config-files\nVersion: 1-1\n"

const workloadText = `{"schemaVersion":"3","kind":"workload","displayName":"W","version":"1.2","licenses":["MIT"],"provides":["w@1.2","deb/oak@2.1"],` +
	`"capabilities":[{"type":"com.docker.sandbox/sbx@1"},{"type":"com.docker.sandbox/agent-context@1","config":{"contentFile":"/usr/share/sandbox/kit/w/guide.md"}},` +
	`{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/usr/share/skills/s"}}],"build":"FROM base\n"}`

// describe makes text what im says of itself, in its annotations and staged.
func (im *built) describe(t testing.TB, stem, text string) {
	t.Helper()
	var staged string
	staged, im.annotations = published(t, text)
	im.layers[len(im.layers)-1][0] = reg("usr/share/sandbox/kit/"+stem+"/kit.yaml", "# comment\n"+staged+"\n")
}

func workload(t testing.TB, arch string) *built {
	im := &built{arch: arch}
	im.config = ocispec.ImageConfig{User: "agent", Entrypoint: []string{"/bin/bash"}, Env: []string{"PATH=/usr/bin:/bin", "BASH_ENV=/etc/env.sh"}}
	im.layers = [][]file{
		{
			link("bin", "usr/bin"), exe("usr/bin/bash"), exe("usr/bin/dash"), link("usr/bin/sh", "dash"), reg("etc/env.sh", ""),
			reg("etc/passwd", "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\n"), reg("etc/group", "agent:x:1000:\n"),
			reg("var/lib/dpkg/status", dpkg), reg("usr/share/skills/s/SKILL.md", skillText), dir("home", 0), dir("home/agent", 1000),
			exe("usr/bin/git"), reg("etc/ssl/certs/ca-certificates.crt", "x"),
		},
		{{}, reg("usr/share/sandbox/kit/w/kit.dockerfile", "FROM base\n"), reg("usr/share/sandbox/kit/w/guide.md", "x")},
	}
	im.describe(t, "w", workloadText)
	return im
}

const skillText = "---\nname: s\ndescription: Does it.\n---\n# S\n"

const mixinText = `{"schemaVersion":"3","kind":"mixin","provides":["m@1"]}`

func mixin(t testing.TB) *built {
	im := &built{arch: "amd64"}
	im.config = ocispec.ImageConfig{Env: []string{"PATH=/opt/m/bin"}}
	im.layers = [][]file{
		{exe("opt/m/bin/m"), link("opt/m/bin/n", "m"), link("opt/m/sh", "/bin/sh"), dir("home", 0), dir("home/agent", 1000), reg("home/agent/.m", "")},
		{{}},
	}
	im.describe(t, "m", mixinText)
	return im
}

// The set is merged here as publishing does, from two Kits and a declaration of
// its own, so that what spoils it is the only thing wrong.
const (
	authoredSet = `{"schemaVersion":"3","kind":"set","version":"1","provides":["both"],"args":{"host":{"default":"c.example"}},` +
		`"capabilities":[{"type":"com.docker.sandbox/network-policy@1","config":{"runtime":{"allow":["own.example"]}}}],"kits":[` +
		`{"ref":"r.example/w:1.2"},{"ref":"r.example/m:1","args":{"host":"${{ kit.args.host }}","must":"x"}}]}`
	memberText = `{"schemaVersion":"3","kind":"mixin","provides":["m@1"],"requires":["w","outside >= 2"],"integrates":["x >= 1"],"conflicts":["enemy"],` +
		`"args":{"host":{"default":"a.example"},"must":{"required":true}},` +
		`"capabilities":[{"type":"com.docker.sandbox/network-policy@1","name":"Net","config":{"runtime":{"allow":["${{ kit.args.host }}","b.example"]}}},` +
		`{"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"one"},{"command":"two"}],"files":[{"path":"/f","content":"x"}]}},` +
		`{"type":"com.docker.sandbox/port@1","config":{"container":80}},` +
		`{"group":{"optional":true,"capabilities":[{"type":"com.docker.sandbox/volume@1","config":{"path":"/data"}}]}}]}`
)

func decode(t testing.TB, text string, f capability.Form) spec.Descriptor {
	t.Helper()
	doc, ds := spec.Decode([]byte(text), spec.Options{Form: f})
	if err := ds.Err(); err != nil || doc == nil {
		t.Fatal(err)
	}
	return doc.Descriptor
}

func set(t testing.TB) *built {
	t.Helper()
	return setOf(t, authoredSet, workloadText, memberText)
}

// setOf is what publishing makes of a set that lists r.example/w:1.2, a workload,
// and r.example/m:1, a mixin.
func setOf(t testing.TB, authored, first, second string) *built {
	t.Helper()
	w, m := workload(t, "amd64"), mixin(t)
	w.describe(t, "w", first)
	m.describe(t, "m", second)
	kits := []resolve.Kit{
		{Ref: "r.example/w:1.2", Digest: "sha256:0000000000000000000000000000000000000000000000000000000000000001", Descriptor: decode(t, first, capability.Published)},
		{Ref: "r.example/m:1", Digest: "sha256:0000000000000000000000000000000000000000000000000000000000000002", Descriptor: decode(t, second, capability.Published)},
	}
	merged, err := resolve.MergeSet(decode(t, authored, capability.Authored), kits)
	if err != nil {
		t.Fatal(err)
	}
	text, err := merged.Descriptor.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	im := &built{arch: "amd64", config: w.config}
	im.layers = append(append(w.layers, m.layers...), []file{{}})
	im.describe(t, "both", string(text))
	return im
}

// withKits is a set in one layout with its Kits.
func withKits(t testing.TB) product {
	t.Helper()
	w, m := workload(t, "amd64"), mixin(t)
	m.describe(t, "m", memberText)
	return product{images: []*built{set(t)}, kits: []*built{w, m}}
}

// twice is a workload of two platforms.
func twice(t testing.TB) product {
	p := product{images: []*built{workload(t, "amd64"), workload(t, "arm64")}}
	p.index = maps.Clone(p.images[0].annotations)
	return p
}
