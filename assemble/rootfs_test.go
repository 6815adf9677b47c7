package assemble_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

type home struct {
	t      testing.TB
	dir    string
	images *layout.Store
}

func newHome(t testing.TB) *home {
	if os.Geteuid() != 0 {
		t.Skip("needs root: layers keep their owners")
	}
	h := &home{t: t, dir: t.TempDir()}
	var err error
	if h.images, err = layout.Open(filepath.Join(h.dir, "images")); err != nil {
		t.Fatal(err)
	}
	return h
}

// layer stores a layer of files, given as path=content; a path that ends in a
// slash is a directory of user 1000, and path@target is a symlink.
func (h *home) layer(files ...string) fetch.Layer {
	h.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		hdr := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}
		if link, to, ok := strings.Cut(f, "@"); ok {
			hdr = &tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: to}
		}
		if strings.HasSuffix(name, "/") {
			hdr.Typeflag, hdr.Mode, hdr.Uid, hdr.Gid = tar.TypeDir, 0o750, 1000, 1000
		}
		if err := w.WriteHeader(hdr); err != nil {
			h.t.Fatal(err)
		}
		w.Write([]byte(content))
	}
	w.Close()
	d, err := h.images.PushBytes(h.t.Context(), ocispec.MediaTypeImageLayer, b.Bytes())
	if err != nil {
		h.t.Fatal(err)
	}
	return fetch.Layer{DiffID: digest.FromBytes(b.Bytes()), Blob: d}
}

func TestRootfsUnpacksAndComposes(t *testing.T) {
	h := newHome(t)
	base := h.layer("home/agent/", "etc/os=1")
	work := &fetch.Kit{Ref: "work", Layers: []fetch.Layer{base, h.layer("bin/work=1")}}
	tool := &fetch.Kit{Ref: "tool", Layers: []fetch.Layer{h.layer("home/agent/.tool=1", "etc/tool=1")}}
	// Carries the base along, and a file that the base has too.
	fat := &fetch.Kit{Ref: "fat", Layers: []fetch.Layer{base, h.layer("opt/fat=1", "etc/os=1")}}
	var told []string
	kits := []*fetch.Kit{work, tool, fat}
	dirs, err := assemble.Rootfs(t.Context(), h.dir, kits, func(k string) { told = append(told, k) })
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) != 5 || !slices.Equal(told, []string{"work", "tool", "fat"}) { // four layers and a skeleton
		t.Errorf("%q, told %q", dirs, told)
	}
	if st, err := os.Stat(filepath.Join(dirs[4], "home/agent")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("the skeleton's home: %v, %v", st, err)
	}
	told = nil
	again, err := assemble.Rootfs(t.Context(), h.dir, kits, func(k string) { told = append(told, k) })
	if err != nil || !slices.Equal(again, dirs) || told != nil {
		t.Errorf("again: %q, %v, told %q", again, err, told)
	}
	// A layer or skeleton that was swept is made again.
	for _, d := range dirs {
		if err := os.RemoveAll(filepath.Dir(d)); err != nil {
			t.Fatal(err)
		}
		again, err = assemble.Rootfs(t.Context(), h.dir, kits, nil)
		if err != nil || !slices.Equal(again, dirs) {
			t.Errorf("without %s: %q, %v", d, again, err)
		}
		if _, err := os.Stat(d); err != nil {
			t.Error(err)
		}
	}
}

func TestRootfsRefusesClashes(t *testing.T) {
	h := newHome(t)
	work := &fetch.Kit{Ref: "work", Layers: []fetch.Layer{h.layer("etc/conf=1", "etc/a=1", "etc/b=1", "etc/c=1", "etc/d=1")}}
	for want, files := range map[string][]string{
		"kits work and tool both bring /etc/conf and differ in it: leave one of them out":                         {"etc/conf=2"},
		"at /etc/conf kit work brings a file and kit tool the removal of it":                                      {"etc/.wh.conf="},
		"at /etc kit work brings a directory and kit tool a file":                                                 {"etc=1"},
		"/etc/a and differ in it; kits work and tool both bring /etc/b and differ in it; kits work and tool both": {"etc/a=2", "etc/b=2", "etc/c=2", "etc/d=2"},
	} {
		_, err := assemble.Rootfs(t.Context(), h.dir, []*fetch.Kit{work, {Ref: "tool", Layers: []fetch.Layer{h.layer(files...)}}}, nil)
		var clash *assemble.ClashError
		if !errors.Is(err, kiterr.ErrRefused) || !errors.As(err, &clash) || !strings.Contains(err.Error(), want) {
			t.Errorf("Rootfs = %v, want %q", err, want)
		}
	}
}

