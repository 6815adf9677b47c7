package builder_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/registry/registrytest"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// A watched registry notes what is asked of it, and lets only me:secret in if it
// is private.
type watched struct {
	host    string
	private bool

	mu    sync.Mutex
	asked []string // guarded by mu
	down  bool     // guarded by mu
}

func newWatched(t *testing.T, private bool) *watched {
	t.Helper()
	return watch(t, private, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
}

// newValidating is one that checks what it gets, and shows a manifest to those
// alone who say that they take one.
func newValidating(t *testing.T) *watched {
	t.Helper()
	return watch(t, false, registrytest.Validating(t.Context(), t.TempDir()))
}

func watch(t *testing.T, private bool, inner http.Handler) *watched {
	t.Helper()
	w := &watched{private: private}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		down := w.down
		if u, p, _ := r.BasicAuth(); !w.private || u == "me" && p == "secret" {
			if r.URL.Path != "/v2/" {
				w.asked = append(w.asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v2/"))
			}
		} else {
			rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			rw.WriteHeader(http.StatusUnauthorized)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if down {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		inner.ServeHTTP(rw, r)
	}))
	t.Cleanup(srv.Close)
	w.host = srv.Listener.Addr().String()
	return w
}

func (w *watched) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked
	w.asked = nil
	return asked
}

func (w *watched) fail(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// logins gives this process docker's configuration with logins for hosts.
func logins(t *testing.T, hosts ...string) {
	t.Helper()
	auths := map[string]map[string]string{}
	for _, h := range hosts {
		auths[h] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("me:secret"))}
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	// docker's library looks at the variable once in a process.
	before := config.Dir()
	config.SetDir(dir)
	t.Cleanup(func() { config.SetDir(before) })
}

// push sends an image of the store to names.
func (b *bench) push(ref string, names ...string) {
	b.Helper()
	f := &fetch.Fetcher{Home: b.home}
	for _, n := range names {
		if _, err := f.Push(b.Context(), ref, n); err != nil {
			b.Fatal(err)
		}
	}
}

// multi tags an index of base:1 for both platforms as kitbox.local/multi:1.
func (b *bench) multi() {
	b.Helper()
	s := b.images()
	idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{b.variant("", "ours", oursPlatform), b.variant("", "other", otherPlatform)}}
	idx.SchemaVersion = 2
	root, err := s.PushJSON(b.Context(), ocispec.MediaTypeImageIndex, idx)
	if err == nil {
		err = s.Tag(b.Context(), root, "kitbox.local/multi:1")
	}
	if err != nil {
		b.Fatal(err)
	}
}

// variant tags an image like base:1 with another label.
func (b *bench) variant(name, label string, p ocispec.Platform) ocispec.Descriptor {
	b.Helper()
	s := b.images()
	d, err := s.Resolve(b.Context(), "kitbox.local/base:1")
	if err != nil {
		b.Fatal(err)
	}
	img, err := s.Image(b.Context(), d, ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		b.Fatal(err)
	}
	img.Config.Config.Labels = map[string]string{"variant": label}
	img.Config.Platform = p
	config, err := s.PushJSON(b.Context(), ocispec.MediaTypeImageConfig, img.Config)
	if err != nil {
		b.Fatal(err)
	}
	img.Manifest.Config = config
	desc, err := s.PushJSON(b.Context(), ocispec.MediaTypeImageManifest, img.Manifest)
	if err != nil {
		b.Fatal(err)
	}
	if name != "" {
		if err := s.Tag(b.Context(), desc, name); err != nil {
			b.Fatal(err)
		}
	}
	desc.Platform = &p
	return desc
}

var (
	oursPlatform  = ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	otherPlatform = ocispec.Platform{OS: "linux", Architecture: map[bool]string{true: "amd64", false: "arm64"}[runtime.GOARCH == "arm64"]}
)

