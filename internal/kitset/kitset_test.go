package kitset_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/kitset"
	"github.com/kitbox-dev/kitbox/internal/registry/registrytest"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// A hub is a registry that counts the bytes of blobs that pass through it.
type hub struct {
	host string

	mu       sync.Mutex
	layers   map[string]bool // digests, encoded; guarded by mu
	moved    int64           // bytes of layers, guarded by mu
	mounts   int             // guarded by mu
	requests []string        // guarded by mu
}

type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n += int64(n)
	return n, err
}

type countingReader struct {
	io.ReadCloser
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n += int64(n)
	return n, err
}

// registries are a lenient one and one that validates.
var registries = map[string]func(testing.TB) http.Handler{
	"lenient": func(testing.TB) http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) },
	"strict":  func(t testing.TB) http.Handler { return registrytest.Validating(t.Context(), t.TempDir()) },
}

func newHub(t testing.TB, inner http.Handler) *hub {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	h := &hub{layers: map[string]bool{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, in := &countingWriter{ResponseWriter: w}, &countingReader{ReadCloser: r.Body}
		r.Body = in
		inner.ServeHTTP(out, r)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.requests = append(h.requests, r.Method+" "+r.URL.Path)
		if strings.Contains(r.URL.RawQuery, "mount=") {
			h.mounts++
		}
		// An upload names its blob at the end only, so all of them count.
		blob := r.URL.Path[strings.LastIndexByte(r.URL.Path, ':')+1:]
		if strings.Contains(r.URL.Path, "/blobs/uploads/") || h.layers[blob] {
			h.moved += in.n
			if r.Method == http.MethodGet && h.layers[blob] {
				h.moved += out.n
			}
		}
	}))
	t.Cleanup(s.Close)
	h.host = strings.TrimPrefix(s.URL, "http://")
	return h
}

func (h *hub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved, h.mounts, h.requests = 0, 0, nil
}

// A part is one Kit of the tests.
type part struct {
	ref        string
	stem       string // empty: that of ref
	descriptor string
	config     ocispec.ImageConfig
	platforms  []string // empty: one manifest for this machine; else an index
	vary       bool     // say something else for each platform
}

var host = layout.PlatformName(layout.HostPlatform())

const (
	workload = `{"schemaVersion":"3","kind":"workload","licenses":["MIT"],"provides":["w@1"],"args":{"where":{"default":"/d"},"level":{"default":"low","env":"LEVEL"}},"capabilities":[{"type":"com.docker.sandbox/volume@1","config":{"path":"${{ kit.args.where }}"}}]}`
	mixin    = `{"schemaVersion":"3","kind":"mixin","licenses":["Apache-2.0"],"provides":["m@2"],"requires":["w >= 1"],"capabilities":[{"type":"com.docker.sandbox/lifecycle@1","config":{"files":[{"path":"/etc/m","content":"x","overwrite":false}],"startup":[{"description":"d","command":["/bin/m"]}]}}]}`
	third    = `{"schemaVersion":"3","kind":"mixin","provides":["x@1"],"requires":["m < 3"]}`
)

var launch = ocispec.ImageConfig{Entrypoint: []string{"/bin/w"}, Env: []string{"PATH=/bin", "A=1"}}

// pack makes a layer.
func pack(t testing.TB, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// keep puts p into images under ref, and returns its layers.
func keep(t testing.TB, images *layout.Store, p part, ref string) []ocispec.Descriptor {
	t.Helper()
	ctx := t.Context()
	if p.stem == "" {
		p.stem, _, _ = strings.Cut(p.ref, ":")
	}
	names := p.platforms
	if names == nil {
		names = []string{host}
	}
	idx := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	var all []ocispec.Descriptor
	for i, name := range names {
		platform, err := layout.ParsePlatform(name)
		if err != nil {
			t.Fatal(err)
		}
		descriptor := p.descriptor
		if p.vary && i > 0 {
			descriptor = strings.Replace(descriptor, `"kind"`, `"description":"other","kind"`, 1)
		}
		annotations, err := annotation.Derive(decode(t, descriptor), annotation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: annotations}
		c := ocispec.Image{Platform: platform, Config: p.config, RootFS: ocispec.RootFS{Type: "layers"}}
		for n, b := range [][]byte{
			pack(t, "opt/"+p.stem+"/bin", p.stem+name, "bin/"+p.stem, "#!/bin/sh\n"),
			// What is staged keeps the order that its author wrote keys in.
			pack(t, strings.TrimPrefix(content.StageRoot, "/")+"/"+p.stem+"/kit.yaml",
				strings.Replace(annotations[annotation.Descriptor], `{"content":"x","overwrite":false,"path":"/etc/m"}`, `{"path":"/etc/m","content":"x","overwrite":false}`, 1)),
		} {
			d, err := images.PushBytes(ctx, ocispec.MediaTypeImageLayer, b)
			if err != nil {
				t.Fatal(err)
			}
			m.Layers = append(m.Layers, d)
			all = append(all, d)
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, d.Digest)
			c.History = append(c.History, ocispec.History{CreatedBy: []string{"RUN make", content.StageNote + p.stem}[n]}, ocispec.History{CreatedBy: "ENV x", EmptyLayer: true})
		}
		if m.Config, err = images.PushJSON(ctx, ocispec.MediaTypeImageConfig, c); err != nil {
			t.Fatal(err)
		}
		d, err := images.PushJSON(ctx, ocispec.MediaTypeImageManifest, m)
		if err != nil {
			t.Fatal(err)
		}
		d.Platform = &platform
		idx.Manifests = append(idx.Manifests, d)
		if !p.vary {
			idx.Annotations = annotations
		}
	}
	root := idx.Manifests[0]
	if p.platforms != nil {
		var err error
		if root, err = images.PushJSON(ctx, ocispec.MediaTypeImageIndex, idx); err != nil {
			t.Fatal(err)
		}
	}
	root.Platform = nil
	if err := images.Tag(ctx, root, ref); err != nil {
		t.Fatal(err)
	}
	return all
}

