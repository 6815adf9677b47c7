package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/registry"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// A client is a sandbox with a server of its own.
type client struct {
	t      *testing.T
	images *layout.Store
	http   *http.Client

	mu  sync.Mutex
	log []registry.Access // guarded by mu
}

func store(t *testing.T) *layout.Store {
	t.Helper()
	s, err := layout.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ledgerOf is where the server of a sandbox remembers what was pushed.
func ledgerOf(images *layout.Store, owner string) string {
	return filepath.Join(filepath.Dir(images.Dir()), "pushed", owner+".jsonl")
}

func sandboxOf(t *testing.T, images *layout.Store, owner string, quota int64) *client {
	t.Helper()
	c := &client{t: t, images: images}
	s, err := registry.New(registry.Options{Images: images, Owner: owner, Quota: quota, Ledger: ledgerOf(images, owner), Log: func(a registry.Access) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.log = append(c.log, a)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.Take(conn, false)
		}
	})
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", ln.Addr().String())
	}}
	c.http = &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		ln.Close()
		s.Close()
		done.Wait()
		if left, err := filepath.Glob(filepath.Join(images.Dir(), "ingest", "*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return c
}

func (c *client) ref(s string) name.Reference {
	c.t.Helper()
	r, err := name.ParseReference("registry.kitbox.internal/"+s, name.Insecure)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *client) push(s string, im v1.Image) error {
	return remote.Write(c.ref(s), im, remote.WithTransport(c.http.Transport))
}

func (c *client) pull(s string) (v1.Image, error) {
	return remote.Image(c.ref(s), remote.WithTransport(c.http.Transport))
}

// do sends one request as it is written.
func (c *client) do(method, path, typ string, body io.Reader) (int, string, http.Header) {
	c.t.Helper()
	req, err := http.NewRequest(method, "http://registry.kitbox.internal/v2/x", body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.URL.Opaque = path
	if typ != "" {
		req.Header.Set("Content-Type", typ)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

const descriptor = `{"schemaVersion":"3","kind":"mixin","displayName":"Test"}`

// image is a random one; with text it is a Kit.
func image(t *testing.T, text string) v1.Image {
	t.Helper()
	im, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	p := layout.HostPlatform()
	cf.OS, cf.Architecture = p.OS, p.Architecture
	if im, err = mutate.ConfigFile(im, cf); err != nil {
		t.Fatal(err)
	}
	im = mutate.MediaType(mutate.ConfigMediaType(im, types.OCIConfigJSON), types.OCIManifestSchema1)
	if text == "" {
		return im
	}
	return mutate.Annotations(im, map[string]string{fetch.Annotation: text}).(v1.Image)
}

// offer puts im into the store as the operator does.
func offer(t *testing.T, images *layout.Store, im v1.Image, ref string) {
	t.Helper()
	ctx := context.Background()
	raw, err := im.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := images.PushBytes(ctx, "", raw); err != nil {
		t.Fatal(err)
	}
	layers, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(rc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := images.PushBytes(ctx, "", b); err != nil {
			t.Fatal(err)
		}
	}
	if raw, err = im.RawManifest(); err != nil {
		t.Fatal(err)
	}
	desc, err := images.PushBytes(ctx, string(types.OCIManifestSchema1), raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Tag(ctx, desc, ref); err != nil {
		t.Fatal(err)
	}
}

func digestOf(t *testing.T, im v1.Image) string {
	t.Helper()
	d, err := im.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func layerOf(t *testing.T, im v1.Image) string {
	t.Helper()
	ls, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := ls[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func same(t *testing.T, c *client, ref string, want v1.Image) {
	t.Helper()
	got, err := c.pull(ref)
	if err != nil {
		t.Errorf("%s: %v", ref, err)
		return
	}
	if digestOf(t, got) != digestOf(t, want) {
		t.Errorf("%s is another image", ref)
	}
	layers, err := got.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed() // verified while it is read
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, rc); err != nil {
			t.Errorf("%s: layer: %v", ref, err)
		}
		rc.Close()
	}
}

func TestAKitIsPushedAndPulledByARealClient(t *testing.T) {
	images := store(t)
	a, b := sandboxOf(t, images, "A_1", 0), sandboxOf(t, images, "b", 0)
	kit := image(t, descriptor)
	if err := a.push("kits/team/one:1.0", kit); err != nil {
		t.Fatal(err)
	}
	same(t, a, "kits/team/one:1.0", kit)
	same(t, a, "kits/team/one@"+digestOf(t, kit), kit)
	if _, err := images.Resolve(t.Context(), "kitbox.local/sandboxes/A_1/team/one:1.0"); err != nil {
		t.Error(err)
	}
	// A name of its own may move, and both contents stay readable by digest
	// as long as a name leads there.
	next := image(t, descriptor)
	if err := a.push("kits/team/one:1.0", next); err != nil {
		t.Fatal(err)
	}
	same(t, a, "kits/team/one:1.0", next)
	if err := a.push("kits/team/one:2", kit); err != nil { // blobs are there
		t.Fatal(err)
	}
	tags, err := remote.List(a.ref("kits/team/one").Context(), remote.WithTransport(a.http.Transport))
	if err != nil || !slices.Equal(tags, []string{"1.0", "2"}) {
		t.Errorf("tags: %v, %v", tags, err)
	}
	// The other sandbox sees nothing of it: not by name, not by digest.
	for _, ref := range []string{"kits/team/one:2", "kits/team/one@" + digestOf(t, kit), "kits/other@" + digestOf(t, kit)} {
		if _, err := b.pull(ref); err == nil || !strings.Contains(err.Error(), "MANIFEST_UNKNOWN") {
			t.Errorf("the other sandbox reads %s: %v", ref, err)
		}
	}
	if code, _, _ := b.do("GET", "/v2/kits/team/one/blobs/"+layerOf(t, kit), "", nil); code != 404 {
		t.Errorf("the other sandbox reads a blob: %d", code)
	}
	if code, _, _ := b.do("GET", "/v2/kits/team/one/tags/list", "", nil); code != 404 {
		t.Errorf("the other sandbox lists tags: %d", code)
	}

	// An index of two platforms, one of them this machine's.
	other := image(t, descriptor)
	idx := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: kit, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: layout.HostPlatform().OS, Architecture: layout.HostPlatform().Architecture}}},
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "riscv64"}}})
	if err := remote.WriteIndex(a.ref("kits/multi:1"), idx, remote.WithTransport(a.http.Transport)); err != nil {
		t.Fatal(err)
	}
	same(t, a, "kits/multi@"+digestOf(t, other), other)
	if _, err := remote.Index(a.ref("kits/multi:1"), remote.WithTransport(a.http.Transport)); err != nil {
		t.Error(err)
	}
}