// TestImagesOfARecipeComeAsKitsDo covers what a recipe takes of registries: its
// base and what it copies from, behind a login, by way of a mirror that is believed
// about content and not about tags.
func TestImagesOfARecipeComeAsKitsDo(t *testing.T) {
	b := newBench(t)
	origin, copies := newWatched(t, true), newWatched(t, true)
	logins(t, origin.host, copies.host)
	b.variant("kitbox.local/lie:1", "lie", oursPlatform)
	b.push("kitbox.local/base:1", origin.host+"/library/base:1", origin.host+"/library/tool:2", copies.host+"/hub/library/base:0", copies.host+"/hub/library/tool:0")
	b.push("kitbox.local/lie:1", copies.host+"/hub/library/base:1", copies.host+"/hub/library/tool:2")
	mirrors := fmt.Sprintf(`{"version":1,"mirrors":{%q:[{"host":"127.0.0.1:1"},{"host":%q,"prefix":"hub"}]}}`, origin.host, copies.host)
	if err := os.WriteFile(filepath.Join(b.home, "registries.json"), []byte(mirrors), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(b.home, "images")); err != nil {
		t.Fatal(err)
	}
	origin.take()
	copies.take()
	dir := b.kit(map[string]string{"hello.yaml": workload, "note.txt": "n",
		"hello.dockerfile": "ARG FROM=" + origin.host + "/library/base\nFROM scratch AS unused\nCOPY --from=" + origin.host + "/library/none:1 /x /x\nFROM ${FROM}:1\n" +
			"COPY --from=" + origin.host + "/library/tool:2 /etc/passwd /tool\nCMD [\"/bin/sh\"]\n"})
	r := builder.Request{Context: dir}
	// BuildKit by itself, as it serves stock clients, has the same mirrors and
	// logins.
	watch := func(how string) {
		t.Helper()
		for _, a := range origin.take() {
			if !strings.HasPrefix(a, "HEAD ") || !strings.Contains(a, "/manifests/") {
				t.Errorf("%s: the registry was asked %s and has a mirror", how, a)
			}
		}
		// The two names have one content, which comes once, by either.
		if got := copies.take(); !slices.ContainsFunc(got, func(a string) bool {
			return strings.HasPrefix(a, "GET hub/library/base/blobs/") || strings.HasPrefix(a, "GET hub/library/tool/blobs/")
		}) {
			t.Errorf("%s: the mirror was asked %v", how, got)
		}
	}
	stock, _, err := builder.SolveBy(t.Context(), builder.Request{Home: b.home, Context: dir}, frontend.BuiltinSource, nil)
	if err != nil {
		t.Fatal(err)
	}
	watch("a stock client")
	first := b.mustBuild(r)
	if got := b.image(first).Config.Config.Labels; got["base"] != "1" {
		t.Errorf("labels %v: a mirror decided about a tag", got)
	}
	var names []string
	for _, u := range first.Bases {
		names = append(names, strings.TrimPrefix(u.Ref, origin.host))
	}
	if !slices.Equal(names, []string{"/library/base:1", "/library/tool:2"}) {
		t.Errorf("bases %v", first.Bases)
	}
	watch("kitbox")
	if first.Digest != stock {
		t.Errorf("%s, and by a stock client %s", first.Digest, stock)
	}
	if err := os.WriteFile(filepath.Join(b.home, "registries.json"), []byte(`{"version":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.build(r); err == nil || !strings.Contains(err.Error(), "registries.json") {
		t.Errorf("a configuration of the future: %v", err)
	}
}

// TestThePullPolicyHoldsForImagesOfARecipe moves a base and takes its registry
// away.
func TestThePullPolicyHoldsForImagesOfARecipe(t *testing.T) {
	b := newBench(t)
	origin := newWatched(t, false)
	ref := origin.host + "/library/base:1"
	b.variant("kitbox.local/new:1", "new", oursPlatform)
	b.push("kitbox.local/base:1", ref)
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM " + ref + "\nCMD [\"/bin/sh\"]\n"})
	build := func(p fetch.Policy) (*builder.Result, error) { return b.build(builder.Request{Context: dir, Pull: p}) }

	_, err := build(fetch.Never)
	if f := builder.AsFailure(err); err == nil || f.File != "hello.dockerfile" || f.Line != 1 || !strings.Contains(f.Message, ref) || !strings.Contains(f.Message, "--pull never") {
		t.Errorf("never, with nothing there: %+v", f)
	}
	origin.take()
	old, err := build(fetch.Missing)
	if err != nil {
		t.Fatal(err)
	}
	b.push("kitbox.local/new:1", ref)
	origin.take()
	for _, p := range []fetch.Policy{fetch.Missing, fetch.Never} {
		if res, err := build(p); err != nil || res.Digest != old.Digest || len(origin.take()) > 0 {
			t.Errorf("%s, with all there: %+v, %v", p, res, err)
		}
	}
	moved, err := build(fetch.Always)
	if err != nil || moved.Digest == old.Digest || b.image(moved).Config.Config.Labels["variant"] != "new" {
		t.Errorf("always, of a tag that moved: %+v, %v", moved, err)
	}
	origin.take()
	if again, err := build(""); err != nil || again.Digest != moved.Digest {
		t.Errorf("once more: %+v, %v", again, err)
	}
	if got := origin.take(); !slices.Equal(got, []string{"HEAD library/base/manifests/1"}) {
		t.Errorf("a build of what is there asked %v", got)
	}
	origin.fail(true)
	if _, err := build(fetch.Always); err == nil || !strings.Contains(err.Error(), "--pull missing") {
		t.Errorf("always, and the registry does not have it: %v", err)
	}
	if _, err := build("often"); err == nil || !strings.Contains(err.Error(), "often") {
		t.Errorf("a policy that there is not: %v", err)
	}
}

// TestSeveralPlatforms makes an index of a Kit whose steps run here, and refuses
// what no builder without an emulator can do.
func TestSeveralPlatforms(t *testing.T) {
	b := newBench(t)
	origin := newWatched(t, false)
	multi := origin.host + "/library/multi:1"
	b.multi()
	b.push("kitbox.local/multi:1", multi)
	both := "linux/" + otherPlatform.Architecture + ",linux/" + oursPlatform.Architecture
	const mixin = "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"hello@1.0.0\"]\n"

	for name, c := range map[string]struct {
		descriptor, recipe string
		line               int
		refused            string // in the message; empty: it is built
	}{
		"declarations":          {descriptor: mixin},
		"a scratch mixin":       {descriptor: mixin, recipe: "FROM scratch\nCOPY note.txt /opt/note\n"},
		"a base of a registry":  {descriptor: workload, recipe: "FROM " + multi + "\nCOPY note.txt /note\nCMD [\"/bin/sh\"]\n"},
		"a base of the store":   {descriptor: workload, recipe: "FROM kitbox.local/multi:1\nCOPY note.txt /note\nCMD [\"/bin/sh\"]\n"},
		"steps on this machine": {descriptor: mixin, recipe: "FROM --platform=$BUILDPLATFORM kitbox.local/base:1 AS make\nUSER root\nARG TARGETARCH\nRUN mkdir /out && echo $TARGETARCH >/out/arch\nFROM scratch\nCOPY --from=make /out /opt\n"},
		"an unused stage":       {descriptor: mixin, recipe: "FROM kitbox.local/multi:1 AS test\nRUN true\nFROM scratch\nCOPY note.txt /opt/note\n"},
		"steps elsewhere":       {workload, "FROM kitbox.local/multi:1\nUSER root\nRUN true\nCMD [\"/bin/sh\"]\n", 3, "emulator"},
		"steps of a base":       {mixin, "FROM kitbox.local/multi:1 AS one\nFROM one AS two\nRUN true\nFROM scratch\nCOPY --from=two /etc /etc\n", 3, "emulator"},
		"a base for one":        {workload, "FROM kitbox.local/base:1\nCMD [\"/bin/sh\"]\n", 1, "is for linux/" + runtime.GOARCH},
		"inline":                {workload + "build: |\n  FROM kitbox.local/multi:1\n  RUN true\n  CMD [\"sh\"]\n", "", 8, "emulator"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			files := map[string]string{"hello.yaml": c.descriptor, "note.txt": "n"}
			if c.recipe != "" {
				files["hello.dockerfile"] = c.recipe
			}
			res, err := b.build(builder.Request{Context: b.kit(files), Platform: both, Tag: "kitbox.local/many:1"})
			if c.refused != "" {
				if f := builder.AsFailure(err); err == nil || !strings.Contains(f.Error(), c.refused) || f.Line != c.line {
					t.Errorf("%+v, %+v", res, f)
				}
				return
			}
			if err != nil {
				t.Fatalf("%+v", builder.AsFailure(err))
			}
			var got ocispec.Index
			b.document(res.Digest, &got)
			var ps []string
			for _, m := range got.Manifests {
				ps = append(ps, m.Platform.Architecture)
			}
			slices.Sort(ps)
			if !slices.Equal(ps, []string{"amd64", "arm64"}) {
				t.Errorf("platforms %v", ps)
			}
			var out strings.Builder
			if code := artifact.Validate(t.Context(), []string{"kitbox.local/many:1", "--layout", b.images().Dir()}, &out, &out); code != 0 {
				t.Errorf("the judge: %d\n%s", code, &out)
			}
			if name == "steps on this machine" {
				contents := map[string]bool{}
				for _, m := range got.Manifests {
					img, err := b.images().Image(t.Context(), m, *m.Platform)
					if err != nil {
						t.Fatal(err)
					}
					contents[strings.TrimSpace(b.file(img, "/opt/arch"))] = true
				}
				if !contents["amd64"] || !contents["arm64"] {
					t.Errorf("made for %v", contents)
				}
			}
		})
	}
	if _, err := b.build(builder.Request{Context: b.kit(map[string]string{"hello.yaml": mixin}), Platform: "linux/amd64,arm"}); err == nil || !strings.Contains(err.Error(), `"arm"`) {
		t.Errorf("no platform: %v", err)
	}
}
