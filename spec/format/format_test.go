package format_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/format"
)

var update = flag.Bool("update", false, "rewrite the expected layouts")

// TestLayout compares the layouts in testdata: each archive holds "in" and what
// it becomes, "out"; without "out" the input is laid out already.
func TestLayout(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := ar.Files[0].Data
			want := in
			if len(ar.Files) > 1 {
				want = ar.Files[1].Data
			}
			got := formatted(t, in)
			if bytes.Equal(got, want) {
				return
			}
			if *update {
				ar.Files = append(ar.Files[:1], txtar.File{Name: "out", Data: got})
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		})
	}
}

// formatted formats src and holds the result against what formatting promises.
func formatted(t *testing.T, src []byte) []byte {
	t.Helper()
	out, err := format.Source(src)
	if err != nil {
		t.Fatal(err)
	}
	promise(t, src, out)
	return out
}

func promise(t *testing.T, src, out []byte) {
	t.Helper()
	again, err := format.Source(out)
	if err != nil {
		t.Fatalf("the result cannot be formatted: %v\n%s", err, out)
	}
	if !bytes.Equal(again, out) {
		t.Fatalf("formatting twice differs from once:\n%q\n%q\n%q", src, out, again)
	}
	a, da := spec.Decode(src, spec.Options{})
	b, db := spec.Decode(out, spec.Options{})
	if (a == nil) != (b == nil) || len(da) != len(db) {
		t.Fatalf("decoding differs: %v before, %v after\n%s", da, db, out)
	}
	if a != nil {
		ja, ea := a.AppendJSON(nil)
		jb, eb := b.AppendJSON(nil)
		if !bytes.Equal(ja, jb) || (ea == nil) != (eb == nil) {
			t.Fatalf("the descriptor changed:\n%s\n%s", ja, jb)
		}
	}
	if x, y := words(src), words(out); !slices.Equal(x, y) {
		t.Fatalf("lines were lost or made up:\n%q\n%q", x, y)
	}
}

// words returns the lines without what formatting may change: their order,
// indentation, the blanks at their ends and behind a dash.
func words(src []byte) []string {
	var out []string
	for l := range strings.Lines(strings.TrimPrefix(string(src), "\ufeff")) {
		if l = strings.Join(strings.Fields(strings.TrimLeft(l, "# \t")), " "); l != "" {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return out
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, src string
		want      error
	}{
		{"nothing", "", kiterr.ErrRefused},
		{"a list", "- a\n", kiterr.ErrRefused},
		{"another kind of file", "services:\n  web:\n    image: x\n", format.ErrNotDescriptor},
		{"broken", "kind: [\n", kiterr.ErrRefused},
		{"binary", "\x7fELF\x00\x01\xff", kiterr.ErrRefused},
		{"deep", "kind: " + strings.Repeat("[", 10000) + "\n", kiterr.ErrRefused},
		{"aliases", "kind: x\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", kiterr.ErrRefused},
		{"large", "kind: mixin\ndescription: " + strings.Repeat("x", 1<<20) + "\n", nil},
		{"a question mark", "? kind\n: mixin\n", nil},
		{"another line break", "kind: mixin\n# a\u2028b\n", nil},
	} {
		out, err := format.Source([]byte(c.src))
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %q", c.name, err, out)
		}
	}
}

// TestExamplesStay holds the layout of whole Kits against the examples of the
// module: formatting must find nothing to say about comments or quotes.
func TestExamplesKeepTheirLines(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*/*.yaml")
	if len(files) == 0 {
		t.Fatal("no examples")
	}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		formatted(t, src)
	}
}

// TestHostileTextsAreLaidOutInTime tries what would be quadratic.
func TestHostileTextsAreLaidOutInTime(t *testing.T) {
	for _, s := range []string{"# start %\n", "# end\n", "# start %\n# end %\n", "k%: 1\n", "- a\n", "- - - - b\n", "k%: |\n  a\n", "k%: \"a\n b\"\n", "k%: [a,\n b]\n", "\n", "k%:\n\n# c\n\n"} {
		var b strings.Builder
		b.WriteString("schemaVersion: \"3\"\nkind: mixin\nlist:\n")
		for i := 0; b.Len() < 300_000/slowdown && i < 15000/slowdown; i++ {
			b.WriteString(strings.ReplaceAll(s, "%", strconv.Itoa(i)))
		}
		b.WriteString("z: 1\n")
		start := time.Now()
		_, err := format.Source([]byte(b.String()))
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%q repeated takes %v: %v", s, took, err)
		}
	}
}

func FuzzSource(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ar.Files[0].Data)
	}
	for _, s := range []string{
		"kind: a\nargs:\n        b: |\n             x\n           # c\n", "kind: x\r\nversion: 1\r\n", "a: &x 1\nkind: *x\nschemaVersion: 3\n",
		"kind: |+\n  a\n\n\nversion: x\n", "kind: >1-\n   a\n", "kind: 'a\n\n  # b'\n", "kind: [a,\n# b\nc\n]\n", "--- # x\nkind: a\n---\nb: c\n",
		"kind:\n- - a\n  -   b: 1\n      c: 2\n-\n  d\n", "# start\nkind: a\n# end\nschemaVersion: 3\n", "kind: \"a \\\n   b\"\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		out, err := format.Source(src)
		if err != nil {
			return // refusing is always allowed
		}
		promise(t, src, out)
	})
}