func decode(t testing.TB, text string) spec.Descriptor {
	t.Helper()
	doc, err := spec.DecodePublished([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc.Descriptor
}

// publish puts parts into the registry.
func (h *hub) publish(t testing.TB, parts ...part) {
	t.Helper()
	home := t.TempDir()
	f := &fetch.Fetcher{Home: home}
	images := open(t, home)
	for _, p := range parts {
		for _, d := range keep(t, images, p, "kitbox.local/"+p.ref) {
			h.mu.Lock()
			h.layers[d.Digest.Encoded()] = true
			h.mu.Unlock()
		}
		if _, err := f.Push(t.Context(), "kitbox.local/"+p.ref, h.host+"/kits/"+p.ref); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t testing.TB, home string) *layout.Store {
	t.Helper()
	images, err := layout.Open(filepath.Join(home, "images"))
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// fetcher assembles sets in a home of its own.
func fetcher(t testing.TB) (*fetch.Fetcher, *layout.Store) {
	t.Helper()
	home := t.TempDir()
	f := &fetch.Fetcher{Home: home, Policy: fetch.Always, Sets: kitset.Assembler{Builder: annotation.Builder{Name: "kitbox"}}.Assemble}
	return f, open(t, home)
}

// set writes a descriptor of a set; HUB stands for the registry.
func (h *hub) set(t testing.TB, text string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "team")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text = "schemaVersion: \"3\"\nkind: set\nprovides: [team@3]\n" + strings.ReplaceAll(text, "HUB", h.host)
	if err := os.WriteFile(filepath.Join(dir, "team.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

const threeKits = `args: {dir: {default: /data}}
kits:
  - {ref: HUB/kits/x:1}
  - {ref: HUB/kits/m:2}
  - {ref: HUB/kits/w:1, args: {where: "${{ kit.args.dir }}", level: high}}
`

// remerged reports whether a judge came to merge a set anew, and found nothing
// but that these workloads ship none of what content may assume.
func remerged(said string) bool {
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "fail") || strings.HasPrefix(line, "warn") && !strings.Contains(line, "/workload-base-should-match-runtime") {
			return false
		}
	}
	return strings.Contains(said, "pass   SPEC-v3 §9.5/capabilities-merged") && strings.Contains(said, "pass   SPEC-v3 §7.1.1/provenance")
}

func TestASetIsAssembledFromWhatThereIs(t *testing.T) {
	for name, serve := range registries {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, serve(t))
			both := []string{host, "linux/other"}
			h.publish(t,
				part{ref: "w:1", descriptor: workload, config: launch, platforms: both},
				part{ref: "m:2", descriptor: mixin, config: ocispec.ImageConfig{Env: []string{"PATH=/opt/m"}}, platforms: both},
				part{ref: "x:1", descriptor: third, platforms: append(both, "linux/third")})
			ctx := t.Context()
			dir := h.set(t, threeKits)
			f, images := fetcher(t)
			var notes []string
			f.Notice = func(l string) { notes = append(notes, l) }
			h.reset()
			began := time.Now()
			set, err := f.Fetch(ctx, dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := "the set is not made for linux/third: " + h.host + "/kits/m:2 has no image for it"; !slices.Contains(notes, want) {
				t.Errorf("nobody was told that %s: %q", want, notes)
			}
			t.Logf("assembled in %v with %d requests", time.Since(began), len(h.requests))
			if h.moved != 0 {
				t.Errorf("assembling moved %d bytes of layers", h.moved)
			}
			checkImages(t, h, f, images, set)

			root, err := images.Describe(ctx, set.Root)
			if err != nil {
				t.Fatal(err)
			}
			if err := images.Tag(ctx, root, "kitbox.local/team:3"); err != nil {
				t.Fatal(err)
			}
			h.reset()
			began = time.Now()
			if _, err := f.Push(ctx, "kitbox.local/team:3", h.host+"/kits/team:3"); err != nil {
				t.Fatal(err)
			}
			t.Logf("pushed in %v with %d requests and %d mounts", time.Since(began), len(h.requests), h.mounts)
			// Three parts of two layers for two platforms; the set's own layer
			// and the two configs are new.
			small := int64(0)
			all, err := layout.ReadAll(ctx, images, root)
			if err != nil {
				t.Fatal(err)
			}
			for _, im := range all {
				small += im.Manifest.Config.Size
			}
			small += all[0].Manifest.Layers[len(all[0].Manifest.Layers)-1].Size
			// The lenient one shares blobs among its repositories.
			if name == "strict" && h.mounts != 9 || h.moved != small {
				t.Errorf("%d mounts, %d bytes moved, of which %d are the set's own", h.mounts, h.moved, small)
			}
			var out bytes.Buffer
			if code := artifact.Validate(ctx, []string{h.host + "/kits/team:3", "--kits", "--verbose"}, &out, &out); code != 0 || !remerged(out.String()) {
				t.Errorf("the judge: %d\n%s", code, &out)
			}

			// Whoever pulls the result needs nothing of the Kits.
			other := &fetch.Fetcher{Home: t.TempDir()}
			if d, err := other.PullImage(ctx, h.host+"/kits/team:3"); err != nil || d.Digest != root.Digest {
				t.Errorf("%v, %v", d, err)
			}
			// And this store gets the layers from where the Kits are.
			if err := f.Pull(ctx, set); err != nil {
				t.Fatal(err)
			}
			for _, l := range set.Layers {
				if ok, err := images.Exists(ctx, l.Blob); err != nil || !ok {
					t.Errorf("%s did not come: %v", l.Blob.Digest, err)
				}
			}
		})
	}
}

// checkImages holds what was assembled against the Kits, platform by platform.
func checkImages(t *testing.T, h *hub, f *fetch.Fetcher, images *layout.Store, set *fetch.Kit) {
	t.Helper()
	ctx := t.Context()
	root, err := images.Describe(ctx, set.Root)
	if err != nil {
		t.Fatal(err)
	}
	all, err := layout.ReadAll(ctx, images, root)
	if err != nil || len(all) != 2 || all[0].Platform() != host || all[1].Platform() != "linux/other" {
		t.Fatalf("%d platforms, %v", len(all), err)
	}
	parts := map[string]*fetch.Artifact{}
	for _, ref := range []string{"w:1", "m:2", "x:1"} { // in composition order
		if parts[ref], err = f.Artifact(ctx, h.host+"/kits/"+ref); err != nil {
			t.Fatal(err)
		}
	}
	for _, im := range all {
		var want []digest.Digest
		for _, ref := range []string{"w:1", "m:2", "x:1"} {
			for _, p := range parts[ref].Images {
				if p.Platform() != im.Platform() {
					continue
				}
				for _, l := range p.Layers() {
					want = append(want, l.Blob.Digest, l.DiffID)
				}
			}
		}
		var got []digest.Digest
		for _, l := range im.Layers() {
			got = append(got, l.Blob.Digest, l.DiffID)
		}
		if len(got) != len(want)+2 || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s has layers %v\nwant %v and one", im.Platform(), got, want)
		}
		if c := im.Config.Config; strings.Join(c.Env, " ") != "PATH=/bin:/opt/m A=1 LEVEL=high" || len(c.Entrypoint) != 1 {
			t.Errorf("%s: config %+v", im.Platform(), c)
		}
		if len(im.Config.History) != len(im.Manifest.Layers) || im.Config.History[1].CreatedBy != content.StageNote+"w" || im.Config.Created == nil || im.Config.Created.Unix() != 0 {
			t.Errorf("%s: history %+v", im.Platform(), im.Config.History)
		}
		if im.Annotations[annotation.Descriptor] != string(set.Descriptor) || im.Manifest.Annotations[annotation.Descriptor] != string(set.Descriptor) {
			t.Errorf("%s has another descriptor", im.Platform())
		}
	}
	for _, has := range []string{`"kind":"workload"`, `"path":"${{ kit.args.dir }}"`, `"licenses":["Apache-2.0","MIT"]`, `"provides":["w@1","m@2","x@1","team@3"]`} {
		if !strings.Contains(string(set.Descriptor), has) {
			t.Errorf("%s lacks %s", set.Descriptor, has)
		}
	}
	for _, p := range parts {
		if !strings.Contains(string(set.Descriptor), p.Root.Digest.String()) {
			t.Errorf("%s does not pin %s", set.Descriptor, p.Ref)
		}
	}
	for _, gone := range []string{`"requires":`, `"level":{`, `"set"`} {
		if strings.Contains(string(set.Descriptor), gone) {
			t.Errorf("%s has %s", set.Descriptor, gone)
		}
	}
}

func TestTheSameKitsGiveTheSameBytes(t *testing.T) {
	h := newHub(t, registries["lenient"](t))
	h.publish(t, part{ref: "w:1", descriptor: workload, config: launch}, part{ref: "m:2", descriptor: mixin}, part{ref: "x:1", descriptor: third})
	dir := h.set(t, threeKits)
	var first digest.Digest
	for range 2 {
		f, _ := fetcher(t)
		kit, err := f.Fetch(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if first != "" && kit.Root != first {
			t.Errorf("%s, then %s", first, kit.Root)
		}
		first = kit.Root
		// A name is asked about each time, unless that is not wanted.
		h.reset()
		if again, err := f.Fetch(t.Context(), dir, nil); err != nil || again.Root != first || len(h.requests) == 0 {
			t.Errorf("%+v, %v, %d requests", again, err, len(h.requests))
		}
		h.reset()
		f.Policy = fetch.Missing
		if again, err := f.Fetch(t.Context(), filepath.Join(dir, "team.yaml"), nil); err != nil || again.Root != first || len(h.requests) > 0 {
			t.Errorf("%+v, %v, %d requests", again, err, len(h.requests))
		}
	}
	// Another Kit under a name is another set.
	h.publish(t, part{ref: "m:2", descriptor: strings.Replace(mixin, "m@2", "m@2.5", 1)})
	f, _ := fetcher(t)
	if kit, err := f.Fetch(t.Context(), dir, nil); err != nil || kit.Root == first {
		t.Errorf("%+v, %v", kit, err)
	}
}

func TestKitsOfTheStoreAndSetsOfSets(t *testing.T) {
	h := newHub(t, registries["strict"](t))
	h.publish(t, part{ref: "w:1", descriptor: workload, config: launch})
	f, images := fetcher(t)
	keep(t, images, part{ref: "m:2", descriptor: mixin}, "kitbox.local/m:2")
	dir := h.set(t, "kits: [{ref: HUB/kits/w:1}, {ref: kitbox.local/m:2}]\n")
	kit, err := f.Fetch(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Pull(t.Context(), kit); err != nil {
		t.Errorf("getting the layers of a set of here and there: %v", err)
	}
	_, err = f.Push(t.Context(), kit.Root.String(), h.host+"/kits/team:1")
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "only this machine has") {
		t.Errorf("publishing what nobody can resolve: %v", err)
	}

	// A mixin of mixins, listed in another set with a workload.
	h.publish(t, part{ref: "m:2", descriptor: mixin}, part{ref: "x:1", descriptor: third})
	inner, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/x:1}, {ref: HUB/kits/m:2}]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(inner.Descriptor), `"kind":"mixin"`) || !strings.Contains(string(inner.Descriptor), `"requires":["w >= 1"]`) {
		t.Errorf("a set without a workload is %s", inner.Descriptor)
	}
	if _, err := f.Push(t.Context(), inner.Root.String(), h.host+"/kits/tools:1"); err != nil {
		t.Fatal(err)
	}
	clash := h.set(t, "kits: [{ref: HUB/kits/tools:1}, {ref: HUB/kits/w:1}]\n")
	if _, err := f.Fetch(t.Context(), clash, nil); err == nil || !strings.Contains(err.Error(), "team") {
		t.Errorf("two sets with one stem: %v", err)
	}
	all := filepath.Join(clash, "all.yaml")
	if err := os.Rename(filepath.Join(clash, "team.yaml"), all); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(all, bytes.Replace(text, []byte("team@3"), []byte("all@1"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	outer, err := f.Fetch(t.Context(), all, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.reset()
	if _, err := f.Push(t.Context(), outer.Root.String(), h.host+"/kits/all:1"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := artifact.Validate(t.Context(), []string{h.host + "/kits/all:1", "--verbose"}, &out, &out); code != 0 || !remerged(out.String()) {
		t.Errorf("the judge: %d\n%s", code, &out)
	}
	for _, l := range outer.Layers[:len(outer.Layers)-1] {
		for _, r := range h.requests {
			if strings.Contains(r, l.Blob.Digest.Encoded()) && !strings.HasPrefix(r, http.MethodHead) && !strings.HasPrefix(r, http.MethodPost) && strings.HasPrefix(r, http.MethodPut) {
				t.Errorf("%s was sent: %s", l.Blob.Digest, r)
			}
		}
	}
}

// TestASetForAnotherRegistry goes through this machine, layer by layer and
// unchanged, and lands in no store.
func TestASetForAnotherRegistry(t *testing.T) {
	there, here := newHub(t, registries["strict"](t)), newHub(t, registries["strict"](t))
	there.publish(t, part{ref: "w:1", descriptor: workload, config: launch})
	here.publish(t, part{ref: "m:2", descriptor: mixin})
	text := "kits: [{ref: " + there.host + "/kits/w:1}, {ref: HUB/kits/m:2}]\n"
	f, images := fetcher(t)
	kit, err := f.Fetch(t.Context(), here.set(t, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	target := newHub(t, registries["strict"](t))
	if _, err := f.Push(t.Context(), kit.Root.String(), target.host+"/kits/team:1"); err != nil {
		t.Fatal(err)
	}
	if p, err := images.BlobPath(kit.Layers[0].Blob.Digest); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(p); err == nil {
		t.Error("a layer was kept on its way")
	}
	other := &fetch.Fetcher{Home: t.TempDir()}
	if d, err := other.PullImage(t.Context(), target.host+"/kits/team:1"); err != nil || d.Digest != kit.Root {
		t.Errorf("%v, %v", d, err)
	}
	// Within one of the registries, the layers of its own Kits stay.
	here.reset()
	if _, err := f.Push(t.Context(), kit.Root.String(), here.host+"/kits/team:1"); err != nil || here.mounts != 2 {
		t.Errorf("%v, %d mounts", err, here.mounts)
	}
}

func TestSetsThatCannotBe(t *testing.T) {
	h := newHub(t, registries["strict"](t))
	h.publish(t,
		part{ref: "w:1", descriptor: workload, config: launch},
		part{ref: "dumb:1", descriptor: strings.Replace(workload, "w@1", "dumb@1", 1)},
		part{ref: "foe:1", descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["foe@1"],"conflicts":["w"]}`},
		part{ref: "m:2", descriptor: mixin, platforms: []string{host, "linux/other"}},
		part{ref: "far:1", descriptor: third, platforms: []string{"linux/other"}},
		part{ref: "twin:1", stem: "w", descriptor: third},
		part{ref: "odd:1", descriptor: third, vary: true, platforms: []string{host, "linux/other"}},
		part{ref: "env:1", descriptor: third, config: ocispec.ImageConfig{Env: []string{"A=2"}}},
		part{ref: "ring:1", descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["ring@1"],"kits":[{"ref":"` + h.host + `/kits/team:9","digest":"sha256:` + strings.Repeat("1", 64) + `"}]}`},
		part{ref: "holds:1", descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["holds@1"],"kits":[{"ref":"` + h.host + `/kits/m:2","digest":"sha256:` + strings.Repeat("1", 64) + `"}]}`},
		part{ref: "big:1", descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["big@1"],"capabilities":[{"type":"com.example/y@1","config":{"t":"` + strings.Repeat("x", 300<<10) + `"}}]}`},
	)
	h.plain(t, "plain:1", map[string]string{"some": "image"})
	h.plain(t, "raw:1", map[string]string{fetch.Annotation: `{"schemaVersion":"3","kind":"set","kits":[{"ref":"a/b"}]}`})
	h.plain(t, "huge:1", map[string]string{fetch.Annotation: `{"schemaVersion":"3","kind":"mixin","description":"` + strings.Repeat("x", 600<<10) + `"}`})
	for text, want := range map[string]string{
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/foe:1}]":                          "conflicts",
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/dumb:1}]":                         "workload",
		"kits: [{ref: HUB/kits/dumb:1}]":                                              "neither an entrypoint nor a command",
		"kits: [{ref: HUB/kits/w:1, args: {nope: x}}]":                                "nope",
		"kits: [{ref: HUB/kits/w:1, args: {where: \"${{ kit.args.gone }}\"}}]":        "gone",
		"kits: [{ref: HUB/kits/w:1, digest: sha256:" + strings.Repeat("0", 64) + "}]": "not found",
		"kits: [{ref: HUB/kits/none:1}]":                                              "kits[0]: kit " + h.host + "/kits/none:1: not found",
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/w:1}]":                            "kits[1]",
		"kits: [{ref: HUB/kits/w:1}, {ref: \"HUB/kits/w@W\"}]":                        "the same Kit",
		"kits: [{ref: ./w}]":                                                          "a local path",
		"kits: [{ref: \"git+https://example.com/x#y\"}]":                              "a git source",
		"build: FROM scratch\nkits: [{ref: HUB/kits/w:1}]":                            "build",
		"kits: []":                              "lists no Kit",
		"kits: [{ref: HUB/kits/w:1}]\nextra: 1": "extra",
		"kits: [{ref: HUB/kits/plain:1}]":       "is not a Kit",
		"kits: [{ref: HUB/kits/raw:1}]":         "kind",
		"kits: [{ref: HUB/kits/huge:1}]":        "bytes",
		"kits: [{ref: HUB/kits/odd:1}]":         "different descriptors",
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}, {ref: HUB/kits/far:1}]":                                                   "no platform in common",
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}, {ref: HUB/kits/env:1}]":                                                   "set A to different values",
		"kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}, {ref: HUB/kits/twin:1}]":                                                  content.StageRoot + "/w",
		"kits: [{ref: HUB/kits/ring:1}]":                                                                                            "is in itself",
		"kits: [{ref: HUB/kits/team:9}]":                                                                                            "lists itself",
		"kits: [{ref: HUB/kits/holds:1}, {ref: HUB/kits/m:2}]":                                                                      "already",
		"kits: [{ref: HUB/kits/big:1}]\ncapabilities: [{type: com.example/x@1, config: {t: " + strings.Repeat("z", 300<<10) + "}}]": "bytes",
		"kits: [{ref: HUB/kits/w:1}]\ncapabilities: [{type: com.docker.sandbox/agent-context@1, config: {contentFile: gone.md}}]":   "gone.md",
	} {
		f, images := fetcher(t)
		f.SetName = h.host + "/kits/team:9"
		w, err := f.Artifact(t.Context(), h.host+"/kits/w:1")
		if err != nil {
			t.Fatal(err)
		}
		label := text[:min(len(text), 90)]
		_, err = f.Fetch(t.Context(), h.set(t, strings.ReplaceAll(text, "@W", "@"+w.Root.Digest.String())+"\n"), nil)
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, kiterr.ErrRefused) && !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("%s: %.300v", label, err)
		}
		if left := blobs(t, images); len(left) > 0 {
			t.Errorf("%s left %v", label, left)
		}
	}
	f, images := fetcher(t)
	f.Platforms = []ocispec.Platform{{OS: "linux", Architecture: "other"}}
	_, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}]\n"), nil)
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "kits/w:1 has no image for linux/other, it has "+host) || len(blobs(t, images)) > 0 {
		t.Errorf("a platform that one lacks: %v", err)
	}
	f.Platforms, f.SetName = nil, h.host+"/kits/m:2"
	if _, err = f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}]\n"), nil); err == nil || !strings.Contains(err.Error(), "lists itself") {
		t.Errorf("a set in itself: %v", err)
	}
	f.SetName = ""
	kit, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/w:1}, {ref: HUB/kits/m:2}]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.reset()
	if _, err := f.Push(t.Context(), kit.Root.String(), h.host+"/kits/m:2"); err == nil || !strings.Contains(err.Error(), "in itself") || len(h.requests) > 0 {
		t.Errorf("a set over one of its Kits: %v, %d requests", err, len(h.requests))
	}
}