func TestOnlyTheKitNamespaceAndTheFrontendAreServed(t *testing.T) {
	images := store(t)
	offered, hidden, plain, frontend := image(t, descriptor), image(t, descriptor), image(t, ""), image(t, "")
	offer(t, images, offered, registry.Offered+"acme/tool:1")
	offer(t, images, hidden, "hidden:1")
	offer(t, images, hidden, "ghcr.io/acme/hidden:1")
	offer(t, images, hidden, registry.Pushed("b")+"hidden:1")
	offer(t, images, plain, registry.Offered+"plain:1")
	offer(t, images, image(t, `{"schemaVersion":"3","kind":"nonsense"}`), registry.Offered+"broken:1")
	offer(t, images, plain, "kitbox.local/base:1")
	offer(t, images, frontend, "docker.io/docker/sandbox-kit:3")
	c := sandboxOf(t, images, "a", 0)

	same(t, c, "kits/acme/tool:1", offered)
	same(t, c, "docker/sandbox-kit:3", frontend)
	for _, ref := range []string{"hidden:1", "kits/hidden:1", "acme/hidden:1", "ghcr.io/acme/hidden:1", "kits/plain:1", "kits/broken:1", "base:1", "kits/base:1",
		"kitbox.local/base:1", "sandboxes/b/hidden:1", "kits/b/hidden:1", "kits/acme/tool:2", "docker/sandbox-kit:4", "docker.io/docker/sandbox-kit:3",
		"kits/acme/tool@" + digestOf(t, hidden), "kits/acme/tool@" + digestOf(t, plain), "docker/sandbox-kit@" + digestOf(t, offered)} {
		if _, err := c.pull(ref); err == nil || !strings.Contains(err.Error(), "MANIFEST_UNKNOWN") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for _, repo := range []string{"kits/acme/tool", "kits/plain", "docker/sandbox-kit", "kits/none"} {
		for _, im := range []v1.Image{hidden, plain} {
			if code, body, _ := c.do("GET", "/v2/"+repo+"/blobs/"+layerOf(t, im), "", nil); code != 404 {
				t.Errorf("a blob of another image by %s: %d %.60q", repo, code, body)
			}
		}
	}
	// A layer of another image is not to be had by naming it in a manifest,
	// nor by mounting it.
	if code, _, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?mount="+layerOf(t, hidden)+"&from=kits/hidden", "", nil); code != 202 {
		t.Errorf("mounting a hidden blob: %d", code)
	}
	raw, err := mutate.Annotations(hidden, map[string]string{fetch.Annotation: descriptor, "x": "y"}).(v1.Image).RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	if code, body, _ := c.do("PUT", "/v2/kits/x/manifests/1", string(types.OCIManifestSchema1), bytes.NewReader(raw)); code != 400 || !strings.Contains(body, "MANIFEST_BLOB_UNKNOWN") {
		t.Errorf("naming hidden blobs: %d %s", code, body)
	}
	// What may be read may be mounted.
	if code, _, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?mount="+layerOf(t, offered)+"&from=kits/acme/tool", "", nil); code != 201 {
		t.Errorf("mounting an offered blob: %d", code)
	}
}

