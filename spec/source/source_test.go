package source_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/source"
)

func TestParseYieldsJSON(t *testing.T) {
	for text, want := range map[string]string{
		"a: [1, 2.50, true, ~, x]\n":                  `{"a":[1,2.50,true,null,"x"]}`,
		"a: 0x1f\nb: 0o17\nc: 1_000\nd: .5\ne: +3":    `{"a":31,"b":15,"c":1000,"d":0.5,"e":3}`,
		"a: &x {b: 1}\nc: {<<: *x, d: *x}":            `{"a":{"b":1},"c":{"d":{"b":1},"b":1}}`,
		"a: {<<: [{b: 1, c: 2}, {b: 3, d: 4}], c: 5}": `{"a":{"c":5,"b":1,"d":4}}`,
		`{"a" : "\u00e9\ud83d\ude00" , "b":-0.5e+3}`:  `{"a":"é😀","b":-0.5e+3}`,
		`{"a":1} # YAML after all`:                    `{"a":1}`,
		"? a\n: b\n":                                  `{"a":"b"}`,
		"2024-01-02":                                  `"2024-01-02"`,
		"!!str 12":                                    `"12"`,
		"yes":                                         `"yes"`,
		"a: 1\n---\n[":                                `{"a":1}`,
		"{'a': \"\\x41\"}":                            `{"a":"A"}`,
	} {
		n, err := source.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := string(n.AppendJSON(nil)); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

func TestFaultsHaveAPlace(t *testing.T) {
	for text, place := range map[string][2]int{
		"a: b\nc: [\n":             {3, 1},
		"a: b\n\xff":               {2, 1},
		"a: !x y":                  {1, 4},
		"a: 1\nb:\n  ? [c]\n  : d": {3, 5},
		"a: .nan":                  {1, 4},
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}": {1, 134},
	} {
		_, err := source.Parse(text)
		var se *source.SyntaxError
		if !errors.As(err, &se) {
			t.Errorf("%.40q: %v", text, err)
			continue
		}
		if line, column := se.Pos.Resolve(text); line != place[0] || column != place[1] {
			t.Errorf("%.40q: at %d:%d (%v), want %v", text, line, column, err, place)
		}
	}
	for _, text := range []string{"", "# only words\n", "\n\n"} {
		if _, err := source.Parse(text); err != io.EOF {
			t.Errorf("%q: %v, want EOF", text, err)
		}
	}
}

func TestLocate(t *testing.T) {
	n, err := source.Parse(`{"a":[{"b.c":{"d":1}},{"e":2}],"f":3}`)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"": "", "a[1].e": "a[1].e", "a[0].b.c.d": "a[0].b.c.d", "a[7]": "a", "a[1].x.y": "a[1]", "f.g": "f", "a[x]": "a"} {
		got, exact := source.Locate(n, path)
		if got.Path() != want || exact != (path == want) {
			t.Errorf("Locate(%q) = %q, %v; want %q", path, got.Path(), exact, want)
		}
	}
}

// FuzzParse says: what is parsed renders as JSON that parses to the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: [1, {b: ~}]", `{"a":"\u0041","b":[1e5,{}]}`, "a: &x [y]\nb: *x", "- 0x10\n- .5\n- 'q'", "<<: {a: b}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := source.Parse(text)
		if err != nil {
			return
		}
		first := n.AppendJSON(nil)
		again, err := source.Parse(string(first))
		if err != nil {
			t.Fatalf("%q renders as %q, which does not parse: %v", text, first, err)
		}
		if second := again.AppendJSON(nil); string(first) != string(second) {
			t.Fatalf("%q renders as %q and then as %q", text, first, second)
		}
	})
}

// FuzzReadersAgree holds the JSON reader against the YAML parser: what both
// accept means the same. A comment behind the document keeps the JSON reader
// away and is nothing to YAML.
func FuzzReadersAgree(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"a":[true,null,-0,1.50,"x\n\t\u00e9\/"],"b":{}}`, `{"a":"1","b":" x ","c":"# no"}`, "{\"a\":\r\n\t1}", `{"":{"<<":{"a":1}}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := source.Parse(text)
		if err != nil || !strings.HasPrefix(strings.TrimSpace(text), "{") {
			return
		}
		b, err := source.Parse(text + " # x")
		if err != nil {
			return
		}
		if x, y := string(a.AppendJSON(nil)), string(b.AppendJSON(nil)); x != y {
			t.Fatalf("%q is %s in one reader and %s in the other", text, x, y)
		}
	})
}