func TestASetIsOfATimeOrOfNone(t *testing.T) {
	h := newHub(t, registries["lenient"](t))
	h.publish(t, part{ref: "w:1", descriptor: workload, config: launch})
	dir := h.set(t, "kits: [{ref: HUB/kits/w:1}]\n")
	f, images := fetcher(t)
	sets := kitset.Assembler{SourceDateEpoch: "soon"}
	f.Sets = sets.Assemble
	if _, err := f.Fetch(t.Context(), dir, nil); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), `SOURCE_DATE_EPOCH="soon"`) || len(blobs(t, images)) > 0 {
		t.Errorf("a time that is none: %v", err)
	}
	sets.SourceDateEpoch = "1700000000"
	f.Sets = sets.Assemble
	kit, err := f.Fetch(t.Context(), dir, nil)
	if err != nil || kit.Manifest.Annotations[annotation.Created] != "2023-11-14T22:13:20Z" || kit.Config.Created.Unix() != 1700000000 {
		t.Errorf("%+v, %v", kit, err)
	}
}

// TestRingsOfSets are found through any number of sets, whether the set has a name
// while it is built or gets one when it is pushed.
func TestRingsOfSets(t *testing.T) {
	h := newHub(t, registries["lenient"](t))
	mixinOf := func(name string, lists ...string) string {
		return `{"schemaVersion":"3","kind":"mixin","provides":["` + name + `@1"],"kits":[` + strings.Join(lists, ",") + `]}`
	}
	// at is an entry of a list, for what was published under the name last.
	at := func(name string) string {
		f, _ := fetcher(t)
		a, err := f.Artifact(t.Context(), h.host+"/kits/"+name)
		if err != nil {
			t.Fatal(err)
		}
		return `{"ref":"` + h.host + `/kits/` + name + `","digest":"` + a.Root.Digest.String() + `"}`
	}
	// a lists b, b lists c, and c lists a, as it was before it did.
	h.publish(t, part{ref: "a:1", descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["a@1"]}`}, part{ref: "w:1", descriptor: workload, config: launch})
	h.publish(t, part{ref: "c:1", descriptor: mixinOf("c", at("a:1"))})
	h.publish(t, part{ref: "b:1", descriptor: mixinOf("b", at("c:1")), platforms: []string{"linux/other"}})
	h.publish(t, part{ref: "gone:1", descriptor: mixinOf("gone", `{"ref":"`+h.host+`/kits/never:1","digest":"sha256:`+strings.Repeat("1", 64)+`"}`)})
	h.publish(t, part{ref: "loose:1", descriptor: mixinOf("loose", at("gone:1"))})
	kits := func(name string) string { return h.host + "/kits/" + name }
	way := "it lists " + kits("b:1") + ", which lists " + kits("c:1") + ", which lists " + kits("a:1")

	f, images := fetcher(t)
	f.SetName = kits("a:1")
	_, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/b:1}]\n"), nil)
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), kits("a:1")+" is in itself") || !strings.Contains(err.Error(), way) || len(blobs(t, images)) > 0 {
		t.Errorf("under its name: %v, %d blobs", err, len(blobs(t, images)))
	}
	f.SetName = ""
	kit, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/b:1}]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.reset()
	_, err = f.Push(t.Context(), kit.Root.String(), kits("a:1"))
	if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), way) {
		t.Errorf("pushed under its name: %v", err)
	}
	for _, r := range h.requests {
		if strings.HasPrefix(r, http.MethodPut) || strings.HasPrefix(r, http.MethodPost) {
			t.Errorf("pushed under its name: %s", r)
		}
	}
	if _, err := f.Push(t.Context(), kit.Root.String(), kits("d:1")); err != nil {
		t.Errorf("pushed under another name: %v", err)
	}
	// Somebody's tools let them publish it: it is found without a name too.
	h.state(t, "gone", "a", mixinOf("a", at("b:1")))
	h.state(t, "gone", "above", mixinOf("above", at("a:1")))
	for _, list := range []string{"HUB/kits/a:1", "HUB/kits/above:1"} {
		if _, err = f.Fetch(t.Context(), h.set(t, "kits: [{ref: "+list+"}]\n"), nil); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), kits("a:1")+" is in itself") || !strings.Contains(err.Error(), way) {
			t.Errorf("a ring below it, of %s: %v", list, err)
		}
	}
	// What cannot be had any more is told, and is no ring.
	var notes []string
	f.Notice = func(l string) { notes = append(notes, l) }
	if _, err := f.Fetch(t.Context(), h.set(t, "kits: [{ref: HUB/kits/loose:1}, {ref: HUB/kits/w:1}]\n"), nil); err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(notes, func(n string) bool {
		return strings.HasPrefix(n, "whether "+kits("never:1")+" lists other Kits is not known: ")
	}) {
		t.Errorf("nobody was told: %q", notes)
	}
}

// state publishes kits/TO:1 as what kits/FROM:1 is but for its descriptor, as no
// kitbox would.
func (h *hub) state(t testing.TB, from, to, descriptor string) {
	t.Helper()
	resp, err := http.Get("http://" + h.host + "/v2/kits/" + from + "/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m ocispec.Manifest
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	m.Annotations[fetch.Annotation] = descriptor
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPut, "http://"+h.host+"/v2/kits/"+to+"/manifests/1", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", m.MediaType)
	done, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer done.Body.Close()
	if done.StatusCode != http.StatusCreated {
		t.Fatal(done.Status)
	}
}

// TestSetsBelowASetWithoutEnd are not followed without end.
func TestSetsBelowASetWithoutEnd(t *testing.T) {
	var requests atomic.Int64
	docs := map[string][]byte{}
	var host string
	hostile := newHub(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		data := docs[path.Base(r.URL.Path)]
		if data == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data)
	}))
	host = hostile.host
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":[]}}`, layout.HostPlatform().Architecture)
	docs[digest.FromString(config).String()] = []byte(config)
	n := 0
	put := func(tag string, lists ...string) string {
		n++
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{},
			Config:      ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString(config), Size: int64(len(config))},
			Annotations: map[string]string{fetch.Annotation: fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["k%d@1"],"kits":[%s]}`, n, strings.Join(lists, ","))}}
		if len(lists) == 0 {
			m.Annotations[fetch.Annotation] = fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["k%d@1"]}`, n)
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		docs[digest.FromBytes(data).String()], docs[tag] = data, data
		return fmt.Sprintf(`{"ref":"%s/kits/k%d:1","digest":"%s"}`, host, n, digest.FromBytes(data))
	}
	deep := put("0")
	for i := range 40 {
		deep = put(fmt.Sprint("deep", i), deep)
	}
	var wide []string
	for range 8 {
		var list []string
		for range 150 {
			list = append(list, put("1"))
		}
		wide = append(wide, put("1", list...))
	}
	put("wide", wide...)
	// As many ways down as there are atoms; each is gone once.
	twice := put("2")
	for i := range 30 {
		twice = put(fmt.Sprint("twice", i), twice, strings.Replace(twice, ":1\"", ":2\"", 1))
	}
	put("loose", `{"ref":"`+host+`/kits/x:1"}`)
	for tag, want := range map[string]string{"deep39": "more than 32 sets", "wide": "more than 1000 Kits", "twice29": "", "loose": "digest"} {
		f, _ := fetcher(t)
		requests.Store(0)
		_, err := f.Fetch(t.Context(), hostile.set(t, "kits: [{ref: HUB/kits/k:"+tag+"}]\n"), nil)
		if want == "" && err != nil || want != "" && (!errors.Is(err, kiterr.ErrRefused) && tag != "loose" || !strings.Contains(err.Error(), want)) || requests.Load() > 100 {
			t.Errorf("%s: %v after %d requests, want %q", tag, err, requests.Load(), want)
		}
	}
}