func TestWhatMayBePushed(t *testing.T) {
	images := store(t)
	offered := image(t, descriptor)
	offer(t, images, offered, registry.Offered+"acme/tool:1")
	c := sandboxOf(t, images, "a", 0)
	before, err := images.Tags()
	if err != nil {
		t.Fatal(err)
	}
	for ref, im := range map[string]v1.Image{
		"kits/acme/tool:1":     image(t, descriptor), // the host's name
		"docker/sandbox-kit:3": image(t, descriptor),
		"other/x:1":            image(t, descriptor),
		"kits/plain:1":         image(t, ""),
		"kits/wrong:1":         image(t, `{"schemaVersion":"3","kind":"workload","x":1}`),
	} {
		if err := c.push(ref, im); err == nil || !strings.Contains(err.Error(), "DENIED") {
			t.Errorf("pushing %s: %v", ref, err)
		}
	}
	after, err := images.Tags()
	if err != nil || len(after) != len(before) {
		t.Errorf("names: %v then %v, %v", before, after, err)
	}
	if err := c.push("kits/acme/tool:2", image(t, descriptor)); err != nil {
		t.Error(err) // another tag beside it is the sandbox's own
	}
	same(t, c, "kits/acme/tool:1", offered)
	if code, _, _ := c.do("DELETE", "/v2/kits/acme/tool/manifests/2", "", nil); code != 405 {
		t.Errorf("deleting: %d", code)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(c.log, func(a registry.Access) bool {
		return !a.Allowed && a.Method == http.MethodPut && strings.Contains(a.Why, "belongs to the host")
	}) || !slices.ContainsFunc(c.log, func(a registry.Access) bool { return a.Allowed && strings.HasPrefix(a.Why, "stored sha256:") }) {
		t.Errorf("log: %+v", c.log)
	}
}

func TestHostileRequests(t *testing.T) {
	images := store(t)
	secret := filepath.Join(images.Dir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := sandboxOf(t, images, "a", 10<<20)
	hex := strings.Repeat("a", 64)
	for _, tt := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/", 404}, {"GET", "/v2", 200}, {"GET", "/v2/", 200}, {"GET", "/v2x", 404}, {"POST", "/v2/", 405},
		{"GET", "/v2/_catalog", 404},
		{"GET", "/v2/../../manifests/1", 400}, {"GET", "/v2/kits/../x/manifests/1", 400}, {"GET", "/v2/kits/%2e%2e/x/manifests/1", 400},
		{"GET", "/v2/kits/..%2f..%2fx/manifests/1", 400}, {"GET", "/v2/KITS/x/manifests/1", 400}, {"GET", "/v2/kits//x/manifests/1", 400},
		{"GET", "/v2/kits/x%00/manifests/1", 400}, {"GET", "/v2/" + strings.Repeat("a", 300) + "/manifests/1", 400},
		{"GET", "/v2/kits/x/manifests/..%2f..%2fsecret", 404}, {"GET", "/v2/kits/x/manifests/" + strings.Repeat("t", 500), 404},
		{"GET", "/v2/kits/x/manifests/sha512:" + hex + hex, 400}, {"GET", "/v2/kits/x/manifests/sha256:../../secret", 400},
		{"GET", "/v2/kits/x/blobs/sha256:" + hex, 404}, {"GET", "/v2/kits/x/blobs/..%2f..%2fsecret", 400}, {"GET", "/v2/kits/x/blobs/secret", 400},
		{"PUT", "/v2/kits/x/manifests/a%2fb", 400}, {"PUT", "/v2/kits/x/manifests/.x", 400}, {"PUT", "/v2/kits/x/manifests/1", 400},
		{"GET", "/v2/kits/x/blobs/uploads/../../secret", 404}, {"PATCH", "/v2/kits/x/blobs/uploads/none", 404},
		{"POST", "/v2/kits/x/blobs/uploads/?digest=nonsense", 400}, {"POST", "/v2/x/blobs/uploads/", 403},
		{"GET", "/v2/kits/x/tags/other", 404}, {"GET", "/v2/kits/x/tags/list?n=x", 404},
		{"GET", "/v2/kits/x/referrers/sha256:" + hex, 200}, {"GET", "/v2/kits/x/referrers/x", 400},
	} {
		code, body, _ := c.do(tt.method, tt.path, "", strings.NewReader(""))
		if code != tt.code || strings.Contains(body, "secret\"") || code >= 400 && !strings.Contains(body, `"errors"`) {
			t.Errorf("%s %s: %d %s, want %d", tt.method, tt.path, code, body, tt.code)
		}
	}
	// Documents that are too large, or are none.
	for body, want := range map[string]string{
		strings.Repeat(" ", layout.MaxDocument+1): "SIZE_INVALID",
		"{":                 "MANIFEST_INVALID",
		`{"mediaType":"x"}`: "MANIFEST_INVALID",
		`{"manifests":[]}`:  "MANIFEST_INVALID",
		`{"config":{"digest":"sha256:x"},"layers":[]}`:                  "MANIFEST_INVALID",
		`{"config":{"digest":"sha256:` + hex + `"}}`:                    "MANIFEST_BLOB_UNKNOWN",
		`{"config":{"digest":"../../secret"},"layers":[]}`:              "MANIFEST_INVALID",
		`{"config":{},"layers":[` + strings.Repeat("{},", 600) + `{}]}`: "MANIFEST_INVALID",
	} {
		if _, got, _ := c.do("PUT", "/v2/kits/x/manifests/1", string(types.OCIManifestSchema1), strings.NewReader(body)); !strings.Contains(got, want) {
			t.Errorf("%.60q: %s, want %s", body, got, want)
		}
	}
	// A blob that is not what it says leaves nothing behind.
	d := digest.FromString("else").String()
	if code, body, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?digest="+d, "", strings.NewReader("something")); code != 400 || !strings.Contains(body, "DIGEST_INVALID") {
		t.Errorf("a false digest: %d %s", code, body)
	}
	if there, err := images.Exists(t.Context(), ocispec.Descriptor{Digest: digest.Digest(d)}); there || err != nil {
		t.Errorf("it was stored: %v, %v", there, err)
	}
	// More than the quota, in one piece and in many uploads.
	big := strings.Repeat("b", 11<<20)
	if code, body, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?digest="+digest.FromString(big).String(), "", strings.NewReader(big)); code != 403 || !strings.Contains(body, "10485760 bytes") {
		t.Errorf("beyond the quota: %d %s", code, body)
	}
	small := strings.Repeat("s", 9<<20) // what was refused was given back
	if code, body, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?digest="+digest.FromString(small).String(), "", strings.NewReader(small)); code != 201 {
		t.Errorf("within the quota: %d %s", code, body)
	}
	begun := 0
	for range 20 {
		code, _, _ := c.do("POST", "/v2/kits/x/blobs/uploads/", "", nil)
		if code == 202 {
			begun++
		} else if code != 429 {
			t.Errorf("beginning an upload: %d", code)
		}
	}
	if begun != 16 {
		t.Errorf("%d uploads could begin", begun)
	}
}

