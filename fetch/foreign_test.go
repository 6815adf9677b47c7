package fetch_test

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// TestIndexesOfOtherTools are pulled for the platform that is asked for, and what
// is no image in them is left where it is.
func TestIndexesOfOtherTools(t *testing.T) {
	const (
		dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
		dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	)
	here := setup(t)
	store := func(mediaType string, v any) ocispec.Descriptor {
		t.Helper()
		d, err := here.images.PushJSON(t.Context(), mediaType, v)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// one is an image as a tool of either family writes it.
	one := func(platform string, docker bool) ocispec.Descriptor {
		t.Helper()
		p, err := layout.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		types := []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayer}
		if docker {
			types = []string{dockerManifest, "application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar"}
		}
		l, err := here.images.PushBytes(t.Context(), types[2], []byte("layer of "+platform))
		if err != nil {
			t.Fatal(err)
		}
		c := store(types[1], ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.Digest}}})
		m := store(types[0], ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: types[0], Config: c, Layers: []ocispec.Descriptor{l},
			Annotations: map[string]string{fetch.Annotation: "of " + platform}})
		m.Platform = &p
		return m
	}
	// attestation is what buildx adds for every image of an index.
	attestation := func(of ocispec.Descriptor, unknown bool) ocispec.Descriptor {
		t.Helper()
		l, err := here.images.PushBytes(t.Context(), "application/vnd.in-toto+json", []byte(`{"predicate":"`+of.Digest+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		c := store(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "unknown", Architecture: "unknown"}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.Digest}}})
		m := store(ocispec.MediaTypeImageManifest, ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: []ocispec.Descriptor{l}})
		m.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": of.Digest.String()}
		if unknown {
			m.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
		}
		return m
	}
	amd, arm, old := one("linux/amd64", false), one("linux/arm64/v8", false), one("linux/arm/v7", false)
	dockerAmd, dockerArm := one("linux/amd64", true), one("linux/arm64/v8", true)
	bare := amd
	bare.Platform = nil
	windows := one("windows/amd64", false)
	windows.Platform.OSVersion = "10.0.20348.2113"
	for name, c := range map[string]struct {
		mediaType string
		entries   []ocispec.Descriptor
		all       int                      // that a set is made of
		want      map[string]digest.Digest // by platform; "" has none
	}{
		"buildx, one platform":               {ocispec.MediaTypeImageIndex, []ocispec.Descriptor{amd, attestation(amd, true)}, 1, map[string]digest.Digest{"linux/amd64": amd.Digest, "linux/arm64": ""}},
		"buildx, several":                    {ocispec.MediaTypeImageIndex, []ocispec.Descriptor{attestation(amd, true), amd, arm, attestation(arm, true), old}, 3, map[string]digest.Digest{"linux/amd64": amd.Digest, "linux/arm64": arm.Digest, "linux/arm64/v8": arm.Digest, "linux/arm/v7": old.Digest, "linux/arm/v6": ""}},
		"an attestation without a platform":  {ocispec.MediaTypeImageIndex, []ocispec.Descriptor{attestation(amd, false), bare}, 1, map[string]digest.Digest{"linux/amd64": amd.Digest}},
		"buildah and podman, docker's types": {dockerIndex, []ocispec.Descriptor{dockerArm, dockerAmd}, 2, map[string]digest.Digest{"linux/amd64": dockerAmd.Digest, "linux/arm64": dockerArm.Digest}},
		"docker's index of OCI images":       {dockerIndex, []ocispec.Descriptor{arm, amd}, 2, map[string]digest.Digest{"linux/amd64": amd.Digest, "linux/arm64": arm.Digest}},
		"with another system":                {ocispec.MediaTypeImageIndex, []ocispec.Descriptor{windows, amd}, 2, map[string]digest.Digest{"linux/amd64": amd.Digest}},
	} {
		root := store(c.mediaType, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: c.mediaType, Manifests: c.entries})
		if err := here.images.Tag(t.Context(), root, "kitbox.local/x:1"); err != nil {
			t.Fatal(err)
		}
		for kind, serve := range map[string]string{"lenient": serve(t, nil), "strict": strict(t, nil)} {
			ref := serve + "/kits/x:1"
			if d, err := here.Push(t.Context(), "kitbox.local/x:1", ref); err != nil || d != root.Digest {
				t.Fatalf("%s, %s: push: %v", name, kind, err)
			}
			for platform, want := range c.want {
				p, err := layout.ParsePlatform(platform)
				if err != nil {
					t.Fatal(err)
				}
				f := &fetch.Fetcher{Home: t.TempDir(), Platform: p}
				kit, err := f.Fetch(t.Context(), ref, nil)
				if want == "" {
					if err == nil || strings.Contains(err.Error(), "unknown") || !strings.Contains(err.Error(), "has no image for "+platform) {
						t.Errorf("%s, %s, %s: %v", name, kind, platform, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s, %s, %s: %v", name, kind, platform, err)
					continue
				}
				if err := f.Pull(t.Context(), kit); err != nil || kit.Digest != want || !strings.HasPrefix(string(kit.Descriptor), "of "+strings.TrimSuffix(platform, "/v8")) {
					t.Errorf("%s, %s, %s: %s, %v", name, kind, platform, kit.Digest, err)
				}
				again, err := f.Fetch(t.Context(), ref, nil)
				if err != nil || again.Source != fetch.Store || again.Digest != want {
					t.Errorf("%s, %s, %s: from the store: %+v, %v", name, kind, platform, again, err)
				}
				left, err := layout.Open(f.Home + "/images")
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range c.entries {
					if ok, err := left.Exists(t.Context(), e); err != nil || ok != (e.Digest == want) {
						t.Errorf("%s, %s, %s: %s is there: %t, %v", name, kind, platform, e.Digest, ok, err)
					}
				}
			}
			var images int
			if all, err := layout.ReadAll(t.Context(), here.images, root); err == nil {
				images = len(all)
			}
			if images != c.all {
				t.Errorf("%s: %d images", name, images)
			}
		}
	}
}
