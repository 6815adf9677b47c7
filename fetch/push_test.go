package fetch_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/registry/registrytest"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// strict is a registry that validates what it is sent.
func strict(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registrytest.Validating(t.Context(), t.TempDir())
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	return strings.TrimPrefix(s.URL, "http://")
}

func login(t *testing.T, host, user, password string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// basic lets only me:secret through.
func basic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != "me" || p != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// bearer lets only tokens through that it gave me:secret for the repository and
// the action.
func bearer(h http.Handler) http.Handler {
	var mu sync.Mutex
	scopes := map[string][]string{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/token" {
			if u, p, ok := r.BasicAuth(); !ok || u != "me" || p != "secret" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			token := rand.Text()
			scopes[token] = r.URL.Query()["scope"]
			json.NewEncoder(w).Encode(map[string]string{"token": token})
			return
		}
		repo := ""
		for _, sep := range []string{"/manifests/", "/blobs/"} {
			if before, _, ok := strings.Cut(r.URL.Path, sep); ok {
				repo = strings.TrimPrefix(before, "/v2/")
			}
		}
		action := "pull"
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			action = "push"
		}
		// A mount reads another repository.
		from := r.URL.Query().Get("from")
		allowed, reads := false, from == ""
		for _, s := range scopes[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] {
			for one := range strings.SplitSeq(s, " ") {
				if rest, ok := strings.CutPrefix(one, "repository:"+repo+":"); ok && strings.Contains(rest, action) {
					allowed = true
				}
				if rest, ok := strings.CutPrefix(one, "repository:"+from+":"); ok && strings.Contains(rest, "pull") {
					reads = true
				}
			}
		}
		if !allowed || !reads {
			scope := "repository:" + repo + ":pull"
			if action == "push" {
				scope += ",push"
			}
			if from != "" {
				scope += " repository:" + from + ":pull"
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test",scope="`+scope+`"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization")
		h.ServeHTTP(w, r)
	})
}

// twoPlatforms stores an index of two images under tag.
func twoPlatforms(t *testing.T, s *layout.Store, tag string) ocispec.Descriptor {
	t.Helper()
	var idx ocispec.Index
	idx.Versioned, idx.MediaType = specs.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageIndex
	host := layout.HostPlatform()
	for _, p := range []ocispec.Platform{host, {OS: "linux", Architecture: "other"}} {
		d, err := image(s, tag+p.Architecture, asKit, p)
		if err != nil {
			t.Fatal(err)
		}
		d.Platform = &p
		idx.Manifests = append(idx.Manifests, d)
	}
	root, err := s.PushJSON(t.Context(), ocispec.MediaTypeImageIndex, idx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(t.Context(), root, tag); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestPushAndPull(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(*testing.T, func(http.Handler) http.Handler) string
		guard func(http.Handler) http.Handler
	}{
		"lenient": {serve, nil}, "lenient, basic": {serve, basic}, "lenient, bearer": {serve, bearer},
		"strict": {strict, nil}, "strict, basic": {strict, basic}, "strict, bearer": {strict, bearer},
	} {
		t.Run(name, func(t *testing.T) {
			var uploads atomic.Int32
			host := c.serve(t, func(h http.Handler) http.Handler {
				if c.guard != nil {
					h = c.guard(h)
				}
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/uploads/") {
						uploads.Add(1)
					}
					h.ServeHTTP(w, r)
				})
			})
			f := setup(t)
			root := twoPlatforms(t, f.images, "kitbox.local/two:1")
			if c.guard != nil {
				_, err := f.Push(t.Context(), "kitbox.local/two:1", host+"/kits/two:1")
				if err == nil || !strings.Contains(err.Error(), "docker login "+host) || strings.Contains(err.Error(), "\n") {
					t.Errorf("without a login: %v", err)
				}
				login(t, host, "me", "secret")
			}
			if d, err := f.Push(t.Context(), "kitbox.local/two:1", host+"/kits/two:1"); err != nil || d != root.Digest {
				t.Fatalf("Push = %s, %v", d, err)
			}
			if n := uploads.Load(); n < 4 {
				t.Errorf("%d uploads", n)
			}
			uploads.Store(0)
			if _, err := f.Push(t.Context(), root.Digest.String(), host+"/kits/two"); err != nil {
				t.Fatal(err)
			}
			if n := uploads.Load(); n > 0 {
				t.Errorf("%d uploads of what is there", n)
			}

			other := &fetch.Fetcher{Home: t.TempDir()}
			for range 2 { // the second finds everything there
				if d, err := other.PullImage(t.Context(), host+"/kits/two:1"); err != nil || d.Digest != root.Digest {
					t.Fatalf("PullImage = %v, %v", d, err)
				}
			}
			kit, err := other.Fetch(t.Context(), host+"/kits/two:1", nil)
			if err != nil || kit.Source != fetch.Store {
				t.Fatalf("%+v, %v", kit, err)
			}
			// It has one platform's and must not push half an index.
			if _, err := other.Push(t.Context(), host+"/kits/two:1", host+"/kits/half:1"); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "one platform") {
				t.Errorf("pushing half of it: %v", err)
			}
			if _, err := other.PullImage(t.Context(), host+"/kits/half:1"); !errors.Is(err, kiterr.ErrNotFound) {
				t.Errorf("half an image has a name: %v", err)
			}
		})
	}
}

