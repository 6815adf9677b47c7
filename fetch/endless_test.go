package fetch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A shelf is a registry that has documents alone, and counts what it sends.
type shelf struct {
	t    *testing.T
	docs map[string][]byte // by tag or digest
	sent atomic.Int64      // bytes
	gets atomic.Int64
}

func newShelf(t *testing.T) (*shelf, string) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s := &shelf{t: t, docs: map[string][]byte{}}
	return s, plainServer(t, func(w http.ResponseWriter, r *http.Request) {
		data, ok := s.docs[path.Base(r.URL.Path)]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		var head struct {
			MediaType string `json:"mediaType"`
		}
		if err := json.Unmarshal(data, &head); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", head.MediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if r.Method == http.MethodGet {
			s.gets.Add(1)
			n, _ := w.Write(data)
			s.sent.Add(int64(n))
		}
	})
}

// put keeps v and returns its descriptor.
func (s *shelf) put(mediaType, tag string, v any) ocispec.Descriptor {
	s.t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	s.docs[d.Digest.String()] = data
	if tag != "" {
		s.docs[tag] = data
	}
	return d
}

// image keeps an image of these layers, with padding, for platform p.
func (s *shelf) image(tag string, p ocispec.Platform, pad int, layers ...ocispec.Descriptor) ocispec.Descriptor {
	c := ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest)
	}
	d := s.put(ocispec.MediaTypeImageManifest, tag, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: s.put(ocispec.MediaTypeImageConfig, "", c), Layers: layers,
		Annotations: map[string]string{fetch.Annotation: "of the image", "pad": strings.Repeat("x", pad)},
	})
	d.Platform = &p
	return d
}

func (s *shelf) index(tag string, entries ...ocispec.Descriptor) {
	s.put(ocispec.MediaTypeImageIndex, tag, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: entries})
}

// layer is one that only claims to be.
func layer(n int, size int64) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString(fmt.Sprint(n)), Size: size}
}

// TestImagesWithoutEnd have more images, documents, layers or bytes than are
// read, and are refused before they are.
func TestImagesWithoutEnd(t *testing.T) {
	s, host := newShelf(t)
	var many []ocispec.Descriptor
	for i := range 10_000 {
		many = append(many, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(fmt.Sprint(i)), Size: 4 << 20, Platform: &ocispec.Platform{OS: "linux", Architecture: fmt.Sprint("a", i)}})
	}
	many[0] = s.image("", oursPlatform, 0)
	s.index("many", many...)
	var large []ocispec.Descriptor
	for i := range 64 {
		large = append(large, s.image("", ocispec.Platform{OS: "linux", Architecture: fmt.Sprint("a", i)}, 2<<20))
	}
	s.index("large", large...)
	var layers []ocispec.Descriptor
	for i := range 2000 {
		layers = append(layers, layer(i, 1))
	}
	s.image("layers", oursPlatform, 0, layers...)
	s.image("heavy", oursPlatform, 0, layer(0, 30<<30), layer(1, 30<<30), layer(0, 30<<30), layer(2, 5<<30))
	s.image("negative", oursPlatform, 0, layer(0, 100), layer(1, -1))

	pulled := func(f *fetch.Fetcher, ref string) error {
		kit, err := f.Fetch(t.Context(), ref, nil)
		if err == nil {
			err = f.Pull(t.Context(), kit)
		}
		return err
	}
	asArtifact := func(f *fetch.Fetcher, ref string) error { _, err := f.Artifact(t.Context(), ref); return err }
	asImage := func(f *fetch.Fetcher, ref string) error { _, err := f.PullImage(t.Context(), ref); return err }
	preflight := func(f *fetch.Fetcher, ref string) error { _, err := f.Preflight(t.Context(), ref); return err }
	for _, c := range []struct {
		tag  string
		do   func(f *fetch.Fetcher, ref string) error
		want string
		gets int64
		sent int64
	}{
		{"many", asArtifact, "has 10000 images, the limit is 64", 1, 4 << 20},
		{"many", pulled, "has 10000 images, the limit is 64", 1, 4 << 20},
		{"many", preflight, "has 10000 images, the limit is 64", 1, 4 << 20},
		{"many", asImage, "has 10000 images, the limit is 64", 1, 4 << 20},
		{"large", asArtifact, "manifests and configs have more than 67108864 bytes", 100, 65 << 20},
		{"layers", asArtifact, "has 2000 layers, the limit is 1000", 2, 1 << 20},
		{"layers", asImage, "has 2000 layers, the limit is 1000", 2, 1 << 20},
		{"heavy", pulled, "its layers have 69793218560 bytes, the limit is 68719476736", 2, 1 << 20},
		{"heavy", asImage, "its layers have 69793218560 bytes, the limit is 68719476736", 2, 1 << 20},
		{"negative", pulled, "-1 bytes", 2, 1 << 20},
	} {
		s.gets.Store(0)
		s.sent.Store(0)
		f := &fetch.Fetcher{Home: t.TempDir()}
		ref := host + "/kits/k:" + c.tag
		err := c.do(f, ref)
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), ref) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.tag, err, c.want)
		}
		if s.gets.Load() > c.gets || s.sent.Load() > c.sent {
			t.Errorf("%s: %d requests, %d bytes", c.tag, s.gets.Load(), s.sent.Load())
		}
		nothingLeft(t, f.Home, layers[0].Digest)
	}
	// What is just within the bounds is read.
	s.index("enough", large[:30]...)
	s.image("thousand", oursPlatform, 0, layers[:1000]...)
	f := &fetch.Fetcher{Home: t.TempDir()}
	for tag, want := range map[string]int{"enough": 30, "thousand": 1} {
		if a, err := f.Artifact(t.Context(), host+"/kits/k:"+tag); err != nil || len(a.Images) != want {
			t.Errorf("%s: %v", tag, err)
		}
	}
}