// TestSetsWithoutEnd list more Kits than are looked up, Kits of more documents
// than fit into memory, or of more layers than an image can have.
func TestSetsWithoutEnd(t *testing.T) {
	var sent atomic.Int64
	hostile := newHub(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		layers, pad := 0, 3<<20
		if strings.Contains(r.URL.Path, "/tall") {
			layers, pad = 600, 0
		}
		c := ocispec.Image{Platform: layout.HostPlatform(), RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Annotations: map[string]string{
			fetch.Annotation: `{"schemaVersion":"3","kind":"mixin","provides":["` + strings.Split(r.URL.Path, "/")[3] + `@1"]}`, "pad": strings.Repeat("x", pad),
		}}
		for n := range layers {
			d := digest.FromString(fmt.Sprint(n))
			m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: 10})
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, d)
		}
		config, err := json.Marshal(c)
		if err != nil {
			t.Error(err)
		}
		m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))}
		data, err := json.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			data = config
		}
		w.Header().Set("Content-Type", m.MediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		n, _ := w.Write(data)
		sent.Add(int64(n))
	}))
	list := func(name string, n int) string {
		var b strings.Builder
		b.WriteString("kits:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {ref: HUB/kits/%s%d:1}\n", name, i)
		}
		return b.String()
	}
	for _, c := range []struct {
		text, want string
		sent       int64
	}{
		{list("some", 300), "256 Kits at most, this one 300", 0},
		{list("some", 200), "documents of the listed Kits have more than 134217728 bytes", 160 << 20},
		{list("tall", 2), "its Kits have 1201 layers with its own, the limit is 1000", 1 << 20},
	} {
		sent.Store(0)
		f, images := fetcher(t)
		_, err := f.Fetch(t.Context(), hostile.set(t, c.text), nil)
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.want) || sent.Load() > c.sent {
			t.Errorf("%v after %d bytes, want %s", err, sent.Load(), c.want)
		}
		if left := blobs(t, images); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
}

