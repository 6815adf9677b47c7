package layout_test

import (
	"bytes"
	"context"
	_ "crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func open(t *testing.T) *layout.Store {
	t.Helper()
	s, err := layout.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var amd64 = ocispec.Platform{OS: "linux", Architecture: "amd64"}

// image stores an image whose only layer holds text.
func image(t *testing.T, s *layout.Store, text string, p ocispec.Platform, annotations map[string]string) ocispec.Descriptor {
	t.Helper()
	l, err := s.PushBytes(t.Context(), ocispec.MediaTypeImageLayer, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.PushJSON(t.Context(), ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.Digest}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.PushJSON(t.Context(), ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: []ocispec.Descriptor{l}, Annotations: annotations,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Platform = &p
	return m
}

func index(t *testing.T, s *layout.Store, annotations map[string]string, ms ...ocispec.Descriptor) ocispec.Descriptor {
	t.Helper()
	d, err := s.PushJSON(t.Context(), ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: ms, Annotations: annotations,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func stored(t *testing.T, s *layout.Store, d ocispec.Descriptor) bool {
	t.Helper()
	p, err := s.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(p)
	return err == nil
}

func TestPushVerifiesWhatItStores(t *testing.T) {
	s := open(t)
	good := ocispec.Descriptor{Digest: digest.FromString("hello"), Size: 5}
	for name, c := range map[string]struct {
		desc ocispec.Descriptor
		text string
	}{
		"other content": {good, "hellO"},
		"too short":     {good, "hell"},
		"too long":      {good, "hello world"},
		"wrong size":    {ocispec.Descriptor{Digest: good.Digest, Size: 4}, "hello"},
		"bad digest":    {ocispec.Descriptor{Digest: "sha256:../../../x", Size: 5}, "hello"},
		"other hash":    {ocispec.Descriptor{Digest: digest.SHA512.FromString("hello"), Size: 5}, "hello"},
	} {
		if err := s.Push(t.Context(), c.desc, strings.NewReader(c.text)); err == nil {
			t.Errorf("%s was stored", name)
		}
	}
	if stored(t, s, good) {
		t.Fatal("a refused blob is there")
	}
	if es, _ := os.ReadDir(filepath.Join(s.Dir(), "ingest")); len(es) > 0 {
		t.Errorf("%v left behind", es)
	}
	// An endless stream is not read past the size.
	if err := s.Push(t.Context(), good, io.MultiReader(strings.NewReader("hello"), zeros{})); err == nil {
		t.Error("an endless blob was stored")
	}
	for range 2 {
		if err := s.Push(t.Context(), good, strings.NewReader("hello")); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.Fetch(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
		t.Errorf("Fetch = %q, %v", got, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestFetchNoticesDamage(t *testing.T) {
	s := open(t)
	d, err := s.PushBytes(t.Context(), "text/plain", []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.BlobPath(d.Digest)
	for _, text := range []string{"hellO", "hello world", ""} {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := s.Fetch(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("reading %q = %v", text, err)
		}
		r.Close()
	}
	os.Remove(p)
	if _, err := s.Fetch(t.Context(), d); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Fetch = %v", err)
	}
}

func TestDocumentsAreBounded(t *testing.T) {
	s := open(t)
	big, err := s.PushBytes(t.Context(), "text/plain", make([]byte, layout.MaxDocument+1))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{big.Size, 0} { // even when its descriptor does not say so
		big.Size = size
		if _, err := s.Document(t.Context(), big); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Document = %v", err)
		}
	}
}

func TestTags(t *testing.T) {
	s := open(t)
	a, b := image(t, s, "a", amd64, nil), image(t, s, "b", amd64, nil)
	if err := s.Tag(t.Context(), a, "kitbox.local/x:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(t.Context(), b, "kitbox.local/x:1"); err != nil { // moves
		t.Fatal(err)
	}
	if err := s.Tag(t.Context(), a, "kitbox.local/a:1"); err != nil {
		t.Fatal(err)
	}
	tags, err := s.Tags()
	if err != nil || len(tags) != 2 || tags[0].Name != "kitbox.local/a:1" || tags[1].Digest != b.Digest {
		t.Errorf("Tags = %+v, %v", tags, err)
	}
	for name, want := range map[string]digest.Digest{"kitbox.local/x:1": b.Digest, a.Digest.String(): a.Digest} {
		if d, err := s.Resolve(t.Context(), name); err != nil || d.Digest != want || d.MediaType != ocispec.MediaTypeImageManifest {
			t.Errorf("Resolve(%s) = %+v, %v", name, d, err)
		}
	}
	for _, name := range []string{"x", "kitbox.local/x:2", digest.FromString("none").String(), "sha256:../x"} {
		if _, err := s.Resolve(t.Context(), name); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("Resolve(%s) = %v", name, err)
		}
	}
	if err := s.Tag(t.Context(), ocispec.Descriptor{Digest: digest.FromString("none")}, "y"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("tagging nothing = %v", err)
	}
	if err := s.Untag(t.Context(), "kitbox.local/x:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Untag(t.Context(), "kitbox.local/x:1"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("second Untag = %v", err)
	}
	// It is a layout that others can read.
	if _, err := layout.OpenExisting(s.Dir()); err != nil {
		t.Error(err)
	}
	if _, err := layout.OpenExisting(t.TempDir()); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("OpenExisting of nothing = %v", err)
	}
}

func TestConcurrentTagsAreAllKept(t *testing.T) {
	s := open(t)
	a := image(t, s, "a", amd64, nil)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			s, err := layout.Open(s.Dir()) // one each, as processes have
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Tag(t.Context(), a, fmt.Sprint("t", i)); err != nil {
				t.Error(err)
			}
			if _, err := s.PushBytes(t.Context(), "text/plain", []byte(fmt.Sprint(i%3))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if tags, err := s.Tags(); err != nil || len(tags) != 24 {
		t.Errorf("%d tags, %v", len(tags), err)
	}
}

func TestImageChoosesThePlatform(t *testing.T) {
	s := open(t)
	arm := ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}
	x, y := image(t, s, "x", amd64, map[string]string{"k": "manifest", "only": "manifest"}), image(t, s, "y", arm, nil)
	unknown := image(t, s, "attestation", ocispec.Platform{OS: "unknown", Architecture: "unknown"}, nil)
	idx := index(t, s, map[string]string{"k": "index"}, unknown, y, x)
	for arch, want := range map[string]digest.Digest{"amd64": x.Digest, "arm64": y.Digest} {
		p := ocispec.Platform{OS: "linux", Architecture: arch}
		img, err := s.Image(t.Context(), idx, p)
		if err != nil || img.Descriptor.Digest != want || img.Root.Digest != idx.Digest || len(img.Layers()) != 1 {
			t.Errorf("%v: %+v, %v", p, img, err)
		}
	}
	img, err := s.Image(t.Context(), idx, amd64)
	if err != nil || img.Annotations["k"] != "index" || img.Annotations["only"] != "manifest" {
		t.Errorf("annotations %v, %v", img.Annotations, err)
	}
	_, err = s.Image(t.Context(), idx, ocispec.Platform{OS: "linux", Architecture: "riscv64"})
	if !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "linux/amd64, linux/arm64/v8") || strings.Contains(err.Error(), "unknown") {
		t.Errorf("a missing platform is %v", err)
	}
}

// TestTheVariantIsOneThatTheMachineRuns, as near to what is asked for as there is.
func TestTheVariantIsOneThatTheMachineRuns(t *testing.T) {
	s := open(t)
	for _, c := range []struct {
		asked string
		has   []string
		want  string // "": none
	}{
		{"linux/amd64", []string{"linux/amd64/v3", "linux/amd64/v2", "linux/amd64"}, "linux/amd64"},
		{"linux/amd64", []string{"linux/amd64/v3", "linux/amd64/v2"}, "linux/amd64/v2"},
		{"linux/amd64/v3", []string{"linux/amd64", "linux/amd64/v2", "linux/amd64/v4"}, "linux/amd64/v2"},
		{"linux/amd64/v2", []string{"linux/amd64/v3", "linux/amd64/v4"}, ""},
		{"linux/arm64", []string{"linux/arm64/v9", "linux/arm64/v8"}, "linux/arm64/v8"},
		{"linux/arm64/v8", []string{"linux/arm64"}, "linux/arm64"},
		{"linux/arm64", []string{"linux/arm64/v8"}, "linux/arm64/v8"},
		{"linux/arm64/v9", []string{"linux/arm64/v8", "linux/arm64/v9"}, "linux/arm64/v9"},
		{"linux/arm/v6", []string{"linux/arm/v7", "linux/arm/v6", "linux/arm/v5"}, "linux/arm/v6"},
		{"linux/arm/v6", []string{"linux/arm/v7", "linux/arm/v5"}, "linux/arm/v5"},
		{"linux/arm", []string{"linux/arm/v7", "linux/arm/v6"}, "linux/arm/v6"},
		{"linux/ppc64le/power9", []string{"linux/ppc64le/power10"}, ""},
		{"linux/ppc64le/power9", []string{"linux/ppc64le", "linux/ppc64le/power9"}, "linux/ppc64le/power9"},
	} {
		var entries []ocispec.Descriptor
		for _, name := range c.has {
			p, err := layout.ParsePlatform(name)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, image(t, s, name, p, nil))
		}
		asked, err := layout.ParsePlatform(c.asked)
		if err != nil {
			t.Fatal(err)
		}
		im, err := s.Image(t.Context(), index(t, s, nil, entries...), asked)
		if c.want == "" && !errors.Is(err, kiterr.ErrNotFound) || c.want != "" && (err != nil || im.Platform() != c.want) {
			t.Errorf("%s of %v: %s, %v; want %q", c.asked, c.has, im.Descriptor.Digest, err, c.want)
		}
	}
}

func TestImageRefusesContradictions(t *testing.T) {
	s := open(t)
	good := image(t, s, "x", amd64, nil)
	var m ocispec.Manifest
	data, _ := s.Document(t.Context(), good)
	json.Unmarshal(data, &m)
	fewer := m
	fewer.Layers = nil
	bad, _ := s.PushJSON(t.Context(), ocispec.MediaTypeImageManifest, fewer)
	if _, err := s.Image(t.Context(), bad, amd64); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("layers and diff ids that differ: %v", err)
	}
	conf, _ := s.PushJSON(t.Context(), ocispec.MediaTypeImageConfig, ocispec.Image{RootFS: ocispec.RootFS{DiffIDs: []digest.Digest{"sha256:../../etc"}}})
	climbing := m
	climbing.Config = conf
	bad, _ = s.PushJSON(t.Context(), ocispec.MediaTypeImageManifest, climbing)
	if _, err := s.Image(t.Context(), bad, amd64); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a diff id that climbs: %v", err)
	}
	if _, err := s.Image(t.Context(), ocispec.Descriptor{MediaType: "text/html", Digest: good.Digest}, amd64); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a media type that is none: %v", err)
	}
}

func TestImportCopiesVerified(t *testing.T) {
	src, dst := open(t), open(t)
	x, y := image(t, src, "x", amd64, nil), image(t, src, "y", ocispec.Platform{OS: "linux", Architecture: "arm64"}, nil)
	idx := index(t, src, nil, x, y)
	if err := dst.Import(t.Context(), src.Dir(), idx); err != nil {
		t.Fatal(err)
	}
	if _, err := dst.Image(t.Context(), idx, amd64); err != nil {
		t.Error(err)
	}
	p, _ := src.BlobPath(digest.FromString("x"))
	if err := os.WriteFile(p, []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := open(t)
	if err := third.Import(t.Context(), src.Dir(), idx); err == nil {
		t.Error("a damaged layout was imported")
	}
	if stored(t, third, x) || stored(t, third, idx) {
		t.Error("a document is stored without what it names")
	}
}

func TestSweepDeletesOnlyWhatNothingNames(t *testing.T) {
	s := open(t)
	tagged, built, loose, fresh := image(t, s, "tagged", amd64, nil), image(t, s, "built", amd64, nil), image(t, s, "loose", amd64, nil), image(t, s, "fresh", amd64, nil)
	idx := index(t, s, nil, tagged)
	if err := s.Tag(t.Context(), idx, "t"); err != nil {
		t.Fatal(err)
	}
	w, err := s.NewWriter() // a writer that was killed
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte("half"))
	old := time.Now().Add(-2 * time.Hour)
	filepath.WalkDir(s.Dir(), func(p string, d os.DirEntry, err error) error {
		return os.Chtimes(p, old, old)
	})
	if ok, err := s.Exists(t.Context(), fresh); !ok || err != nil { // asking is using
		t.Fatal(ok, err)
	}
	freed, diffs, err := s.Sweep(t.Context(), []digest.Digest{built.Digest, digest.FromString("gone")}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		desc ocispec.Descriptor
		want bool
	}{{"index", idx, true}, {"tagged", tagged, true}, {"built", built, true}, {"loose", loose, false}, {"fresh", fresh, true}} {
		if got := stored(t, s, c.desc); got != c.want {
			t.Errorf("%s stored: %v, want %v", c.what, got, c.want)
		}
	}
	if es, _ := os.ReadDir(filepath.Join(s.Dir(), "ingest")); len(es) > 0 {
		t.Errorf("%v left behind", es)
	}
	// loose's manifest, config and layer; fresh's config and layer; the half.
	if freed.Count != 6 {
		t.Errorf("freed %+v", freed)
	}
	if !diffs[digest.FromString("tagged")] || !diffs[digest.FromString("built")] || diffs[digest.FromString("loose")] {
		t.Errorf("diff ids %v", diffs)
	}
}

func TestPushEndsWithItsContext(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	if err := s.Push(ctx, d, bytes.NewReader([]byte("x"))); !errors.Is(err, context.Canceled) {
		t.Errorf("Push = %v", err)
	}
}

// TestAFewIndexesWithMoreWaysThroughThemThanAtoms are imported, loaded, saved and
// swept like any.
func TestAFewIndexesWithMoreWaysThroughThemThanAtoms(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	from, s := open(t), open(t)
	top := image(t, from, "bottom", amd64, nil)
	for i := range 300 {
		top = index(t, from, map[string]string{"n": fmt.Sprint(i)}, top, top)
	}
	if err := s.Import(ctx, from.Dir(), top); err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(ctx, top, "x"); err != nil {
		t.Fatal(err)
	}
	if _, diffs, err := s.Sweep(ctx, nil, 0); err != nil || len(diffs) != 1 || !stored(t, s, top) {
		t.Errorf("Sweep keeps %v, %v", diffs, err)
	}
	if err := s.Save(ctx, []layout.Tag{{Name: "x", Descriptor: top}}, io.Discard); err == nil {
		t.Error("an index of indexes was saved as an image")
	} else if ctx.Err() != nil {
		t.Error(err)
	}
	if err := s.Untag(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if freed, _, err := s.Sweep(ctx, nil, 0); err != nil || freed.Count != 303 {
		t.Errorf("Sweep frees %+v, %v", freed, err)
	}
}
