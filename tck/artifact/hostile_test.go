package artifact_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// validate judges and returns the exit status and what was said.
func validate(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	start := time.Now()
	code := artifact.Validate(t.Context(), args, &out, &out)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("%q took %v", args, d)
	}
	return code, out.String()
}

// TestHostileRegistries are not waited for, not believed and not read without
// end: none of them is a judgement.
func TestHostileRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	defer artifact.SetStallLimit(artifact.SetStallLimit(300 * time.Millisecond))
	good := product{images: []*built{mixin(t)}}.write(t)
	blob := func(d digest.Digest) []byte {
		b, err := os.ReadFile(filepath.Join(good, "blobs", "sha256", d.Encoded()))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var ix ocispec.Index
	raw, err := os.ReadFile(filepath.Join(good, "index.json"))
	if err == nil {
		err = json.Unmarshal(raw, &ix)
	}
	if err != nil {
		t.Fatal(err)
	}
	root := ix.Manifests[0]
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	stall := func(r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}
	manifest := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", root.MediaType)
		w.Header().Set("Docker-Content-Digest", root.Digest.String())
		w.Header().Set("Content-Length", fmt.Sprint(root.Size))
	}
	for name, c := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request)
		has   string
	}{
		"one that does not answer": {func(_ http.ResponseWriter, r *http.Request) { stall(r) }, "sends nothing"},
		"one that stops in a layer": {func(w http.ResponseWriter, r *http.Request) {
			switch at := r.URL.Path; {
			case strings.Contains(at, "/manifests/"):
				manifest(w)
				w.Write(blob(root.Digest))
			case strings.Contains(at, "/blobs/"):
				b := blob(digest.Digest(at[strings.LastIndex(at, "/")+1:]))
				if bytes.HasPrefix(b, []byte("{")) {
					w.Write(b)
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(b)))
				w.Write(b[:len(b)/2])
				w.(http.Flusher).Flush()
				stall(r)
			}
		}, "sends nothing"},
		"another manifest than it names": {func(w http.ResponseWriter, _ *http.Request) {
			manifest(w)
			w.Write(bytes.Repeat([]byte("x"), int(root.Size)))
		}, "digest"},
		"a manifest without end": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", root.MediaType)
			w.Header().Set("Docker-Content-Digest", root.Digest.String())
			w.Header().Set("Content-Length", fmt.Sprint(int64(1)<<40))
			for r.Method == http.MethodGet {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, ""},
		"a redirect in a circle": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, "redirects"},
		"one that lets nobody in": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "Basic realm=x")
			w.WriteHeader(http.StatusUnauthorized)
		}, "docker login"},
		"a page": {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>\x1b[2J")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(c.serve))
			defer srv.Close()
			defer srv.CloseClientConnections()
			code, said := validate(t, srv.Listener.Addr().String()+"/k/k:1")
			if code != 3 || !strings.Contains(said, c.has) || strings.Contains(said, "\x1b") {
				t.Errorf("%d: %s", code, said)
			}
		})
	}
}

// TestArtifactsWithoutEnd have more images or layers than are judged.
func TestArtifactsWithoutEnd(t *testing.T) {
	p := twice(t)
	p.root = func(ix *ocispec.Index) {
		for len(ix.Manifests) < 100 {
			ix.Manifests = append(ix.Manifests, ix.Manifests[0])
		}
	}
	if code, said := validate(t, "kit", "--layout", p.write(t)); code != 3 || !strings.Contains(said, "more than 64 images") {
		t.Errorf("images: %d: %s", code, said)
	}
	im := mixin(t)
	im.manifest = func(m *ocispec.Manifest) {
		for len(m.Layers) < 2000 {
			m.Layers = append(m.Layers, m.Layers[0])
		}
	}
	if code, said := validate(t, "kit", "--layout", product{images: []*built{im}}.write(t)); code != 3 || !strings.Contains(said, "2000 layers") {
		t.Errorf("layers: %d: %s", code, said)
	}
}
