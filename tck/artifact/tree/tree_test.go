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

// layer makes a tar of names: "d/" is a directory, "l>x" a symlink to x, "h=x" a
// hard link to x, all others files.
func layer(t testing.TB, names ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		h := tar.Header{Name: n, Typeflag: tar.TypeReg, Mode: 0o644}
		if strings.HasSuffix(n, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o700
		} else if name, to, ok := strings.Cut(n, ">"); ok {
			h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeSymlink
		} else if name, to, ok := strings.Cut(n, "="); ok {
			h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeLink
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func list(v tree.View) (out []string) {
	tree.Walk(v, "/", func(name string, e tree.Entry) bool {
		out = append(out, name+" "+string(rune(e.Kind)))
		return true
	})
	return out
}

func TestHowLayersStack(t *testing.T) {
	for what, c := range map[string]struct {
		layers [][]string
		want   []string
	}{
		"implied directories":           {[][]string{{"a/b/c"}}, []string{"/a d", "/a/b d", "/a/b/c f"}},
		"a whiteout":                    {[][]string{{"a/b", "a/c"}, {"a/.wh.b"}}, []string{"/a d", "/a/c f"}},
		"a whiteout of a tree":          {[][]string{{"a/b/c", "d"}, {".wh.a"}}, []string{"/d f"}},
		"its own names are spared":      {[][]string{{"a/b"}, {"a/b", "a/.wh.b"}}, []string{"/a d", "/a/b f"}},
		"an opaque directory":           {[][]string{{"a/b", "a/c/d"}, {"a/e", "a/.wh..wh..opq"}}, []string{"/a d", "/a/e f"}},
		"an opaque one around new ones": {[][]string{{"a/b/old"}, {"a/b/new", "a/.wh..wh..opq"}}, []string{"/a d", "/a/b d", "/a/b/new f"}},
		"a file for a directory":        {[][]string{{"a/b"}, {"a"}}, []string{"/a f"}},
		"a directory for a file":        {[][]string{{"a"}, {"a/b"}}, []string{"/a d", "/a/b f"}},
		"through a link below":          {[][]string{{"real/", "link>real"}, {"link/x"}}, []string{"/link l", "/real d", "/real/x f"}},
		"through a link of its own":     {[][]string{{"real/", "link>real", "link/x"}}, []string{"/link l", "/real d", "/real/x f"}},
		"its own link to what is not":   {[][]string{{"link>/a/b/../c", "link/x"}}, []string{"/a d", "/a/c d", "/a/c/x f", "/link l"}},
		"a link below to what is not":   {[][]string{{"link>none"}, {"link/x"}}, []string{"/link d", "/link/x f"}},
		"a link below to a file":        {[][]string{{"f", "link>f"}, {"link/x"}}, []string{"/f f", "/link d", "/link/x f"}},
		"a whiteout through a link":     {[][]string{{"real/a", "real/b"}, {"link>real", "link/.wh.a"}}, []string{"/link l", "/real d", "/real/b f"}},
		"a hard link":                   {[][]string{{"a", "b=a"}}, []string{"/a f", "/b f"}},
		"a whiteout of nothing":         {[][]string{{"a"}, {"x/.wh.y", ".wh.z", ".wh."}}, []string{"/a f"}},
		"names that climb":              {[][]string{{"../a", "b/../c", "d"}}, []string{"/d f"}},
		"a name too long":               {[][]string{{"d", strings.Repeat("x/", 3000) + "y"}}, []string{"/d f"}},
	} {
		var v tree.Tree
		for _, l := range c.layers {
			if err := v.Add(t.Context(), layer(t, l...)); err != nil {
				t.Fatal(err)
			}
		}
		if got := list(&v); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

func TestResolve(t *testing.T) {
	var v tree.Tree
	if err := v.Add(t.Context(), layer(t, "usr/bin/dash", "bin>usr/bin", "usr/bin/sh>dash", "up>../../usr", "round>round", "abs>/bin/sh", "file/..x", "f")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"/bin/sh": "/usr/bin/dash", "/abs": "/usr/bin/dash", "/up/bin/dash": "/usr/bin/dash", "/": "/", "/usr/../f": "/f",
		"/round": "", "/f/x": "", "/none": "", "bin": "/usr/bin",
	} {
		if got, _, ok := tree.Resolve(&v, name); got != want || ok != (want != "") {
			t.Errorf("%s leads to %q, %v; want %q", name, got, ok, want)
		}
	}
}

// TestHostileLayersEnd gives layers that would take more memory or time than
// anybody has.
func TestHostileLayersEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a second or two")
	}
	names := make([]string, 0, 12_000)
	for i := range 6_000 {
		names = append(names, fmt.Sprintf("d/%d", i))
	}
	for range 6_000 {
		names = append(names, "d/.wh..wh..opq") // each looks at all of its own names
	}
	var v tree.Tree
	if err := v.Add(t.Context(), layer(t, names...)); !errors.Is(err, tree.ErrTooLarge) {
		t.Errorf("whiteouts: %v", err)
	}
	v = tree.Tree{Keep: func(string) bool { return true }}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 65 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := v.Add(t.Context(), &b); !errors.Is(err, tree.ErrTooLarge) {
		t.Errorf("a large file: %v", err)
	}
}