func TestTheQuotaOutlivesTheServer(t *testing.T) {
	images := store(t)
	push := func(c *client, content string) int {
		code, _, _ := c.do("POST", "/v2/kits/x/blobs/uploads/?digest="+digest.FromString(content).String(), "", strings.NewReader(content))
		return code
	}
	one, two, three := strings.Repeat("1", 6<<20), strings.Repeat("2", 6<<20), strings.Repeat("3", 3<<20)
	t.Run("before", func(t *testing.T) {
		if code := push(sandboxOf(t, images, "a", 10<<20), one); code != 201 {
			t.Fatalf("within the quota: %d", code)
		}
	})
	// As a kill can leave it: a record of what was never stored, and half a line.
	f, err := os.OpenFile(ledgerOf(images, "a"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"digest":"` + digest.FromString("lost").String() + `","bytes":9000000}` + "\n{"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Run("after a restart", func(t *testing.T) {
		c := sandboxOf(t, images, "a", 10<<20)
		if code := push(c, two); code != 403 {
			t.Errorf("beyond what is left of the quota: %d", code)
		}
		if code := push(c, three); code != 201 {
			t.Errorf("within what is left of the quota: %d", code)
		}
		if code := push(sandboxOf(t, images, "b", 10<<20), two); code != 201 {
			t.Errorf("another sandbox has a quota of its own: %d", code)
		}
	})
	if _, _, err := images.Sweep(t.Context(), nil, 0); err != nil {
		t.Fatal(err)
	}
	t.Run("after a prune", func(t *testing.T) {
		if code := push(sandboxOf(t, images, "a", 10<<20), two); code != 201 {
			t.Errorf("what is gone still counts: %d", code)
		}
	})
	if err := os.WriteFile(ledgerOf(images, "a"), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.New(registry.Options{Images: images, Owner: "a", Ledger: ledgerOf(images, "a")}); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a ledger that says nothing: %v", err)
	}
}

func TestUploadsInPieces(t *testing.T) {
	c := sandboxOf(t, store(t), "a", 0)
	code, _, h := c.do("POST", "/v2/kits/x/blobs/uploads/", "", nil)
	if code != 202 {
		t.Fatal(code)
	}
	at := h.Get("Location")
	if code, _, h := c.do("PATCH", at, "", strings.NewReader("one ")); code != 202 || h.Get("Range") != "0-3" {
		t.Errorf("first: %d %v", code, h)
	}
	req, err := http.NewRequest(http.MethodPatch, "http://r"+at, strings.NewReader("gap"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Range", "9-11")
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a gap: %d", resp.StatusCode)
	}
	if code, _, _ := c.do("GET", strings.Replace(at, "kits/x", "kits/y", 1), "", nil); code != 404 {
		t.Errorf("by another repository: %d", code)
	}
	// While one request writes, another may not: the first is known to have
	// begun once the second is refused.
	pr, pw := io.Pipe()
	slow := make(chan int)
	go func() {
		code, _, _ := c.do("PATCH", at, "", pr)
		slow <- code
	}()
	io.WriteString(pw, "two ")
	for deadline := time.Now().Add(10 * time.Second); ; {
		if code, _, _ := c.do("GET", at, "", nil); code == http.StatusConflict {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("two requests write to one upload")
		}
	}
	pw.Close()
	if code := <-slow; code != 202 {
		t.Errorf("second: %d", code)
	}
	d := digest.FromString("one two three").String()
	if code, body, _ := c.do("PUT", at+"?digest="+d, "", strings.NewReader("three")); code != 201 {
		t.Errorf("end: %d %s", code, body)
	}
	if code, body, _ := c.do("GET", "/v2/kits/x/blobs/"+d, "", nil); code != 200 || body != "one two three" {
		t.Errorf("blob: %d %q", code, body)
	}
	if code, _, _ := c.do("PUT", at+"?digest="+d, "", nil); code != 404 {
		t.Errorf("ended twice: %d", code)
	}
	_, _, h = c.do("POST", "/v2/kits/x/blobs/uploads/", "", nil)
	if code, _, _ := c.do("DELETE", h.Get("Location"), "", nil); code != 204 {
		t.Errorf("given up: %d", code)
	}
}

func TestAnIndexThatCannotBeRunHereIsNotNamed(t *testing.T) {
	images := store(t)
	c := sandboxOf(t, images, "a", 0)
	idx := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: image(t, descriptor), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "riscv64"}}})
	err := remote.WriteIndex(c.ref("kits/foreign:1"), idx, remote.WithTransport(c.http.Transport))
	if err == nil || !strings.Contains(err.Error(), "could not be run here") {
		t.Errorf("pushed: %v", err)
	}
	if tags, err := images.Tags(); err != nil || len(tags) != 0 {
		t.Errorf("names: %v, %v", tags, err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("GET", "/v2/kits/a/manifests/1")
	f.Add("PUT", "/v2/kits/a/blobs/uploads/x?digest=sha256:")
	f.Add("POST", "/v2/kits/a/blobs/uploads/?mount=x&from=y")
	images, err := layout.Open(filepath.Join(f.TempDir(), "images"))
	if err != nil {
		f.Fatal(err)
	}
	s, err := registry.New(registry.Options{Images: images, Owner: "a"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, method, target string) {
		req, err := http.NewRequest(method, "http://r/", http.NoBody)
		if err != nil {
			t.Skip()
		}
		if req.URL, err = req.URL.Parse(target); err != nil {
			t.Skip()
		}
		w := recorder{h: http.Header{}}
		s.ServeHTTP(&w, req)
		if w.code >= 500 || w.code >= 400 && !json.Valid(w.body.Bytes()) {
			t.Errorf("%s %q: %d %s", method, target, w.code, w.body.String())
		}
	})
}

type recorder struct {
	h    http.Header
	code int
	body bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.h }
func (r *recorder) WriteHeader(c int)           { r.code = c }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
