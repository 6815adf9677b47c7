package source

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plainTexts are read by the plain reader; each pair differs in one way from a
// neighbour that is not.
var plainTexts = []string{
	"a: 1\n", "a: b\nc: d\n", "a:\n  b: c\n", "a:\n- b\n- c\nd: e\n", "a:\n  - b: c\n    d: e\n  - f\n", "a:\n  - - b\n    - c\n",
	"a: [b, {c: d}, [], {}]\n", "a: {b: [c], 'd': \"e\"}\n", "a: |\n  b\n\n   c\n\nd: e\n", "a: |-\n  b\n  \n\nd: |+\n  e\n\n", "- a\n", "a: |\n b\n# c\nd: e\n",
	"a: 'it''s'\nb: \"x\\n\\\"\\\\ y\"\n", "# c\na: b # c\n  # c\nd: e#f\n", "a: b:c\nd: http://e\n", "é: ü — x\nb: [é, c]\n", "a: -c\nb: --d\nc: -1\nd: 1.50\ne: 1.2.3\nf: 2g\n",
	"a: true\nb: null\nc: yes\n", "a: b c\nd : e\n\"f\": g\n", "a: b", "a:\n  [b]\n", "a:\n  b\n", "a:\n  |\n  b\n", "- a: |\n    b\n- c\n", "a: [b , c ]\n",
}

func TestPlainReaderReadsWhatPeopleWrite(t *testing.T) {
	names, err := filepath.Glob("../../examples/*/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	plain := 0
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parsePlain(string(b)); ok {
			plain++
		} else {
			t.Logf("%s is left to the YAML parser", name)
		}
		agree(t, string(b))
	}
	if plain*10 < len(names)*8 {
		t.Errorf("only %d of %d examples are plain", plain, len(names))
	}
}

func TestPlainReaderLeavesTheRest(t *testing.T) {
	for _, text := range []string{
		"", "#\n", "a", "- a\n", "a:\n", "a: \nb: c\n", "a: b: c\n", "a: &x b\n", "a: *x\n", "a: !!str b\n", "--- \na: b\n", "a: b\n...\n", "%YAML 1.2\n", "a:\tb\n", "a: b\r\n",
		"a: >\n  b\n", "a: |2\n  b\n", "a: [b,\n  c]\n", "a: \"b\n  c\"\n", "a: b\n  c\n", "? a\n: b\n", "<<: {a: b}\n", "a: 0x1\n", "a: 1e5\n", "a: .inf\n", "a: 2024-01-02\n",
		"a: ~\n", "null: a\n", "a: [b: c]\n", "a: {b}\n", "a: [b,]\n", "a: {\"b\":c}\n", "a: \"\\u0041\"\n", "a: b\n c: d\n", "a: - b\n", "a:\n - b\n  - c\n", "\ufeffa: b\n",
		"a: |\n    b\n  c\n", "a: |\n   \n  b\n", "a: 'b\n", "a: [b\n", "a: @b\n", "a: \"b\"c\n", "a: \"b\"#c\n", "a: TRUE\n", "a: No\n", "a: {b: }\n", "a: [-]\n", "a: |\n  b",
	} {
		if n, ok := parsePlain(text); ok {
			t.Errorf("%q is read as %s", text, n.AppendJSON(nil))
		}
	}
}

// agree holds the two readers of YAML against each other.
func agree(t *testing.T, text string) {
	t.Helper()
	a, ok := parsePlain(text)
	if !ok {
		return
	}
	b, err := parseYAML(text)
	if err != nil {
		t.Fatalf("%q is refused by the YAML parser (%v) and read by the plain reader as %s", text, err, a.AppendJSON(nil))
	}
	if why := differ(a, b); why != "" {
		t.Fatalf("%q: %s\nplain %s\nYAML  %s", text, why, a.AppendJSON(nil), b.AppendJSON(nil))
	}
}

func differ(a, b *Node) string {
	if a.Kind != b.Kind || a.Key != b.Key || a.Text != b.Text || a.Pos != b.Pos || a.KeyPos != b.KeyPos || a.Count != b.Count || a.spelled != b.spelled || a.end != b.end {
		return strings.Join([]string{a.Path(), "differs:", describe(a), "and", describe(b)}, " ")
	}
	d := b.First
	for c := a.First; c != nil; c, d = c.Next, d.Next {
		if why := differ(c, d); why != "" {
			return why
		}
	}
	return ""
}

func describe(n *Node) string {
	return fmt.Sprintf("%v %q %q %v %v", n.Kind, n.Key, n.Text, n.Pos, n.KeyPos)
}

func TestReadersOfYAMLAgree(t *testing.T) {
	read := 0
	for _, text := range plainTexts {
		if _, ok := parsePlain(text); ok {
			read++
		}
		agree(t, text)
	}
	if read < len(plainTexts)*4/5 {
		t.Errorf("only %d of %d are plain", read, len(plainTexts))
	}
}

// FuzzPlain says: what the plain reader accepts, the YAML parser reads alike.
// Nothing needs to be said about what it refuses.
func FuzzPlain(f *testing.F) {
	for _, text := range plainTexts {
		f.Add(text)
	}
	names, _ := filepath.Glob("../../examples/*/*.yaml")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(string(b))
		}
	}
	f.Fuzz(agree)
}

// TestReadersOfYAMLAgreeOnWhatNobodyWrites puts pieces of YAML together at
// random. It finds what changes of single bytes do not.
func TestReadersOfYAMLAgreeOnWhatNobodyWrites(t *testing.T) {
	pieces := strings.Split("a|b c|- |: |:|\n|  |\n  |\n    |\n- |\n  - |\na: |\n  b: |[|]|{|}|, |,|#| # |'|\"|''|\\n|\\\\|true|null|yes|1|-1.5|1.2.3|2g|-x|--|é|—|?|&|!|>|~|.| |%|@|=|<<|0x1|1:2|x:y|-|- - |: [|]\n|: {a: |}\n|\"x\"|'y'|\n#c\n|\n\n", "|")
	pieces = append(pieces, "|", "|-", "|+", ": |\n  x\n", ": |\n  ", ": |-\n    y\n\n", "\n   \n", "- |\n  z\n")
	r := rand.New(rand.NewPCG(1, 2))
	rounds, read := 20_000, 0
	if testing.Short() {
		rounds = 5_000
	}
	for range rounds {
		var b strings.Builder
		b.WriteString("a: ")
		for range 1 + r.IntN(12) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		if r.IntN(4) > 0 {
			b.WriteByte('\n')
		}
		if _, ok := parsePlain(b.String()); ok {
			read++
			agree(t, b.String())
		}
	}
	t.Logf("%d of %d are plain", read, rounds)
	if read < rounds/100 {
		t.Errorf("only %d of %d are plain", read, rounds)
	}
}
