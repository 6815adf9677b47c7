package builder

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/moby/buildkit/client"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// put writes data into a landing as an export does.
func put(t *testing.T, l *landing, mediaType, data string) (ocispec.Descriptor, error) {
	t.Helper()
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromString(data), Size: int64(len(data))}
	err := content.WriteBlob(context.Background(), l, string(desc.Digest), bytes.NewReader([]byte(data)), desc)
	return desc, err
}

func land(t *testing.T, dir string, fresh bool) *landing {
	t.Helper()
	l, err := newLanding(dir, fresh)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestABlobThatVanishesWhileItIsCountedOnIsNoticed(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	first := land(t, dir, false)
	desc, err := put(t, first, "text/plain", "blob")
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", desc.Digest.Encoded())
	if _, err := os.Stat(blob); !errors.Is(err, os.ErrNotExist) {
		t.Error("a blob is in the layout before its image is complete")
	}
	if _, err := first.publish(ctx, desc); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(blob, old, old); err != nil {
		t.Fatal(err)
	}

	second := land(t, dir, false)
	if _, err := second.Writer(ctx, content.WithDescriptor(desc), content.WithRef("x")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Writer of what the layout has = %v; want already exists", err)
	}
	if fi, err := os.Stat(blob); err != nil || time.Since(fi.ModTime()) > time.Minute {
		t.Error("a blob in use is not marked, so that a sweep may take it")
	}
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	if _, err := second.publish(ctx, desc); !errors.Is(err, errGone) {
		t.Errorf("publish = %v, want errGone", err)
	}
	again := land(t, dir, true)
	if _, err := put(t, again, "text/plain", "blob"); err != nil {
		t.Errorf("a fresh landing does not take the blob: %v", err)
	}
	if _, err := again.publish(ctx, desc); err != nil {
		t.Error(err)
	}
}

func TestLandingsOfKilledBuildsAreSwept(t *testing.T) {
	dir := t.TempDir()
	live := land(t, dir, false)
	dead := filepath.Join(dir, "ingest", landingPrefix+"dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, d := range []string{dead, live.dir} {
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	land(t, dir, false)
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Error("a dead landing is still there")
	}
	if _, err := os.Stat(live.dir); err != nil {
		t.Error("a landing in use was swept")
	}
}

func TestAFailedStepQuotesItsLastLines(t *testing.T) {
	o := newObserver()
	failed, cancelled := digest.FromString("failed"), digest.FromString("cancelled")
	now := time.Now()
	o.note(&client.SolveStatus{
		Vertexes: []*client.Vertex{
			{Digest: failed, Name: "[build 2/3] RUN make", Completed: &now, Error: "exit code: 2"},
			{Digest: cancelled, Name: "[3/3] RUN other", Completed: &now, Error: "context canceled"},
		},
		Logs: []*client.VertexLog{
			{Vertex: failed, Data: []byte("first\n\n10%\r50%\r100%\r\nhalf ")},
			{Vertex: failed, Data: []byte("a line")},
		},
	})
	st := o.failed()
	if st == nil || st.name != "[build 2/3] RUN make" {
		t.Fatalf("failed = %+v", st)
	}
	if got, want := st.output(), []string{"first", "100%", "half a line"}; !slices.Equal(got, want) {
		t.Errorf("output = %q, want %q", got, want)
	}
	if !o.ran() {
		t.Error("a step that failed did not run")
	}
}
