package untar_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/internal/store/untar"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// What single tars may do is tested through package layer, beside what becomes
// of them when they are mounted. Here is what the stream may do.

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers keep their owners")
	}
}

func makeTar(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		if err := w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(n))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, data io.Reader, kind string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch kind {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.Copy(w, data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A small blob can hold any amount of nothing after the end of its tar.
func TestABombIsRefusedAtTheLimit(t *testing.T) {
	needRoot(t)
	for _, kind := range []string{"gzip", "zstd"} {
		blob := compressed(t, io.MultiReader(bytes.NewReader(makeTar(t, "a")), io.LimitReader(zeros{}, 64<<20)), kind)
		if len(blob) > 1<<20 {
			t.Fatalf("the bomb has %d bytes", len(blob))
		}
		_, err := untar.Unpack(t.Context(), t.TempDir(), bytes.NewReader(blob), untar.Limits{Bytes: 8 << 20})
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "larger than 8388608 bytes") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestDamagedCompressionIsAnError(t *testing.T) {
	needRoot(t)
	data := makeTar(t, strings.Repeat("a", 90), "b")
	for _, kind := range []string{"gzip", "zstd"} {
		whole := compressed(t, bytes.NewReader(data), kind)
		for cut := 1; cut < len(whole); cut += 7 {
			if _, err := untar.Unpack(t.Context(), t.TempDir(), bytes.NewReader(whole[:cut]), untar.Limits{}); err == nil {
				t.Errorf("%s cut off after %d of %d bytes was accepted", kind, cut, len(whole))
			}
		}
		flipped := slices.Clone(whole)
		flipped[len(flipped)-3] ^= 0xff // in the checksum
		if r, err := untar.Unpack(t.Context(), t.TempDir(), bytes.NewReader(flipped), untar.Limits{}); err == nil && r.DiffID == digest.FromBytes(data) {
			t.Errorf("%s with a wrong checksum was accepted", kind)
		}
	}
	if _, err := untar.Unpack(t.Context(), t.TempDir(), strings.NewReader("not a tar at all, and long enough to be looked at"), untar.Limits{}); err == nil {
		t.Error("text was accepted")
	}
}

func TestAnEmptyLayer(t *testing.T) {
	needRoot(t)
	for _, blob := range [][]byte{makeTar(t), nil} {
		dir := t.TempDir()
		r, err := untar.Unpack(t.Context(), dir, bytes.NewReader(blob), untar.Limits{})
		if err != nil || len(r.Entries) != 0 || r.DiffID != digest.FromBytes(blob) || !slices.Equal(r.Implied, []string{"."}) {
			t.Errorf("%d bytes: %+v, %v", len(blob), r, err)
		}
	}
}

func TestResultListsWhatIsThere(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	r, err := untar.Unpack(t.Context(), dir, bytes.NewReader(makeTar(t, "z", "d/e/f", "d/.wh.gone", "d/e/.wh..wh..opq")), untar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Entries {
		s := string(e.Kind) + " " + e.Path
		if e.Implied {
			s += " implied"
		}
		if e.Opaque {
			s += " opaque"
		}
		got = append(got, s)
	}
	want := []string{"d d implied", "d d/e implied opaque", "f d/e/f", "w d/gone", "f z"}
	if !slices.Equal(got, want) || r.Bytes != int64(len("z")+len("d/e/f")) {
		t.Errorf("%q, %d bytes; want %q", got, r.Bytes, want)
	}
	again, err := inventory.Decode(r.Entries.Encode())
	if err != nil || !slices.Equal(again, r.Entries) {
		t.Errorf("%v changed on the way around: %v, %v", r.Entries, again, err)
	}
	if st, err := os.Lstat(filepath.Join(dir, "d/gone")); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the whiteout is %v, %v", st, err)
	}
}

// The reader gives up, and so must the goroutine that decompresses.
func TestUnpackStopsReadingAfterARefusal(t *testing.T) {
	needRoot(t)
	src := &counting{r: io.MultiReader(bytes.NewReader(makeTar(t, "../x")[:1024]), zeros{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := untar.Unpack(ctx, t.TempDir(), src, untar.Limits{}); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("Unpack = %v", err)
	}
	n := src.n
	if n > 16<<20 {
		t.Errorf("read %d bytes", n)
	}
	if _, err := untar.Unpack(ctx, t.TempDir(), src, untar.Limits{Bytes: 1 << 20}); err == nil {
		t.Error("an endless stream was accepted")
	}
}

type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
