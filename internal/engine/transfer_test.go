package engine_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/engine"
	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func imagesAt(t *testing.T) (*engine.Engine, string) {
	home := t.TempDir()
	return engine.New(engine.Config{Home: home, Fetcher: func() *fetch.Fetcher { return &fetch.Fetcher{Home: home} }}), home
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