// TestASetsLayersAreMounted pushes a set of whose layers the store has none.
func TestASetsLayersAreMounted(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(*testing.T, func(http.Handler) http.Handler) string
		guard func(http.Handler) http.Handler
	}{"lenient": {serve, nil}, "strict": {strict, nil}, "strict, basic": {strict, basic}, "strict, bearer": {strict, bearer}} {
		t.Run(name, func(t *testing.T) {
			var sent, read atomic.Int64
			var watched atomic.Value // the layer, once it is known
			watched.Store("none")
			host := c.serve(t, func(h http.Handler) http.Handler {
				if c.guard != nil {
					h = c.guard(h)
				}
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodGet && r.Header.Get("Authorization") == "" == (c.guard == nil) && strings.HasSuffix(r.URL.Path, watched.Load().(string)) {
						read.Add(1)
					}
					if r.Method == http.MethodPut && strings.Contains(r.URL.RawQuery, watched.Load().(string)) {
						sent.Add(1)
					}
					h.ServeHTTP(w, r)
				})
			})
			if c.guard != nil {
				login(t, host, "me", "secret")
			}
			f := setup(t)
			member := kitImage(t, f.images, "member")
			if _, err := f.Push(t.Context(), member.Digest.String(), host+"/kits/member:1"); err != nil {
				t.Fatal(err)
			}
			img, err := f.images.Image(t.Context(), member, layout.HostPlatform())
			if err != nil {
				t.Fatal(err)
			}
			layer := img.Manifest.Layers[0].Digest
			watched.Store(layer.Encoded())
			img.Manifest.Annotations = map[string]string{fetch.Annotation: `{"kits":[{"ref":"` + host + `/kits/member:1"}]}`}
			set, err := f.images.PushJSON(t.Context(), ocispec.MediaTypeImageManifest, img.Manifest)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.images.Tag(t.Context(), set, "kitbox.local/set:1"); err != nil {
				t.Fatal(err)
			}
			forgotten := f.forget(layer)
			if _, err := f.Push(t.Context(), "kitbox.local/set:1", host+"/kits/set:1"); err != nil {
				t.Fatal(err)
			}
			if read.Load()+sent.Load() > 0 {
				t.Errorf("the layer was read %d times and sent %d times", read.Load(), sent.Load())
			}
			// What runs it gets the layer from its Kit.
			kit, err := f.Fetch(t.Context(), "kitbox.local/set:1", nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Pull(t.Context(), kit); err != nil || read.Load() != 1 {
				t.Errorf("%v, read %d times", err, read.Load())
			}
			if _, err := os.Stat(forgotten); err != nil {
				t.Error(err)
			}
		})
	}
}

// A trusting registry believes what it is sent, whole or not, mounts nothing, and
// serves lies about what the repository kits/member has.
type trusting struct {
	lie func([]byte) []byte

	blobs map[string][]byte // of kits/member, by digest

	mu        sync.Mutex
	sent      map[string][]byte // guarded by mu; by digest
	manifests []string          // guarded by mu; where some were put
}

