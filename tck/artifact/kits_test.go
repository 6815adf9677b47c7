package artifact_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// pushed is a set in a registry of its own, and the manifests of its Kits where
// the set says; skip leaves out one of those.
func pushed(t *testing.T, srv *httptest.Server, skip string) string {
	t.Helper()
	host := srv.Listener.Addr().String()
	p := withKits(t)
	p.images[0].describe(t, "both", strings.ReplaceAll(p.images[0].annotations[annotation.Descriptor], "r.example", host))
	dir := p.write(t)
	doc, err := spec.DecodePublished([]byte(p.images[0].annotations[annotation.Descriptor]))
	if err != nil {
		t.Fatal(err)
	}
	for n, name := range []string{"w", "m"} {
		if name == skip {
			continue
		}
		d := digest.Digest(doc.Kits[n].Digest)
		b, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", d.Encoded()))
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL+"/v2/"+name+"/manifests/"+d.String(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", ocispec.MediaTypeImageManifest)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatal(resp.Status)
		}
	}
	src, err := oci.NewFromFS(t.Context(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(host + "/set")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	if _, err := oras.Copy(t.Context(), src, "kit", repo, "1", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	return host + "/set:1"
}

// TestTheKitsOfASetAreLookedUp publishes a set and the manifests of its Kits.
func TestTheKitsOfASetAreLookedUp(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	const id = "SPEC-v3 §9.5/layers-preserved"
	for what, c := range map[string]struct {
		skip   string
		answer http.HandlerFunc
		args   []string
		code   int
		want   []string
	}{
		"nobody asks":     {"", nil, nil, 0, []string{"waived " + id, "--kits reads it"}},
		"all are there":   {"", nil, []string{"--kits"}, 0, []string{"pass   " + id}},
		"a digest is not": {"m", nil, []string{"--kits"}, 1, []string{"fail   " + id + " kits: there is no sha256:"}},
		"a login is wanted": {"", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "Basic realm=x")
			w.WriteHeader(http.StatusUnauthorized)
		}, []string{"--kits"}, 3, []string{"waived " + id, "could not be read", "docker login", "kit-tck: --kits: "}},
		"the registry hangs up": {"", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			[]string{"--kits"}, 3, []string{"waived " + id, "could not be read"}},
		"access is denied": {"", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			[]string{"--kits"}, 3, []string{"waived " + id, "403"}},
	} {
		var ready atomic.Bool // everything is stored
		inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.answer != nil && ready.Load() && strings.HasPrefix(r.URL.Path, "/v2/m/") {
				c.answer(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		}))
		ref := pushed(t, srv, c.skip)
		ready.Store(true)
		code, said := validate(t, append([]string{ref, "--verbose"}, c.args...)...)
		for _, want := range c.want {
			if code != c.code || !strings.Contains(said, want) {
				t.Errorf("%s: %d, no %q in\n%s", what, code, want, said)
			}
		}
		srv.Close()
	}
}

// TestALayoutNeedNotHoldTheKits of a set, which --kits then reads elsewhere.
func TestALayoutNeedNotHoldTheKits(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	p := product{images: []*built{set(t)}}
	p.images[0].describe(t, "both", strings.ReplaceAll(p.images[0].annotations[annotation.Descriptor], "r.example", "127.0.0.1:1"))
	dir := p.write(t)
	if code, said := validate(t, "kit", "--layout", dir, "--verbose"); code != 0 || !strings.Contains(said, "was not read") {
		t.Errorf("%d: %s", code, said)
	}
	if code, said := validate(t, "kit", "--layout", dir, "--verbose", "--kits"); code != 3 || !strings.Contains(said, "connection refused") {
		t.Errorf("--kits: %d: %s", code, said)
	}
}

// TestPlatformsThatAreOne calls the first 64-bit ARM by its variant in one place
// and not in the other.
func TestPlatformsThatAreOne(t *testing.T) {
	p := twice(t)
	p.root = func(ix *ocispec.Index) { ix.Manifests[1].Platform.Variant = "v8" }
	for _, name := range []string{"linux/arm64", "linux/arm64/v8"} {
		if r := judge(t, p, name); !r.OK() || len(r.Platforms) != 1 || r.Platforms[0] != "linux/arm64" {
			t.Errorf("%s: %q of %q", name, r.Findings, r.Platforms)
		}
	}
}
