package fetch_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A witness writes requests down.
type witness struct {
	mu  sync.Mutex
	log []string
}

func (w *witness) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		kind := "other"
		for _, k := range []string{"manifests", "blobs"} {
			if strings.Contains(r.URL.Path, "/"+k+"/") {
				kind = k
			}
		}
		w.log = append(w.log, r.Method+" "+kind)
		w.mu.Unlock()
		h.ServeHTTP(rw, r)
	})
}

// take returns what was asked since the last time.
func (w *witness) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := strings.Join(w.log, ", ")
	w.log = nil
	return s
}

func TestLookingReadsOneDocument(t *testing.T) {
	for name, serve := range map[string]func(*testing.T, func(http.Handler) http.Handler) string{"lenient": serve, "strict": strict} {
		t.Run(name, func(t *testing.T) {
			w := &witness{}
			host := serve(t, w.wrap)
			f := setup(t)
			root := twoPlatforms(t, f.images, "kitbox.local/two:1")
			one := kitImage(t, f.images, "one")
			for ref, d := range map[string]string{host + "/kits/two:1": root.Digest.String(), host + "/kits/one:1": one.Digest.String()} {
				if _, err := f.Push(t.Context(), d, ref); err != nil {
					t.Fatal(err)
				}
			}
			other := &fetch.Fetcher{Home: t.TempDir()}
			w.take()
			head, err := other.Preflight(t.Context(), host+"/kits/one:1")
			if got := w.take(); err != nil || head.Root.Digest != one.Digest || string(head.Descriptor) != "one" || got != "GET manifests" {
				t.Errorf("%+v, %v, after %s", head, err, got)
			}
			// This index does not carry the descriptor, so that one manifest has to be read too.
			head, err = other.Preflight(t.Context(), host+"/kits/two:1")
			if got := w.take(); err != nil || head.Root.Digest != root.Digest || got != "GET manifests, GET manifests" {
				t.Errorf("%+v, %v, after %s", head, err, got)
			}
			if _, err := other.Preflight(t.Context(), host+"/kits/none:1"); !errors.Is(err, kiterr.ErrNotFound) {
				t.Error(err)
			}
			w.take()
			// What a composition needs is the config too, and no layer.
			if _, err := other.Fetch(t.Context(), host+"/kits/one:1", nil); err != nil {
				t.Fatal(err)
			}
			if got := w.take(); got != "GET manifests, GET blobs" {
				t.Errorf("fetching asks %s", got)
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	w := &witness{}
	host := strict(t, w.wrap)
	f := setup(t)
	first, second := kitImage(t, f.images, "first"), kitImage(t, f.images, "second")
	ref := host + "/kits/a:1"
	publish := func(d ocispec.Descriptor) {
		t.Helper()
		if _, err := f.Push(t.Context(), d.Digest.String(), ref); err != nil {
			t.Fatal(err)
		}
		w.take()
	}
	publish(first)
	var notes []string
	other := &fetch.Fetcher{Home: t.TempDir(), Policy: fetch.Never, Notice: func(s string) { notes = append(notes, s) }}
	get := func(p fetch.Policy, ref string) (*fetch.Kit, string) {
		t.Helper()
		other.Policy = p
		kit, err := other.Fetch(t.Context(), ref, nil)
		if err != nil {
			t.Fatalf("%s %s: %v", p, ref, err)
		}
		if err := other.Pull(t.Context(), kit); err != nil {
			t.Fatalf("%s %s: %v", p, ref, err)
		}
		return kit, w.take()
	}
	if _, err := other.Fetch(t.Context(), ref, nil); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "kitbox pull "+ref) || w.take() != "" {
		t.Errorf("never: %v", err)
	}
	if kit, asked := get(fetch.Missing, ref); kit.Root != first.Digest || !strings.HasPrefix(asked, "GET manifests, GET blobs") {
		t.Errorf("missing, and not there: %+v after %s", kit, asked)
	}
	if !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, ref+" is "+first.Digest.String()) }) {
		t.Errorf("nobody was told: %q", notes)
	}
	for _, p := range []fetch.Policy{"", fetch.Missing, fetch.Never} {
		if kit, asked := get(p, ref); kit.Root != first.Digest || asked != "" {
			t.Errorf("%s, and there: %+v after %s", p, kit, asked)
		}
	}
	if kit, asked := get(fetch.Always, ref); kit.Root != first.Digest || asked != "HEAD manifests" || kit.Source != fetch.Store {
		t.Errorf("always, unchanged: %+v after %s", kit, asked)
	}
	publish(second)
	if kit, asked := get(fetch.Missing, ref); kit.Root != first.Digest || asked != "" {
		t.Errorf("missing, moved: %+v after %s", kit, asked)
	}
	notes = nil
	if kit, asked := get(fetch.Always, ref); kit.Root != second.Digest || strings.Count(asked, "GET manifests") != 1 {
		t.Errorf("always, moved: %+v after %s", kit, asked)
	}
	if !slices.ContainsFunc(notes, func(s string) bool {
		return strings.Contains(s, "is now "+second.Digest.String()+", and was "+first.Digest.String())
	}) {
		t.Errorf("nobody was told: %q", notes)
	}
	// A digest is what it is.
	if kit, asked := get(fetch.Always, host+"/kits/a@"+first.Digest.String()); kit.Root != first.Digest || asked != "" {
		t.Errorf("always, by digest: %+v after %s", kit, asked)
	}
	// A registry that is gone is no reason to go on with what was there.
	gone := "127.0.0.1:1/kits/a:1"
	if err := f.images.Tag(t.Context(), second, gone); err != nil {
		t.Fatal(err)
	}
	for p, fails := range map[fetch.Policy]bool{fetch.Always: true, fetch.Missing: false, fetch.Never: false} {
		f.Policy = p
		if _, err := f.Fetch(t.Context(), gone, nil); (err != nil) != fails || fails && (!strings.Contains(err.Error(), "--pull missing takes") || strings.Contains(err.Error(), "local store")) {
			t.Errorf("%s, and the registry is gone: %v", p, err)
		}
	}
}

