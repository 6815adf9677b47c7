package artifact_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// gzipped is b in as many members as there are parts.
func gzipped(t *testing.T, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&out)
		if _, err := z.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// TestOddKitsThatAreFine are as other builders, registries and people make them.
func TestOddKitsThatAreFine(t *testing.T) {
	one := func(im *built) product { return product{images: []*built{im}} }
	of := func(f func(im *built)) product { im := workload(t, "amd64"); f(im); return one(im) }
	for what, p := range map[string]product{
		"layers that are not compressed": of(func(im *built) {
			im.pack = func(raw []byte) (string, []byte) { return ocispec.MediaTypeImageLayer, raw }
		}),
		"zstd": of(func(im *built) {
			im.pack = func(raw []byte) (string, []byte) {
				w, err := zstd.NewWriter(nil)
				if err != nil {
					t.Fatal(err)
				}
				return ocispec.MediaTypeImageLayerZstd, w.EncodeAll(raw, nil)
			}
		}),
		"gzip in pieces": of(func(im *built) {
			im.pack = func(raw []byte) (string, []byte) {
				return ocispec.MediaTypeImageLayerGzip, gzipped(t, raw[:100], nil, raw[100:])
			}
		}),
		"docker's names": of(func(im *built) {
			im.manifest = func(m *ocispec.Manifest) {
				m.MediaType, m.Config.MediaType = "application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.container.image.v1+json"
				for i := range m.Layers {
					m.Layers[i].MediaType = "application/vnd.docker.image.rootfs.diff.tar.gzip"
				}
			}
		}),
		"a manifest that does not name itself": of(func(im *built) { im.manifest = func(m *ocispec.Manifest) { m.MediaType = "" } }),
		"annotations of others": of(func(im *built) {
			im.annotations["x.example/y"] = strings.Repeat("z", 1<<20)
			im.manifest = func(m *ocispec.Manifest) {
				m.Layers[0].Annotations = map[string]string{"org.opencontainers.image.title": "x"}
				m.Layers[0].URLs = []string{"https://elsewhere.example/x"}
			}
		}),
		"a time in small letters": of(func(im *built) { im.annotations[annotation.Created] = "2026-01-01t00:00:00z" }),
		"layers that hold nothing, twice": of(func(im *built) {
			im.layers = slices.Insert(im.layers, 0, []file{}, []file{})
		}),
		"a user by number, a command alone": of(func(im *built) {
			im.config.User, im.config.Entrypoint, im.config.Cmd = "1000:1000", nil, []string{"sh"}
		}),
		"names that are not UTF-8, long or odd": of(func(im *built) {
			im.layers[0] = append(im.layers[0], reg("./opt//\xff\xfe", ""), reg("opt/back\\slash", ""), reg("opt/"+strings.Repeat("d/", 400)+"f", ""), reg("opt/.whole", ""))
		}),
		"a header for all": of(func(im *built) {
			im.layers[0] = slices.Insert(im.layers[0], 0, file{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, ""})
		}),
		"directories after their files, links to links": of(func(im *built) {
			im.layers[0] = append(im.layers[0], dir("usr/bin", 0), dir("usr", 0), link("usr/bin/dash2", "../../bin/dash"), file{Header: tarLink("usr/bin/dash3", "bin/dash2")})
			im.layers[0][3] = link("usr/bin/sh", "dash2")
		}),
		"a directory of the user's alone": of(func(im *built) {
			d := dir("opt/own", 1000)
			d.Mode = 0o700
			im.layers[0][3] = link("usr/bin/sh", "/opt/own/sh")
			sh := exe("opt/own/sh")
			sh.Uid = 1000
			im.layers[0] = append(im.layers[0], d, sh)
		}),
		"a variant that one place states": func() product {
			p := twice(t)
			p.images[1].image = func(c *ocispec.Image) { c.Variant = "v8" }
			return p
		}(),
		"an image that is listed twice": func() product {
			p := twice(t)
			p.root = func(ix *ocispec.Index) { ix.Manifests = append(ix.Manifests, ix.Manifests[0]) }
			return p
		}(),
		"an attestation": func() product {
			p := twice(t)
			p.root = func(ix *ocispec.Index) {
				ix.Manifests = append(ix.Manifests, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1,
					Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}})
			}
			return p
		}(),
	} {
		if r := judge(t, p, ""); len(broken(r)) > 0 || r.Tally.Passed < 15 {
			t.Errorf("%s: %+v", what, r.Findings)
		}
	}
}

// nothing is zeros without end.
type nothing struct{}

func (nothing) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestZerosAreNotReadForMinutes has a layer of a few megabytes that unpacks to gigabytes.
func TestZerosAreNotReadForMinutes(t *testing.T) {
	const size = 3 << 30
	im := mixin(t)
	im.layers = [][]file{{{}}}
	im.describe(t, "m", mixinText)
	im.pack = func([]byte) (string, []byte) {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		if err := w.WriteHeader(&tar.Header{Name: "opt/zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, nothing{}, size); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return ocispec.MediaTypeImageLayerGzip, b.Bytes()
	}
	var out strings.Builder
	code := artifact.Validate(t.Context(), []string{"kit", "--layout", product{images: []*built{im}}.write(t)}, &out, &out)
	if code != 3 || !strings.Contains(out.String(), "more than 256 times") {
		t.Errorf("%d: %s", code, &out)
	}
}
