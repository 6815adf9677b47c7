package tree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// entries makes a tar of headers without content.
func entries(t testing.TB, hs ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func plain(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}
}

// sparse makes a tar of one file in the sparse format of old GNU tar: data, and
// a hole up to size behind it. Nothing in the standard library writes one.
func sparse(t testing.TB, name, data string, size int64) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)), Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	h := b.Bytes()[:512]
	h[156] = tar.TypeGNUSparse
	number := func(at int, n int64) { copy(h[at:], fmt.Sprintf("%011o\x00", n)) }
	number(386, 0)
	number(398, int64(len(data)))
	number(410, size) // the hole ends the file
	number(422, 0)
	number(483, size)
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return &b
}

// TestEntriesThatNobodyUnpacks are faults, because a Kit that a runtime refuses
// is not to pass for a good one.
func TestEntriesThatNobodyUnpacks(t *testing.T) {
	long := strings.Repeat("x", 256)
	for what, c := range map[string]struct {
		layers [][]tar.Header
		fault  string
	}{
		"a device":                     {[][]tar.Header{{{Name: "opt/sda", Typeflag: tar.TypeBlock}}}, "is a device node"},
		"a device through a link":      {[][]tar.Header{{plain("dev/x")}, {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "dev"}}, {{Name: "d/null", Typeflag: tar.TypeChar}}}, "is a device node"},
		"the usual devices":            {[][]tar.Header{{{Name: "dev/null", Typeflag: tar.TypeChar}, {Name: "./dev/pts/0", Typeflag: tar.TypeChar}}}, ""},
		"a hard link below":            {[][]tar.Header{{plain("a")}, {{Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}}}, "in a layer below"},
		"a hard link in its layer":     {[][]tar.Header{{plain("a"), {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}}}, ""},
		"a hard link to what it hides": {[][]tar.Header{{plain("a")}, {plain("a"), {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}}}, ""},
		"an owner nobody has":          {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeReg, Uid: 65536}}}, "65536:0"},
		"a group nobody has":           {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeReg, Gid: 1 << 20}}}, "0:1048576"},
		"the last owner":               {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeReg, Uid: 65535, Gid: 65535}}}, ""},
		"an unknown type":              {[][]tar.Header{{{Name: "a", Typeflag: 'V', Format: tar.FormatGNU}}}, "unknown type"},
		"a root that is a file":        {[][]tar.Header{{{Name: "./.", Typeflag: tar.TypeReg}}}, "place of the root"},
		"a long element":               {[][]tar.Header{{plain("a/" + long)}}, "longer than a path can be"},
		"a link to nothing":            {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeSymlink}}}, "usable target"},
		"a file below a file":          {[][]tar.Header{{plain("a"), plain("a/b")}}, "no directory"},
		"a directory for a file":       {[][]tar.Header{{plain("a")}, {plain("a/b")}}, ""},
		"a whiteout of nothing":        {[][]tar.Header{{plain("a/.wh.")}}, "whiteout of nothing"},
		"one of the directory itself":  {[][]tar.Header{{plain("a/.wh..")}}, "whiteout of nothing"},
		"one of the directory above":   {[][]tar.Header{{plain("a/.wh...")}}, "whiteout of nothing"},
		"links in a circle":            {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a"}, plain("a/x")}}, "too many symlinks"},
		"a link that grows":            {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "a/" + strings.Repeat("x/", 1800)}, plain("a/x")}}, "too many symlinks"},
		"a long way through a link":    {[][]tar.Header{{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x/", 1800)}, plain("a/" + strings.Repeat("y/", 1800) + "z")}}, "longer than one can be"},
	} {
		v := tree.Tree{Hash: true}
		for _, l := range c.layers {
			if err := v.Add(t.Context(), entries(t, l...)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if got := strings.Join(v.Faults, "\n"); c.fault == "" && got != "" || !strings.Contains(got, c.fault) {
			t.Errorf("%s: %q, want %q", what, got, c.fault)
		}
	}
}

func TestSparseFiles(t *testing.T) {
	v := tree.Tree{Hash: true}
	if err := v.Add(t.Context(), sparse(t, "bin/x", "#!", 1<<20)); err != nil {
		t.Fatal(err)
	}
	if e, ok := v.At("/bin/x"); !ok || e.Kind != tree.File || e.Size != 1<<20 || e.Mode != 0o755 || len(v.Faults) > 0 {
		t.Errorf("%+v, %v, %q", e, ok, v.Faults)
	}
	if err := v.Add(t.Context(), sparse(t, "bin/x", "#!", 1<<20+1)); err != nil || len(v.Overwrites) != 1 {
		t.Errorf("a longer hole: %v, %v", v.Overwrites, err)
	}
}

// TestAHoleWithoutEnd takes one block of a tar and no time.
func TestAHoleWithoutEnd(t *testing.T) {
	v := tree.Tree{Hash: true}
	b := sparse(t, "x", "", 1<<20)
	h := b.Bytes()[:512]
	for _, at := range []int{410, 483} { // in base 256, as GNU tar has it
		copy(h[at:at+12], []byte{0x80, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0})
	}
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if err := v.Add(t.Context(), b); !errors.Is(err, tree.ErrTooLarge) {
		t.Errorf("%v, %+v", err, v.Faults)
	}
}

// TestDeepWaysEnd has entries two thousand directories deep, which cost a tar nothing
// once it is compressed.
func TestDeepWaysEnd(t *testing.T) {
	deep := plain(strings.Repeat("x/", 1900) + "y")
	one := entries(t, deep).Bytes()
	one = one[:len(one)-1024] // without the end
	v := tree.Tree{Hash: true}
	n := 0
	err := v.Add(t.Context(), readerFunc(func(p []byte) (int, error) {
		k := copy(p, one[n%len(one):])
		n += k
		return k, nil
	}))
	if !errors.Is(err, tree.ErrTooLarge) || n/len(one) > 3000 {
		t.Errorf("%v after %d entries", err, n/len(one))
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestWhatALayerDoesToOthers is recorded: other content, another owner or mode,
// and what it takes away.
func TestWhatALayerDoesToOthers(t *testing.T) {
	owned := tar.Header{Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 1}
	for what, c := range map[string]struct {
		below, above []tar.Header
		want         []tree.Overwrite
	}{
		"the same":           {[]tar.Header{plain("d/a")}, []tar.Header{plain("d/a")}, nil},
		"another owner":      {[]tar.Header{plain("d/a")}, []tar.Header{owned}, []tree.Overwrite{{"/d/a", 0, 1, false}}},
		"another mode":       {[]tar.Header{plain("d/a")}, []tar.Header{{Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o4755}}, []tree.Overwrite{{"/d/a", 0, 1, false}}},
		"an attribute":       {[]tar.Header{plain("d/a")}, []tar.Header{{Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o644, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}}, []tree.Overwrite{{"/d/a", 0, 1, false}}},
		"a whiteout":         {[]tar.Header{plain("d/a")}, []tar.Header{plain("d/.wh.a")}, []tree.Overwrite{{"/d/a", 0, 1, true}}},
		"an opaque one":      {[]tar.Header{plain("d/b"), plain("d/a")}, []tar.Header{plain("d/.wh..wh..opq")}, []tree.Overwrite{{"/d/a", 0, 1, true}, {"/d/b", 0, 1, true}}},
		"one of a directory": {[]tar.Header{plain("d/e/a")}, []tar.Header{plain(".wh.d")}, []tree.Overwrite{{"/d/e/a", 0, 1, true}}},
		"a file for a directory": {[]tar.Header{plain("d/a")}, []tar.Header{plain("d")},
			[]tree.Overwrite{{"/d", 0, 1, false}, {"/d/a", 0, 1, true}}},
		"nothing": {[]tar.Header{plain("d/a")}, []tar.Header{plain("d/.wh.z"), {Name: "d/", Typeflag: tar.TypeDir, Uid: 3}}, nil},
	} {
		v := tree.Tree{Hash: true}
		for _, l := range [][]tar.Header{c.below, c.above} {
			if err := v.Add(t.Context(), entries(t, l...)); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(v.Overwrites, c.want) {
			t.Errorf("%s: %v, want %v", what, v.Overwrites, c.want)
		}
	}
}

// TestManyUpdatesHideNothing has a layer update a thousand files of one, and one
// file of another.
func TestManyUpdatesHideNothing(t *testing.T) {
	var many []tar.Header
	for i := range 2000 {
		many = append(many, plain(fmt.Sprintf("d/%d", i)))
	}
	v := tree.Tree{Hash: true}
	changed := slices.Clone(many)
	for i := range changed {
		changed[i].Mode = 0o600
	}
	for _, l := range [][]tar.Header{{plain("first")}, many, append(changed, plain(".wh.first"))} {
		if err := v.Add(t.Context(), entries(t, l...)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(v.Overwrites, tree.Overwrite{Path: "/first", Below: 0, Above: 2, Removed: true}) || len(v.Overwrites) > 10 {
		t.Errorf("%v", v.Overwrites)
	}
}
