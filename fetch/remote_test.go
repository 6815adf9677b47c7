package fetch_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// serve runs a registry on loopback until the test ends, behind wrap.
func serve(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	// The logins of whoever runs the tests are none of their business.
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	return strings.TrimPrefix(s.URL, "http://")
}

// plainServer answers with h on loopback until the test ends.
func plainServer(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// push makes an image with annotations at ref and returns it.
func push(t *testing.T, ref string, annotations map[string]string) v1.Image {
	t.Helper()
	img, err := random.Image(2000, 3)
	if err != nil {
		t.Fatal(err)
	}
	img = mutate.MediaType(img, types.OCIManifestSchema1)
	img = mutate.Annotations(img, annotations).(v1.Image)
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
	return img
}

func digestOf(t *testing.T, d partial.WithRawManifest) digest.Digest {
	t.Helper()
	raw, err := d.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(raw)
}

var asKit = map[string]string{fetch.Annotation: "of the manifest"}

func TestARegistrysImageIsPulledOnce(t *testing.T) {
	var requests atomic.Int32
	host := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			h.ServeHTTP(w, r)
		})
	})
	f := setup(t)
	img := push(t, host+"/kits/a:1", asKit)
	kit, err := f.Fetch(t.Context(), host+"/kits/a:1", nil)
	if err != nil || kit.Source != fetch.Registry || kit.Digest != digestOf(t, img) || string(kit.Descriptor) != "of the manifest" || len(kit.Layers) != 3 {
		t.Fatalf("%+v, %v", kit, err)
	}
	if ok, _ := f.images.Exists(t.Context(), kit.Layers[0].Blob); ok {
		t.Error("a look-up has pulled layers")
	}
	for range 2 {
		if err := f.Pull(t.Context(), kit); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range kit.Layers {
		r, err := f.images.Fetch(t.Context(), l.Blob)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Error(err)
		}
		r.Close()
	}
	n := requests.Load()
	for _, ref := range []string{host + "/kits/a:1", host + "/kits/a@" + kit.Digest.String()} {
		again, err := f.Fetch(t.Context(), ref, nil)
		if err != nil || again.Digest != kit.Digest || again.Source != fetch.Store {
			t.Errorf("%s: %+v, %v", ref, again, err)
		}
	}
	if requests.Load() != n {
		t.Error("a pulled image is asked for again")
	}
	// Refreshing notices that the tag has moved.
	moved := push(t, host+"/kits/a:1", asKit)
	f.Policy = fetch.Always
	if again, err := f.Fetch(t.Context(), host+"/kits/a:1", nil); err != nil || again.Digest != digestOf(t, moved) {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestThePlatformsImageIsTakenFromAnIndex(t *testing.T) {
	host := serve(t, nil)
	f := setup(t)
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	want := map[string]digest.Digest{}
	for _, arch := range []string{"arm64", "amd64"} {
		img := push(t, host+"/kits/part:"+arch, asKit)
		want[arch] = digestOf(t, img)
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	idx = mutate.Annotations(idx, map[string]string{fetch.Annotation: "of the index"}).(v1.ImageIndex)
	r, _ := name.ParseReference(host + "/kits/both:1")
	if err := remote.WriteIndex(r, idx); err != nil {
		t.Fatal(err)
	}
	for arch, d := range want {
		f.Platform = ocispec.Platform{OS: "linux", Architecture: arch}
		kit, err := f.Fetch(t.Context(), host+"/kits/both:1", nil)
		if err != nil || kit.Digest != d || string(kit.Descriptor) != "of the index" {
			t.Fatalf("%s: %+v, %v", arch, kit, err)
		}
		if err := f.Pull(t.Context(), kit); err != nil {
			t.Fatal(err)
		}
		if kit, err := f.Fetch(t.Context(), host+"/kits/both:1", nil); err != nil || kit.Digest != d {
			t.Errorf("%s from the store: %+v, %v", arch, kit, err)
		}
		break // the second platform is missing in the store now; see below
	}
	f.Platform = ocispec.Platform{OS: "linux", Architecture: "riscv64"}
	f.Policy = fetch.Always
	if _, err := f.Fetch(t.Context(), host+"/kits/both:1", nil); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "linux/amd64, linux/arm64") {
		t.Errorf("a missing platform: %v", err)
	}
}

// A store that holds one platform of an index does not stand in the way of
// another one.
func TestAnotherPlatformIsPulledLater(t *testing.T) {
	host := serve(t, nil)
	f := setup(t)
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range []string{"arm64", "amd64"} {
		img := push(t, host+"/kits/part:"+arch, asKit)
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	r, _ := name.ParseReference(host + "/kits/both:1")
	if err := remote.WriteIndex(r, idx); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"arm64", "amd64", "arm64"} {
		f.Platform = ocispec.Platform{OS: "linux", Architecture: arch}
		kit, err := f.Fetch(t.Context(), host+"/kits/both:1", nil)
		if err != nil {
			t.Fatal(arch, err)
		}
		if err := f.Pull(t.Context(), kit); err != nil {
			t.Fatal(arch, err)
		}
	}
}

func TestRegistryFailuresAreExplained(t *testing.T) {
	f := setup(t)
	host := serve(t, nil)
	push(t, host+"/plain:1", nil)
	dead := httptest.NewServer(nil)
	dead.Close()
	private := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); u != "me" || p != "pass" {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	for ref, want := range map[string]struct {
		text   string
		family error
	}{
		host + "/nothing:1": {"not found in the local store and at registry " + host, kiterr.ErrNotFound},
		host + "/plain:1":   {"is not a Kit", kiterr.ErrRefused},
		host + "/UPPER:1":   {"not a valid reference", kiterr.ErrRefused},
		strings.TrimPrefix(dead.URL, "http://") + "/x:1": {"cannot be reached", kiterr.ErrNotFound},
		private + "/x:1": {"docker login " + private, kiterr.ErrNotFound},
	} {
		_, err := f.Fetch(t.Context(), ref, nil)
		if err == nil || !strings.Contains(err.Error(), want.text) || !errors.Is(err, want.family) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestDockersLoginIsUsed(t *testing.T) {
	private := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); (u != "me" || p != "pass") && r.Method != http.MethodPut && r.Method != http.MethodPost && r.Method != http.MethodPatch {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, private, base64.StdEncoding.EncodeToString([]byte("me:pass")))
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	f := setup(t)
	// The image gets there by another store's hands.
	img := push(t, serve2(t, private)+"/kits/a:1", asKit)
	kit, err := f.Fetch(t.Context(), private+"/kits/a:1", nil)
	if err != nil || kit.Digest != digestOf(t, img) {
		t.Fatalf("%+v, %v", kit, err)
	}
	if err := f.Pull(t.Context(), kit); err != nil {
		t.Error(err)
	}
}

// serve2 is the registry at host for somebody who is logged in.
func serve2(t *testing.T, host string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", host, host, ""
		out.SetBasicAuth("me", "pass")
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// A registry that lies about what it sends stores nothing under the name.
func TestALyingRegistryIsNoticed(t *testing.T) {
	for what, lie := range map[string]func(r *http.Request, body []byte) []byte{
		"layers": func(r *http.Request, b []byte) []byte {
			if strings.Contains(r.URL.Path, "/blobs/") && len(b) > 1500 {
				b[700] ^= 1
			}
			return b
		},
		"config": func(r *http.Request, b []byte) []byte {
			if strings.Contains(r.URL.Path, "/blobs/") && bytes.HasPrefix(b, []byte("{")) {
				return bytes.Replace(b, []byte("architecture"), []byte("ARCHITECTURE"), 1)
			}
			return b
		},
		"manifest": func(r *http.Request, b []byte) []byte {
			return bytes.Replace(b, []byte("of the manifest"), []byte("of the attacker"), 1)
		},
		"endless manifest": func(r *http.Request, b []byte) []byte {
			if strings.Contains(r.URL.Path, "/manifests/") {
				return append(b, make([]byte, layout.MaxDocument)...)
			}
			return b
		},
	} {
		t.Run(what, func(t *testing.T) {
			host := serve(t, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodGet {
						h.ServeHTTP(w, r)
						return
					}
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, r)
					for k, v := range rec.Header() {
						if k != "Content-Length" {
							w.Header()[k] = v
						}
					}
					body := lie(r, rec.Body.Bytes())
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
					w.WriteHeader(rec.Code)
					w.Write(body)
				})
			})
			f := setup(t)
			push(t, host+"/kits/a:1", asKit)
			kit, err := f.Fetch(t.Context(), host+"/kits/a:1", nil)
			if err == nil {
				err = f.Pull(t.Context(), kit)
			}
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
			if tags, err := f.images.Tags(); err != nil || len(tags) > 0 {
				t.Errorf("tags %v, %v", tags, err)
			}
		})
	}
}

func TestAHugeLayerIsRefusedUnread(t *testing.T) {
	host := serve(t, nil)
	f := setup(t)
	huge := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":99999999999999}],"annotations":{%q:"x"}}`
	push(t, host+"/kits/a:1", asKit)
	// A config with one diff id, so that the documents agree.
	conf := []byte(fmt.Sprintf(`{"os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%064d"]}}`, 1))
	put := func(path string, body []byte, mediaType string) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodPut, "http://"+host+path, bytes.NewReader(body))
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatal(path, resp.Status)
		}
	}
	resp, err := http.Post("http://"+host+"/v2/kits/a/blobs/uploads/?digest="+digest.FromBytes(conf).String(), "application/octet-stream", bytes.NewReader(conf))
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	desc := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d}`, digest.FromBytes(conf), len(conf))
	put("/v2/kits/a/manifests/huge", []byte(fmt.Sprintf(huge, desc, strings.Repeat("a", 64), fetch.Annotation)), ocispec.MediaTypeImageManifest)
	kit, err := f.Fetch(t.Context(), host+"/kits/a:huge", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Pull(t.Context(), kit); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("Pull = %v", err)
	}
}
