package layout_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestWhatIsSavedCanBeLoaded(t *testing.T) {
	s := open(t)
	host := layout.HostPlatform()
	m := image(t, s, "a", host, nil)
	root := index(t, s, nil, m, image(t, s, "b", ocispec.Platform{OS: "linux", Architecture: "other"}, nil))
	tags := []layout.Tag{{Name: "kitbox.local/one:1", Descriptor: m}, {Name: "kitbox.local/two:1", Descriptor: root}}
	var first, second bytes.Buffer
	if err := errors.Join(s.Save(t.Context(), tags, &first), s.Save(t.Context(), tags, &second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same images differ")
	}

	to := open(t)
	names, err := to.Load(t.Context(), bytes.NewReader(first.Bytes()))
	if err != nil || !slices.Equal(names, []string{"kitbox.local/one:1", "kitbox.local/two:1"}) {
		t.Fatalf("Load = %q, %v", names, err)
	}
	for _, want := range tags {
		d, err := to.Resolve(t.Context(), want.Name)
		if err != nil || d.Digest != want.Digest {
			t.Errorf("%s: %v, %v", want.Name, d, err)
		}
		im, err := to.Image(t.Context(), d, host)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range im.Layers() {
			if !stored(t, to, l.Blob) {
				t.Errorf("%s lacks %s", want.Name, l.Blob.Digest)
			}
		}
	}
}

// repack changes the entries of an archive.
func repack(t *testing.T, archive []byte, change func(h *tar.Header, data []byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if data = change(h, data); data == nil {
			continue
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(data)
	}
	w.Close()
	return out.Bytes()
}

func TestArchivesThatAreNotWholeAreRefused(t *testing.T) {
	s := open(t)
	m := image(t, s, "a", layout.HostPlatform(), nil)
	var good bytes.Buffer
	if err := s.Save(t.Context(), []layout.Tag{{Name: "kitbox.local/one:1", Descriptor: m}}, &good); err != nil {
		t.Fatal(err)
	}
	im, err := s.Image(t.Context(), m, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	layer := im.Manifest.Layers[0].Digest.Encoded()
	blob := func(f func([]byte) []byte) []byte {
		return repack(t, good.Bytes(), func(h *tar.Header, b []byte) []byte {
			if strings.HasSuffix(h.Name, layer) {
				return f(b)
			}
			return b
		})
	}
	for what, archive := range map[string][]byte{
		"no tar":       []byte(strings.Repeat("x", 2000)),
		"no index":     repack(t, good.Bytes(), func(h *tar.Header, b []byte) []byte { return map[bool][]byte{false: b}[h.Name == "index.json"] }),
		"a lost layer": blob(func([]byte) []byte { return nil }),
		"another blob": blob(func(b []byte) []byte { b = bytes.Clone(b); b[0]++; return b }),
		"cut short":    good.Bytes()[:good.Len()/2],
		"a name upwards": repack(t, good.Bytes(), func(h *tar.Header, b []byte) []byte {
			if strings.HasSuffix(h.Name, layer) {
				h.Name = "blobs/sha256/../../../x"
			}
			return b
		}),
	} {
		to := open(t)
		if names, err := to.Load(t.Context(), bytes.NewReader(archive)); err == nil || len(names) > 0 {
			t.Errorf("%s: %q, %v", what, names, err)
		}
		if tags, err := to.Tags(); err != nil || len(tags) > 0 {
			t.Errorf("%s left names: %v, %v", what, tags, err)
		}
	}
	gone := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("gone"), Size: 4}
	if err := s.Save(t.Context(), []layout.Tag{{Name: "x", Descriptor: gone}}, io.Discard); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("saving what is not there: %v", err)
	}
}

// What is read of an archive ends when its reading is interrupted, and that says nothing
// about the archive.
func TestALoadThatIsInterruptedRefusesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t).Load(ctx, iotest.ErrReader(ctx.Err())); !errors.Is(err, context.Canceled) || errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("%v", err)
	}
}
