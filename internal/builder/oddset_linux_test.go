package builder_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/kitset"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// A crafted Kit is written by hand, as no builder of ours writes one.
type crafted struct {
	descriptor string     // empty: a mixin that provides what it is called
	layers     [][]string // names and contents; another with the sources is added
	config     string     // that of its image, JSON
	media      string     // of layers: "", "tar" or "zstd"; its sources are gzipped
	image      func(m map[string]any)
	manifest   func(m *ocispec.Manifest)
	index      func(l library, ix *ocispec.Index)
}

func layerTar(t *testing.T, files []string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[i+1]))})
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packed(t *testing.T, media string, raw []byte) (string, []byte) {
	t.Helper()
	switch media {
	case "tar":
		return ocispec.MediaTypeImageLayer, raw
	case "zstd":
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return ocispec.MediaTypeImageLayerZstd, w.EncodeAll(raw, nil)
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return ocispec.MediaTypeImageLayerGzip, b.Bytes()
}

// send makes one request to the registry and returns where an upload goes on.
func (l library) send(method, at, mediaType string, body []byte) string {
	l.bench.Helper()
	req, err := http.NewRequestWithContext(l.bench.Context(), method, at, bytes.NewReader(body))
	if err != nil {
		l.bench.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		l.bench.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		l.bench.Fatalf("%s %s: %s", method, at, resp.Status)
	}
	to, err := resp.Location()
	if err != nil {
		return ""
	}
	return to.String()
}

func (l library) blob(repo string, b []byte) digest.Digest {
	l.bench.Helper()
	d := digest.FromBytes(b)
	at, err := url.Parse(l.send(http.MethodPost, "http://"+l.host+"/v2/kits/"+repo+"/blobs/uploads/", "", nil))
	if err != nil {
		l.bench.Fatal(err)
	}
	q := at.Query()
	q.Set("digest", d.String())
	at.RawQuery = q.Encode()
	l.send(http.MethodPut, at.String(), "application/octet-stream", b)
	return d
}

// document stores v by its digest, and under tag if there is one.
func (l library) document(repo, tag, mediaType string, v any) ocispec.Descriptor {
	l.bench.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		l.bench.Fatal(err)
	}
	d := digest.FromBytes(b)
	for _, name := range []string{d.String(), tag} {
		if name != "" {
			l.send(http.MethodPut, "http://"+l.host+"/v2/kits/"+repo+"/manifests/"+name, mediaType, b)
		}
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
}

// craft puts c into the registry as name:1.
func (l library) craft(name string, c crafted) {
	l.bench.Helper()
	if c.descriptor == "" {
		c.descriptor = fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["%s@1"]}`, name)
	}
	doc, err := spec.DecodePublished([]byte(c.descriptor))
	if err != nil {
		l.bench.Fatal(err)
	}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	if m.Annotations, err = annotation.Derive(doc.Descriptor, annotation.Options{}); err != nil {
		l.bench.Fatal(err)
	}
	var diffs []digest.Digest
	history := []map[string]string{}
	sources := []string{strings.TrimPrefix(content.StageRoot, "/") + "/" + name + "/" + content.StagedDescriptor, m.Annotations[annotation.Descriptor]}
	for i, files := range append(slices.Clone(c.layers), sources) {
		media, by := c.media, "RUN make"
		if i == len(c.layers) {
			media, by = "", content.StageNote+name
		}
		raw := layerTar(l.bench.T, files)
		mediaType, b := packed(l.bench.T, media, raw)
		d := l.blob(name, b)
		l.layers[d.Encoded()] = true
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))})
		diffs = append(diffs, digest.FromBytes(raw))
		history = append(history, map[string]string{"created_by": by})
	}
	config := map[string]any{"os": "linux", "architecture": oursPlatform.Architecture, "history": history, "rootfs": map[string]any{"type": "layers", "diff_ids": diffs}}
	if c.config != "" {
		config["config"] = json.RawMessage(c.config)
	}
	if c.image != nil {
		c.image(config)
	}
	b, err := json.Marshal(config)
	if err != nil {
		l.bench.Fatal(err)
	}
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: l.blob(name, b), Size: int64(len(b))}
	if c.manifest != nil {
		c.manifest(&m)
	}
	root := l.document(name, "1", m.MediaType, m)
	if c.index != nil {
		root.Platform = &oursPlatform
		ix := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{root}}
		ix.SchemaVersion = 2
		c.index(l, &ix)
		l.document(name, "1", ix.MediaType, ix)
	}
}

const floorWorkload = `{"schemaVersion":"3","kind":"workload","provides":["base@1"]}`

// oddities are Kits that each go into a set with a workload, base.
var oddities = map[string]crafted{
	"uncompressed": {media: "tar"},
	"zstd":         {media: "zstd"},
	"whiteout":     {layers: [][]string{{"opt/b/.wh.x", ""}}},
	"opaque":       {layers: [][]string{{"opt/b/.wh..wh..opq", "", "opt/b/z", "z"}}},
	"empty":        {layers: [][]string{nil, nil, {"opt/e", "e"}, nil}},
	"sources":      {layers: [][]string{}},
	"twice":        {layers: [][]string{{"opt/s", "s"}, {"opt/s", "s"}}},
	"alike":        {layers: [][]string{{"bin/sh", "x", "opt/b/x", "x"}}}, // the layer of base
	"config": {config: `{"Healthcheck":{"Test":["CMD","x"]},"OnBuild":["RUN x"],"StopSignal":"SIGKILL","Shell":["/bin/bash"],"ArgsEscaped":true,"User":"nobody",` +
		`"Volumes":{"/v":{}},"ExposedPorts":{"80/tcp":{}},"Labels":{"a":"b"},"Hostname":"h","MacAddress":"m","Env":["PATH=/opt/x:/bin:/opt/x","A=1","EMPTY=","BARE"]}`},
	"stargz": {manifest: func(m *ocispec.Manifest) {
		m.Layers[0].Annotations = map[string]string{"org.opencontainers.image.title": "x", "containerd.io/snapshot/stargz/toc.digest": digest.FromString("x").String(), "io.containers.estargz.uncompressed-size": "77"}
	}},
	"chunked": {media: "zstd", manifest: func(m *ocispec.Manifest) {
		m.Layers[0].Annotations = map[string]string{"io.github.containers.zstd-chunked.manifest-position": "1:2:3:4"}
	}},
	"elsewhere": {manifest: func(m *ocispec.Manifest) { m.Layers[0].URLs = []string{"https://elsewhere.example/x"} }},
	"foreign": {manifest: func(m *ocispec.Manifest) {
		m.Layers[0].MediaType, m.Layers[0].URLs = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", []string{"https://elsewhere.example/x"}
	}},
	"docker": {manifest: func(m *ocispec.Manifest) {
		m.MediaType, m.Config.MediaType = "application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.container.image.v1+json"
		m.Layers[0].MediaType, m.Layers[1].MediaType = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"
	}},
	"beside": {manifest: func(m *ocispec.Manifest) {
		m.Layers[0].Platform, m.Layers[0].Data, m.Layers[0].ArtifactType = &oursPlatform, []byte("x"), "x/y"
		m.Subject = &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1}
	}},
	"large": {config: `{"Labels":{"x":"` + strings.Repeat("y", 1<<20) + `"}}`, manifest: func(m *ocispec.Manifest) { m.Annotations["x"] = strings.Repeat("y", 1<<20) }},
	"bare":  {image: func(m map[string]any) { delete(m, "history"); m["created"], m["author"] = "2020-01-01T00:00:00Z", "me" }},
	"attested": {index: func(l library, ix *ocispec.Index) {
		d := l.document("attested", "", ocispec.MediaTypeImageManifest, map[string]any{})
		d.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
		d.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": ix.Manifests[0].Digest.String()}
		ix.Manifests = append(ix.Manifests, d)
	}},
	"platformless": {index: func(_ library, ix *ocispec.Index) { ix.Manifests[0].Platform = nil }},
	"repeated":     {index: func(_ library, ix *ocispec.Index) { ix.Manifests = append(ix.Manifests, ix.Manifests[0]) }},
}

// refusals are Kits that neither way makes a set of, and what both say.
var refusals = map[string]struct {
	crafted
	want [2]string // kitbox build, BuildKit
}{
	"values": {crafted{config: `{"Env":["A=2"]}`}, [2]string{"set A to different values", "set A to different values"}},
	"liar": {crafted{index: func(_ library, ix *ocispec.Index) { ix.Manifests[0].Platform = &otherPlatform }},
		[2]string{"whose config says linux/", "whose config says linux/"}},
	"double": {crafted{index: func(_ library, ix *ocispec.Index) {
		d := ix.Manifests[0]
		d.Platform = &otherPlatform
		ix.Manifests = append(ix.Manifests, d)
	}}, [2]string{"whose config says linux/", "whose config says linux/"}},
	"nested": {crafted{index: func(l library, ix *ocispec.Index) {
		d := l.document("nested", "", ix.MediaType, ix)
		d.Platform = &oursPlatform
		ix.Manifests = []ocispec.Descriptor{d}
	}}, [2]string{"which is not an image", "is not a Kit"}},
}

// TestOddKitsMakeOneSet lists Kits of all kinds of builders in sets, and holds what
// BuildKit makes of them, again without its cache, against what kitbox build makes.
func TestOddKitsMakeOneSet(t *testing.T) {
	b := newBench(t)
	l := library{b, newWatched(t, false), map[string]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l.craft("base", crafted{descriptor: floorWorkload, layers: [][]string{{"bin/sh", "x", "opt/b/x", "x"}}, config: `{"Env":["PATH=/bin:/usr/bin","A=1"],"Cmd":["/bin/sh"],"User":"agent","WorkingDir":"/w"}`})
	sets := map[string][]string{}
	for name, c := range oddities {
		if c.layers == nil {
			c.layers = [][]string{{"opt/" + name, name}}
		}
		l.craft(name, c)
		sets[name] = []string{"base", name}
	}
	for i := range 48 {
		name := fmt.Sprintf("one-of-%d", i)
		l.craft(name, crafted{layers: [][]string{{"opt/" + name, name}, {"opt/all", "all"}}})
		sets["fifty"] = append(sets["fifty"], name)
	}
	sets["fifty"] = append(sets["fifty"], "base", "twice")
	solve := func(dir, platform string, again bool) (digest.Digest, error) {
		attrs := map[string]string{"platform": platform}
		if again {
			attrs["no-cache"] = ""
		}
		d, _, err := builder.SolveBy(ctx, builder.Request{Home: l.home, Context: dir, NoCache: again}, frontend.BuiltinSource, attrs)
		return d, err
	}
	write := func(kits ...string) string {
		text := "kits:\n"
		for _, k := range kits {
			text += "  - {ref: HUB/kits/" + k + ":1}\n"
		}
		return l.set(text)
	}
	ours := "linux/" + oursPlatform.Architecture
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		dir := write(sets[name]...)
		want, home := l.assembled(dir, nil, nil, oursPlatform)
		for _, again := range []bool{false, true} {
			if got, err := solve(dir, ours, again); err != nil || got != want.Root {
				t.Errorf("%s (again: %v): %s, %v; kitbox build: %s", name, again, got, err, want.Root)
				l.compare(got, want.Root.String(), home)
			}
		}
		l.take()
		// Beside its Kits, a set is published without a byte of their layers.
		pushed, err := builder.PushBy(ctx, builder.Request{Home: l.home, Context: dir}, frontend.BuiltinSource, map[string]string{"platform": ours}, l.host+"/kits/set-"+name+":1")
		if moved := l.moved(); err != nil || pushed != want.Root || len(moved) > 0 {
			t.Errorf("%s, pushed: %s, %v; kitbox build: %s; moved %q", name, pushed, err, want.Root, moved)
		}
	}
	for as, kit := range map[string]string{l.host + "/kits/zstd:1": "zstd", l.host + "/kits/zstd:1::" + ours: "zstd", "unrelated": ""} {
		dir := write("base", "zstd")
		got, _, err := builder.SolveBy(ctx, builder.Request{Home: l.home, Context: dir}, frontend.BuiltinSource,
			map[string]string{"platform": ours, "context:" + as: "docker-image://" + l.host + "/kits/opaque:1"})
		if kit == "" && (err != nil || got == "") || kit != "" && (err == nil || !strings.Contains(err.Error(), "hello.yaml:8: kits[1]: "+l.host+"/kits/zstd:1 is what its reference stands for")) {
			t.Errorf("a context called %s: %s, %v", as, got, err)
		}
	}
	for name, c := range refusals {
		c.layers = [][]string{{"opt/" + name, name}}
		l.craft(name, c.crafted)
		dir := write("base", name)
		f := &fetch.Fetcher{Home: t.TempDir(), Policy: fetch.Always, Sets: kitset.Assembler{}.Assemble, Platforms: []ocispec.Platform{oursPlatform}}
		_, err := f.Fetch(ctx, dir, nil)
		_, theirs := solve(dir, ours, false)
		for i, err := range []error{err, theirs} {
			if err == nil || !strings.Contains(err.Error(), c.want[i]) || !strings.Contains(err.Error(), "kits/"+name+":1") {
				t.Errorf("%s: %v, want %q", name, err, c.want[i])
			}
		}
	}
}