// blobs are what a store holds.
func blobs(t testing.TB, images *layout.Store) []string {
	t.Helper()
	var out []string
	if err := filepath.WalkDir(images.Dir(), func(p string, d os.DirEntry, err error) error {
		if d.Type().IsRegular() && strings.Contains(p, "/sha256/") || strings.Contains(p, "/ingest/") {
			out = append(out, p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// plain publishes an image of one manifest with these annotations.
func (h *hub) plain(t testing.TB, ref string, annotations map[string]string) {
	t.Helper()
	home := t.TempDir()
	images := open(t, home)
	keep(t, images, part{ref: ref, descriptor: third}, "kitbox.local/"+ref)
	d, err := images.Resolve(t.Context(), "kitbox.local/"+ref)
	if err != nil {
		t.Fatal(err)
	}
	im, err := images.Image(t.Context(), d, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	im.Manifest.Annotations = annotations
	if d, err = images.PushJSON(t.Context(), ocispec.MediaTypeImageManifest, im.Manifest); err != nil {
		t.Fatal(err)
	}
	if _, err := (&fetch.Fetcher{Home: home}).Push(t.Context(), d.Digest.String(), h.host+"/kits/"+ref); err != nil {
		t.Fatal(err)
	}
}

func TestTheSetsOwnLayer(t *testing.T) {
	h := newHub(t, registries["lenient"](t))
	h.publish(t, part{ref: "w:1", descriptor: workload, config: launch})
	dir := h.set(t, "kits: [{ref: \"HUB/kits/w:${{ kit.args.of }}\"}]\nargs: {of: {default: \"0\", buildArg: OF}}\ncapabilities: [{type: com.docker.sandbox/agent-context@1, config: {contentFile: how.md}}]\n")
	if err := os.WriteFile(filepath.Join(dir, "how.md"), []byte("like this"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, images := fetcher(t)
	if _, err := f.Fetch(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), "kits/w:0") {
		t.Errorf("the default of a build-phase arg: %v", err)
	}
	kit, err := f.Fetch(t.Context(), dir, map[string]string{"of": "1"})
	if err != nil {
		t.Fatal(err)
	}
	rc, err := images.Fetch(t.Context(), kit.Layers[len(kit.Layers)-1].Blob)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	z, err := gzip.NewReader(rc)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if e.Typeflag == tar.TypeReg {
			got[e.Name] = string(b)
		}
	}
	var staged bytes.Buffer
	if err := json.Compact(&staged, []byte(got["usr/share/sandbox/kit/team/kit.yaml"])); err != nil || staged.String() != string(kit.Descriptor) {
		t.Errorf("staged %v: %v", got, err)
	}
	if got["usr/share/sandbox/kit/team/how.md"] != "like this" || len(got) != 2 {
		t.Errorf("staged %v", got)
	}
	// Nothing outside the directory is staged, whatever the file is.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("s"), 0o600), os.Remove(filepath.Join(dir, "how.md")), os.Symlink(secret, filepath.Join(dir, "how.md"))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), dir, map[string]string{"of": "1"}); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a link that leads out: %v", err)
	}
}

// BenchmarkThreeKits assembles and publishes a set of three Kits of one registry,
// as kitbox build --push does.
func BenchmarkThreeKits(b *testing.B) {
	h := newHub(b, registries["strict"](b))
	h.publish(b, part{ref: "w:1", descriptor: workload, config: launch}, part{ref: "m:2", descriptor: mixin}, part{ref: "x:1", descriptor: third})
	dir := h.set(b, threeKits)
	n := 0
	for b.Loop() {
		f, _ := fetcher(b) // nothing is known from the last time
		kit, err := f.Fetch(b.Context(), dir, nil)
		if err != nil {
			b.Fatal(err)
		}
		n++
		if _, err := f.Push(b.Context(), kit.Root.String(), fmt.Sprintf("%s/kits/team%d:1", h.host, n)); err != nil {
			b.Fatal(err)
		}
	}
}
