package fetch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
)

// TestRegistriesThatLeadAround are left after a few requests, with one line that
// names them: redirects in a circle and without end, token servers that have
// nothing to give, and indexes in place of images.
func TestRegistriesThatLeadAround(t *testing.T) {
	asks := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" && !strings.HasPrefix(r.URL.Path, "/token") {
			return false
		}
		if !strings.HasPrefix(r.URL.Path, "/token") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x",scope="repository:a/b:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
	index := func(w http.ResponseWriter, entries ...ocispec.Descriptor) {
		idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: entries}
		idx.SchemaVersion = 2
		data, err := json.Marshal(idx)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		_, _ = w.Write(data)
	}
	var n atomic.Int64
	for what, c := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request)
		want  string
	}{
		"a redirect in a circle": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, "redirects"},
		"redirects without end": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, fmt.Sprintf("/%d", n.Add(1)), http.StatusTemporaryRedirect)
		}, "redirects"},
		"a token that is not accepted": {func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/token") {
				fmt.Fprint(w, `{"token":"for somebody else"}`)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x",scope="repository:a/b:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, "denies access"},
		"no token": {func(w http.ResponseWriter, r *http.Request) {
			if !asks(w, r) {
				fmt.Fprint(w, `{}`)
			}
		}, ""},
		"a token that is a page": {func(w http.ResponseWriter, r *http.Request) {
			if !asks(w, r) {
				fmt.Fprint(w, "<html>\n\x1b[2J")
			}
		}, ""},
		"a token without end": {func(w http.ResponseWriter, r *http.Request) {
			if asks(w, r) {
				return
			}
			fmt.Fprint(w, `{"token":"`)
			for line := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, ""},
		"a token server that sends one to the next": {func(w http.ResponseWriter, r *http.Request) {
			if !asks(w, r) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+fmt.Sprintf(`/token/%d"`, n.Add(1))+`,service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		}, "denies access"},
		"an index of an index": {func(w http.ResponseWriter, r *http.Request) {
			index(w, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", Size: 100, Platform: &oursPlatform})
		}, "is not an image"},
		"an index that says it is an image of itself": {func(w http.ResponseWriter, r *http.Request) {
			index(w, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", Size: 300, Platform: &oursPlatform})
		}, "mismatch"},
		"an index of nothing": {func(w http.ResponseWriter, r *http.Request) { index(w) }, "it has none"},
		"a manifest of 5 MiB": {func(w http.ResponseWriter, r *http.Request) {
			data := []byte(`{"schemaVersion":2,"annotations":{"x":"` + strings.Repeat("x", 5<<20) + `"}}`)
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
			_, _ = w.Write(data)
		}, "the limit is"},
	} {
		t.Run(what, func(t *testing.T) {
			var requests atomic.Int64
			host := plainServer(t, func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) > 200 {
					t.Error("it asks without end")
					return
				}
				c.serve(w, r)
			})
			t.Setenv("DOCKER_CONFIG", t.TempDir())
			f := &fetch.Fetcher{Home: t.TempDir(), Idle: 2 * time.Second}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := f.Fetch(ctx, host+"/a/b:1", nil)
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), host) || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000 {
				t.Errorf("after %d requests: %.300q", requests.Load(), err)
			}
			if left, err := os.ReadDir(f.Home + "/images/blobs/sha256"); err == nil && len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

var oursPlatform = ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