func TestMirrors(t *testing.T) {
	f := setup(t)
	good, lie := kitImage(t, f.images, "good"), kitImage(t, f.images, "lie")
	var origin, copied witness
	broken := false
	host := strict(t, origin.wrap)
	mirror := serve(t, func(h http.Handler) http.Handler {
		return copied.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if broken && r.Method == http.MethodGet {
				w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				fmt.Fprint(w, strings.Repeat("x", int(good.Size)))
				return
			}
			h.ServeHTTP(w, r)
		}))
	})
	if _, err := f.Push(t.Context(), good.Digest.String(), host+"/kits/a:1"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []ocispec.Descriptor{good, lie} { // the tag is another one there
		if _, err := f.Push(t.Context(), d.Digest.String(), mirror+"/hub/kits/a:1"); err != nil {
			t.Fatal(err)
		}
	}
	fresh := func(tags bool) *fetch.Fetcher {
		home := t.TempDir()
		text := fmt.Sprintf(`{"version":1,"mirrors":{%q:[{"host":"127.0.0.1:1"},{"host":%q,"prefix":"hub","tags":%t}]}}`, host, mirror, tags)
		if err := os.WriteFile(filepath.Join(home, "registries.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		origin.take()
		copied.take()
		return &fetch.Fetcher{Home: home}
	}
	pull := func(o *fetch.Fetcher) *fetch.Kit {
		t.Helper()
		kit, err := o.Fetch(t.Context(), host+"/kits/a:1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Pull(t.Context(), kit); err != nil {
			t.Fatal(err)
		}
		return kit
	}
	if kit := pull(fresh(false)); kit.Root != good.Digest {
		t.Errorf("a mirror decided about a tag: %s", kit.Root)
	}
	if o, c := origin.take(), copied.take(); o != "HEAD manifests" || c != "GET manifests, GET blobs, GET blobs" {
		t.Errorf("the registry was asked %s and the mirror %s", o, c)
	}
	if kit := pull(fresh(true)); kit.Root != lie.Digest {
		t.Errorf("a mirror that is believed: %s", kit.Root)
	}
	if o := origin.take(); o != "" {
		t.Errorf("the registry was asked %s", o)
	}
	broken = true
	if kit := pull(fresh(false)); kit.Root != good.Digest {
		t.Errorf("a mirror that lies: %s", kit.Root)
	}
	bad := &fetch.Fetcher{Home: t.TempDir()}
	if err := os.WriteFile(filepath.Join(bad.Home, "registries.json"), []byte(`{"version":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Fetch(t.Context(), host+"/kits/a:1", nil); err == nil || !strings.Contains(err.Error(), "registries.json") {
		t.Errorf("a configuration of the future: %v", err)
	}
}

// TestACredentialHelperIsAsked uses a program as docker's helpers are.
func TestACredentialHelperIsAsked(t *testing.T) {
	host := strict(t, bearer)
	bin := t.TempDir()
	script := "#!/bin/sh\nread -r server\necho \"$1 $server\" >>" + bin + "/asked\nif [ \"$server\" = " + host + " ]; then echo '{\"ServerURL\":\"\",\"Username\":\"me\",\"Secret\":\"secret\"}'; else echo 'credentials not found in native keychain'; exit 1; fi\n"
	if err := errors.Join(
		os.WriteFile(filepath.Join(bin, "docker-credential-kitboxtest"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(`{"credHelpers":{"`+host+`":"kitboxtest"},"auths":{"other.example":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("not:this"))+`"}}}`), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	f := setup(t)
	d := kitImage(t, f.images, "x")
	if _, err := f.Push(t.Context(), d.Digest.String(), host+"/kits/a:1"); err != nil {
		t.Fatal(err)
	}
	other := &fetch.Fetcher{Home: t.TempDir()}
	if got, err := other.PullImage(t.Context(), host+"/kits/a:1"); err != nil || got.Digest != d.Digest {
		t.Errorf("%v, %v", got, err)
	}
	asked, err := os.ReadFile(filepath.Join(bin, "asked"))
	if err != nil || !strings.Contains(string(asked), "get "+host) || strings.Contains(string(asked), "other.example") {
		t.Errorf("the helper was asked %q, %v", asked, err)
	}
}

func TestAnotherPlatformIsPulled(t *testing.T) {
	host := strict(t, nil)
	f := setup(t)
	root := twoPlatforms(t, f.images, "kitbox.local/two:1")
	if _, err := f.Push(t.Context(), "kitbox.local/two:1", host+"/kits/two:1"); err != nil {
		t.Fatal(err)
	}
	other := &fetch.Fetcher{Home: t.TempDir(), Platform: ocispec.Platform{OS: "linux", Architecture: "other"}}
	if d, err := other.PullImage(t.Context(), host+"/kits/two:1"); err != nil || d.Digest != root.Digest {
		t.Fatal(d, err)
	}
	there, err := other.Fetch(t.Context(), host+"/kits/two:1", nil)
	if err != nil || there.Source != fetch.Store || there.Config.Architecture != "other" {
		t.Errorf("%+v, %v", there, err)
	}
	// The index is there, and of it another platform is not.
	here := &fetch.Fetcher{Home: other.Home}
	kit, err := here.Fetch(t.Context(), host+"/kits/two:1", nil)
	if err != nil || kit.Source != fetch.Registry {
		t.Fatalf("%+v, %v", kit, err)
	}
	if err := here.Pull(t.Context(), kit); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Push(t.Context(), host+"/kits/two:1", host+"/kits/again:1"); err != nil {
		t.Errorf("both platforms are there: %v", err)
	}
	strange := &fetch.Fetcher{Home: t.TempDir(), Platform: ocispec.Platform{OS: "linux", Architecture: "strange"}}
	if _, err := strange.PullImage(t.Context(), host+"/kits/two:1"); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "linux/other") {
		t.Errorf("a platform that there is not: %v", err)
	}
}