func (s *trusting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ref := path.Split(r.URL.Path)
	switch data, have := s.blobs[ref]; {
	case r.Method == http.MethodPost:
		w.Header().Set("Location", "/upload")
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPut && strings.HasSuffix(at, "/manifests/"):
		s.manifests = append(s.manifests, r.URL.Path)
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut:
		s.sent[r.URL.Query().Get("digest")], _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
	case !have || at != "/v2/kits/member/blobs/":
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("Docker-Content-Digest", ref)
		size := len(data)
		if r.Method == http.MethodGet {
			data = s.lie(data)
		}
		if len(data) == size { // another is not even begun with
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		_, _ = w.Write(data)
	}
}

// TestALyingOriginPublishesNothing sends a set's layer from one registry to
// another that believes anything, and within one that does not mount.
func TestALyingOriginPublishesNothing(t *testing.T) {
	text := strings.Repeat("a layer of a Kit\n", 10_000)
	for what, c := range map[string]struct {
		lie  func([]byte) []byte
		want string
	}{
		"the truth": {func(b []byte) []byte { return b }, ""},
		"another":   {func(b []byte) []byte { return append([]byte("X"), b[1:]...) }, "is something else"},
		"another end": {func(b []byte) []byte {
			return append(slices.Clone(b[:len(b)-1]), 'X')
		}, "is something else"},
		"a longer one": {func(b []byte) []byte { return append(slices.Clone(b), "and more"...) }, "has more than the 170000 bytes"},
	} {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, same registry %t", what, same), func(t *testing.T) {
				layer := digest.FromString(text)
				origin := &trusting{lie: c.lie, blobs: map[string][]byte{layer.String(): []byte(text)}, sent: map[string][]byte{}}
				from := plainServer(t, origin.ServeHTTP)
				target, to := origin, from
				if !same {
					target = &trusting{sent: map[string][]byte{}}
					to = plainServer(t, target.ServeHTTP)
				}
				t.Setenv("DOCKER_CONFIG", t.TempDir())
				f := setup(t)
				set, err := image(f.images, text, map[string]string{fetch.Annotation: `{"kits":[{"ref":"` + from + `/kits/member:1"}]}`}, layout.HostPlatform())
				if err != nil {
					t.Fatal(err)
				}
				f.forget(layer)
				_, err = f.Push(t.Context(), set.Digest.String(), to+"/kits/set:1")
				target.mu.Lock()
				defer target.mu.Unlock()
				if c.want == "" {
					if err != nil || len(target.manifests) != 1 || string(target.sent[layer.String()]) != text {
						t.Errorf("%v, manifests %v", err, target.manifests)
					}
					return
				}
				if !errors.Is(err, kiterr.ErrRefused) || !strings.HasPrefix(err.Error(), "pushing "+to+"/kits/set:1: blob "+layer.String()+": what "+from+"/kits/member has of it "+c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				if got := target.sent[layer.String()]; len(target.manifests) > 0 || len(got) >= len(text) {
					t.Errorf("manifests %v, %d bytes of the layer", target.manifests, len(got))
				}
			})
		}
	}
}

func TestPushesThatCannotBe(t *testing.T) {
	host := serve(t, nil)
	f := setup(t)
	d := kitImage(t, f.images, "x")
	if err := f.images.Tag(t.Context(), d, "kitbox.local/x:1"); err != nil {
		t.Fatal(err)
	}
	other := digest.FromString("other").String()
	for _, c := range []struct {
		ref, target, want string
		family            error
	}{
		{"kitbox.local/none:1", host + "/a:1", "'kitbox images' lists", kiterr.ErrNotFound},
		{"kitbox.local/x:1", "kitbox.local/x:1", "names no registry", kiterr.ErrRefused},
		{"kitbox.local/x:1", "x:1", "names no registry", kiterr.ErrRefused},
		{"kitbox.local/x:1", host + "/A:1", "not a valid reference", kiterr.ErrRefused},
		{"kitbox.local/x:1", host + "/a@" + other, "another digest", kiterr.ErrRefused},
		{"kitbox.local/x:1", "127.0.0.1:1/a:1", "cannot be reached", nil},
	} {
		_, err := f.Push(t.Context(), c.ref, c.target)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.family != nil && !errors.Is(err, c.family) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s as %s: %v", c.ref, c.target, err)
		}
	}
}

// TestEveryPlatformsDescriptorIsJudged before a push, also of an index that says
// nothing itself and has nothing for this machine, and in YAML too.
func TestEveryPlatformsDescriptorIsJudged(t *testing.T) {
	f := setup(t)
	host := strict(t, nil)
	pin := digest.FromString("x").String()
	for listed, want := range map[string]string{
		"kitbox.local/a:1":   "only this machine has",
		host + "/kits/set:1": "would be in itself",
		"../a":               "a local path",
	} {
		for form, text := range map[string]string{
			"JSON": `{"kits":[{"ref":"` + listed + `","digest":"` + pin + `"}]}`,
			"YAML": "schemaVersion: \"3\"\nkind: mixin\nprovides: [x@1]\nkits:\n- ref: " + listed + "\n  digest: " + pin + "\n",
		} {
			if form == "YAML" && want == "a local path" {
				continue // it is no descriptor then
			}
			plain, err := image(f.images, "one"+form, map[string]string{fetch.Annotation: `{"schemaVersion":"3","kind":"mixin","provides":["x@1"]}`}, ocispec.Platform{OS: "linux", Architecture: "another"})
			if err != nil {
				t.Fatal(err)
			}
			set, err := image(f.images, "two"+form, map[string]string{fetch.Annotation: text}, ocispec.Platform{OS: "linux", Architecture: "other"})
			if err != nil {
				t.Fatal(err)
			}
			root, err := f.images.PushJSON(t.Context(), ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{plain, set}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Push(t.Context(), root.Digest.String(), host+"/kits/set:1")
			if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in %s: %v", listed, form, err)
			}
		}
	}
}