func TestAFileBelowTheBasesSymlinkIsExplained(t *testing.T) {
	h := newHome(t)
	work := &fetch.Kit{Ref: "work", Layers: []fetch.Layer{h.layer("bin@usr/bin", "usr/bin/sh=1")}}
	for _, files := range [][]string{{"bin/", "bin/tool=1"}, {"bin/tool=1"}} { // stated and implied
		_, err := assemble.Rootfs(t.Context(), h.dir, []*fetch.Kit{work, {Ref: "tool", Layers: []fetch.Layer{h.layer(files...)}}}, nil)
		want := "at /bin kit work brings a symlink and kit tool a directory: ship the files at the path that the symlink leads to"
		if !errors.Is(err, kiterr.ErrRefused) || err.Error() != want {
			t.Errorf("Rootfs = %v, want %q", err, want)
		}
	}
}

func TestRootfsNamesTheKitOfABadLayer(t *testing.T) {
	h := newHome(t)
	l := h.layer("a=1")
	l.DiffID = digest.FromString("another")
	_, err := assemble.Rootfs(t.Context(), h.dir, []*fetch.Kit{{Ref: "work", Layers: []fetch.Layer{l}}}, nil)
	if err == nil || !strings.Contains(err.Error(), "kit work: layer ") {
		t.Errorf("Rootfs = %v", err)
	}
	l.Blob.Digest = digest.FromString("gone")
	_, err = assemble.Rootfs(t.Context(), h.dir, []*fetch.Kit{{Ref: "work", Layers: []fetch.Layer{l}}}, nil)
	if !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Rootfs = %v", err)
	}
}

// BenchmarkRootfsOfTenKits composes a workload of 8,000 files and nine mixins of
// 20 files each, which are unpacked already. It reports the bytes that a
// composition adds to the home, which must be none.
func BenchmarkRootfsOfTenKits(b *testing.B) {
	h := newHome(b)
	var files []string
	for i := range 8000 {
		files = append(files, fmt.Sprintf("usr/share/d%d/f%d=%d", i%100, i, i))
	}
	kits := []*fetch.Kit{{Ref: "work", Layers: []fetch.Layer{h.layer(append(files, "home/agent/")...)}}}
	for k := range 9 {
		var files []string
		for i := range 20 {
			files = append(files, fmt.Sprintf("home/agent/kit%d/f%d=%d", k, i, i))
		}
		kits = append(kits, &fetch.Kit{Ref: fmt.Sprint("kit", k), Layers: []fetch.Layer{h.layer(files...)}})
	}
	if _, err := assemble.Rootfs(b.Context(), h.dir, kits, nil); err != nil {
		b.Fatal(err)
	}
	before := size(b, h.dir)
	for b.Loop() {
		if _, err := assemble.Rootfs(b.Context(), h.dir, kits, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size(b, h.dir)-before), "bytes-copied")
}

func size(b *testing.B, dir string) (n int64) {
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// TestAHostileLayerIsNamed says of which Kit it is, and leaves nothing of it.
func TestAHostileLayerIsNamed(t *testing.T) {
	for want, hdr := range map[string]tar.Header{
		"device":               {Name: "opt/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o644},
		"climbs":               {Name: "../etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		"has an absolute name": {Name: "/etc/os", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		h := newHome(t)
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&hdr), w.Close()); err != nil {
			t.Fatal(err)
		}
		d, err := h.images.PushBytes(t.Context(), ocispec.MediaTypeImageLayer, b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		bad := &fetch.Kit{Ref: "hub.example/bad:1", Layers: []fetch.Layer{{DiffID: digest.FromBytes(b.Bytes()), Blob: d}}}
		_, err = assemble.Rootfs(t.Context(), h.dir, []*fetch.Kit{{Ref: "work", Layers: []fetch.Layer{h.layer("etc/os=1")}}, bad}, nil)
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "kit hub.example/bad:1") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", hdr.Name, err)
		}
		if _, err := os.Stat(filepath.Join(h.dir, "layers", bad.Layers[0].DiffID.Encoded())); err == nil {
			t.Errorf("%s is there", hdr.Name)
		}
	}
}
