package library_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/internal/library"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func imagesAt(t *testing.T) (*library.Library, string) {
	home := t.TempDir()
	return library.New(library.Config{
		Exists:    func() bool { return true },
		Open:      func() (*store.Home, error) { return store.Open(home) },
		Privilege: func() error { return nil },
		Fetcher:   func() *fetch.Fetcher { return &fetch.Fetcher{Home: home} },
	}), home
}

// TestAnImageTravels from a store to a registry, to another store, into an
// archive and to a third.
func TestAnImageTravels(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	target := strings.TrimPrefix(srv.URL, "http://") + "/kits/m:1"
	ctx := t.Context()

	first, home := imagesAt(t)
	if err := kittest.Push(ctx, home, kittest.Kit{Ref: "kitbox.local/m:1", Descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["m@1"]}`}); err != nil {
		t.Fatal(err)
	}
	var told []string
	digest, err := first.Push(ctx, "kitbox.local/m:1", target, func(e sandbox.Event) { told = append(told, e.Detail) })
	if err != nil || len(told) == 0 {
		t.Fatalf("%v, told %q", err, told)
	}
	second, _ := imagesAt(t)
	im, err := second.Pull(ctx, target, sandbox.PullOptions{})
	if err != nil || im.Digest != digest || im.Kind != "mixin" || im.Ref != target {
		t.Fatalf("%+v, %v", im, err)
	}
	if err := second.TagImage(ctx, target, "again:1"); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := second.SaveImages(ctx, []string{"again:1"}, &archive); err != nil {
		t.Fatal(err)
	}
	third, _ := imagesAt(t)
	if names, err := third.LoadImages(ctx, &archive); err != nil || len(names) != 1 || names[0] != "again:1" {
		t.Fatalf("%q, %v", names, err)
	}
	d, err := third.InspectImage(ctx, "again:1")
	if err != nil || d.Root != digest || !strings.Contains(string(d.Descriptor), `"m@1"`) || len(d.Layers) == 0 || !d.Layers[0].Stored {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, ok := d.Annotations[fetch.Annotation]; ok {
		t.Error("the descriptor is shown twice")
	}
	if err := third.RemoveImage(ctx, "again:1"); err != nil {
		t.Fatal(err)
	}
	if err := third.RemoveImage(ctx, "again:1"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
	if p, err := third.PruneImages(ctx, 0); err != nil || p.Blobs < 3 || p.Bytes == 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestOthersReadWhatIsSaved loads an archive as programs for docker's and for OCI
// layouts do.
func TestOthersReadWhatIsSaved(t *testing.T) {
	ctx := t.Context()
	e, home := imagesAt(t)
	if err := kittest.Push(ctx, home, kittest.Kit{Ref: "kitbox.local/mixin:1", Descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["m@1"]}`, Files: map[string]kittest.File{"/opt/m": {Content: "m"}}}); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := e.SaveImages(ctx, []string{"kitbox.local/mixin:1"}, &archive); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("kitbox.local/mixin:1")
	if err != nil {
		t.Fatal(err)
	}
	im, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(im); err != nil {
		t.Errorf("as docker's: %v", err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(idx, validate.Fast); err != nil {
		t.Errorf("as a layout: %v", err)
	}
	m, err := idx.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "kitbox.local/mixin:1" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestNamesOfImages(t *testing.T) {
	ctx := t.Context()
	e, home := imagesAt(t)
	if err := kittest.Push(ctx, home, kittest.Kit{Ref: "kitbox.local/m:1", Descriptor: `{"schemaVersion":"3","kind":"mixin","provides":["m@1"]}`}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"UPPER:1": "not a repository name", "a b": "not a repository name", "./x": "local path", "x:bad tag": "not a tag", "git+https://h/k": "git source",
		"x@sha256:" + strings.Repeat("0", 64): "a digest belongs",
	} {
		if err := e.TagImage(ctx, "kitbox.local/m:1", name); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A name without a tag is that of the latest, for whoever asks.
	if err := e.TagImage(ctx, "kitbox.local/m:1", "hub.example/m"); err != nil {
		t.Fatal(err)
	}
	ims, err := e.Images(ctx)
	if err != nil || len(ims) != 2 || ims[0].Ref != "hub.example/m:latest" {
		t.Errorf("%+v, %v", ims, err)
	}
	if d, err := e.InspectImage(ctx, "hub.example/m"); err != nil || d.Kind != "mixin" {
		t.Errorf("%+v, %v", d, err)
	}
	if err := e.RemoveImage(ctx, "hub.example/m"); err != nil {
		t.Error(err)
	}
}
