package spec_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

const head = "schemaVersion: \"3\"\nkind: mixin\n"

// judge decodes and validates.
func judge(src string, form capability.Form) spec.Diagnostics {
	d, diags := spec.Decode([]byte(src), spec.Options{File: "x.yaml", Form: form})
	if d != nil {
		diags = append(diags, d.Validate()...)
	}
	return diags
}

func paths(diags spec.Diagnostics) []string {
	var out []string
	for _, d := range diags {
		if d.Severity == spec.Error {
			out = append(out, d.Stage+" "+d.Path)
		}
	}
	return out
}

func TestDecodingIsStrict(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{head + "Kind: mixin\n", "decode Kind"},
		{head + "nmae: x\n", "decode nmae"},
		{head + "kind: mixin\n", "decode kind"},
		{head + "description: [a]\n", "decode description"},
		{head + "description: null\n", "decode description"},
		{head + "description:\n", "decode description"},
		{head + "provides: a\n", "decode provides"},
		{head + "provides: [[a]]\n", "decode provides[0]"},
		{head + "capabilities: {a: b}\n", "decode capabilities"},
		{head + "capabilities: [x]\n", "decode capabilities[0]"},
		{head + "capabilities: [{type: a/b@1, config: {a: 1, b: {c: 1, c: 2}}}]\n", "decode capabilities[0].config.b.c"},
		{head + "capabilities: [{type: a/b@1, optional: \"yes\"}]\n", "decode capabilities[0].optional"},
		{head + "capabilities: [{type: a/b@1, optional: null}]\n", "decode capabilities[0].optional"},
		{head + "capabilities: [{type: a/b@1, name: true}]\n", "decode capabilities[0].name"},
		{head + "capabilities: [{group: {name: 1, capabilities: [{type: a/b@1}]}}]\n", "decode capabilities[0].group.name"},
		{head + "capabilities: [{group: null}]\n", "decode capabilities[0].group"},
		{head + "args: {x: {default: [a]}}\n", "decode args.x.default"},
		{head + "args: {x: null}\n", "decode args.x"},
		{head + "kits: [{ref: a, tag: b}]\n", "decode kits[0].tag"},
		{head + "? [a]\n: b\n", "decode "},
		{head + "1: b\n", "decode 1"},
		{head + "description: !!binary aGk=\n", "decode "},
		{head + "description: !x y\n", "decode "},
		{head + "description: .inf\n", "decode "},
		{"schemaVersion: 3\nkind: mixin\n", "decode schemaVersion"},
		{"", "decode "},
		{"# nothing\n", "decode "},
		{"- a\n", "decode "},
		{"a: [\n", "decode "},
		{"schemaVersion: \"\xff\"\n", "decode "},
	} {
		diags := judge(c.src, capability.Authored)
		if got := paths(diags); len(got) == 0 || got[0] != c.want {
			t.Errorf("%q gives %q, want %q first", c.src, got, c.want)
		}
		if err := diags.Err(); !errors.Is(err, kiterr.ErrRefused) || !errors.Is(err, spec.ErrInvalid) {
			t.Errorf("%q: %v is of no family", c.src, err)
		}
	}
}

func TestUnknownKeysGetAHint(t *testing.T) {
	for src, want := range map[string]string{
		"name: x": "identified by the reference", "display_name: x": "did you mean displayName?", "SourceURL: x": "did you mean sourceUrl?",
		"capabilites: []": "did you mean capabilities?", "zzz: x": `unknown key "zzz"`, "args: {x: {requird: true}}": "did you mean required?",
		"capabilities: [{typ: a/b@1}]": "did you mean type?", "capabilities: [{group: {optinal: true, capabilities: []}}]": "did you mean optional?",
	} {
		if diags := judge(head+src+"\n", capability.Authored); len(diags) == 0 || !strings.HasSuffix(diags[0].Message, want) && !strings.Contains(diags[0].Message, want) {
			t.Errorf("%q: %v, want %q", src, diags, want)
		}
	}
}

func TestWhatAuthorsWriteIsAccepted(t *testing.T) {
	for _, src := range []string{
		"schemaVersion: '3'\nkind: mixin\nversion: 0.1.0\n",
		"# syntax=docker/sandbox-kit:3\n---\n" + head + "---\nnot: [a descriptor\n",
		head + "args: {port: {default: 8080}, on: {default: true, enum: [true, false]}}\n",
		head + "x-anchors: &x\n"[:0] + "licenses: &l [MIT]\nprovides: []\n",
		head + "args:\n  a: &a {description: d}\n  b: *a\n  c: {<<: *a, default: x}\n",
		head + "capabilities:\n  - type: com.example/x@1\n    config: {a: 0x1f, b: 1_000, c: .5, d: ~, e: 2024-01-02}\n",
		head + "description: >-\n  folded\n  text\n",
		head + "description: ${X} $Y ${{ github.ref }}\n",
		"{\"schemaVersion\": \"3\", \"kind\": \"mixin\", \"description\": \"\\ud83d\\ude00\"}",
		"\ufeffschemaVersion: \"3\"\nkind: mixin\n",
		head + "version: 1.0\n",
	} {
		if diags := judge(src, capability.Authored); len(diags) > 0 {
			t.Errorf("%q: %v", src, diags)
		}
	}
}

func TestScalarsKeepTheirSpelling(t *testing.T) {
	d, diags := spec.Decode([]byte(head+"version: 1.10\nargs: {a: {default: 007}}\ncapabilities: [{type: a/b@1, config: {a: 1.50, b: 0x10, c: 12345678901234567890, \"k\\\"\": null}}]\n"), spec.Options{})
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	if d.Version != "1.10" || *d.Args["a"].Default != "007" {
		t.Errorf("version %q, default %q", d.Version, *d.Args["a"].Default)
	}
	if got, want := string(d.Capabilities[0].Config), `{"a":1.50,"b":16,"c":12345678901234567890,"k\"":null}`; got != want {
		t.Errorf("config is %s, want %s", got, want)
	}
}

func TestFindingsPointAtTheirPlace(t *testing.T) {
	src := head + "capabilities:\n  - type: com.docker.sandbox/port@1\n    config: {container: 0}\n  - type: com.example/x@1\n    opshional: true\n"
	diags := judge(src, capability.Authored)
	if len(diags) != 2 {
		t.Fatalf("findings: %v", diags)
	}
	for i, want := range []struct {
		path         string
		line, column int
		excerpt      string
	}{
		{"capabilities[1].opshional", 7, 5, "    opshional: true\n    ^"},
		{"capabilities[0].config.container", 5, 25, "    config: {container: 0}\n                        ^"},
	} {
		d := diags[i]
		if d.Path != want.path || d.Line != want.line || d.Column != want.column || d.Excerpt != want.excerpt || d.File != "x.yaml" {
			t.Errorf("finding %d is %+v, want %+v", i, d, want)
		}
	}
	if got := diags[1].String(); !strings.HasPrefix(got, "x.yaml:5:25: capabilities[0].config.container: ") {
		t.Errorf("one line: %s", got)
	}
}

func TestFindingsInJSONPointAtTheirPlace(t *testing.T) {
	src := `{"schemaVersion":"3","kind":"mixin","description":"` + strings.Repeat("ü", 300) + "\",\n\t\"x\":1}"
	diags := judge(src, capability.Published)
	if len(diags) != 1 || diags[0].Line != 2 || diags[0].Column != 2 || diags[0].Excerpt != "\t\"x\":1}\n\t^" {
		t.Errorf("findings: %+v", diags)
	}
	long := judge(strings.ReplaceAll(src, "\n\t", ""), capability.Published)
	lines := strings.Split(long[0].Excerpt, "\n")
	if len([]rune(lines[0])) > 110 || len([]rune(lines[1])) > 110 || !strings.Contains(lines[0], `"x":1}`) {
		t.Errorf("excerpt of a long line: %q", long[0].Excerpt)
	}
}

func TestExcerptsCannotDriveATerminal(t *testing.T) {
	diags := judge(`{"schemaVersion":"3","kind":"mixin","x`+"\u009b31m"+`":1}`, capability.Published)
	if len(diags) == 0 || strings.ContainsAny(diags[0].Excerpt, "\u009b\x1b") {
		t.Errorf("findings: %+q", diags)
	}
}

func TestAllFailuresComeInOneRunInOrder(t *testing.T) {
	src := `schemaVersion: "2"
kind: plugin
iconUrl: http://x/y
version: v1
provides: [A, tools/x, deb/tar@1]
requires: ["a >= 2, < 1", "${{ kit.args.z }}"]
conflicts: ["a@1"]
capabilities:
  - {type: bad}
  - {type: com.docker.sandbox/volume@1, config: {path: rel, size: x}}
  - {type: com.docker.sandbox/volume@1, config: {pfad: /x}}
  - {type: com.docker.sandbox/privileged@1, config: {}}
args:
  z: {required: true, default: a}
  a: {pattern: "("}
  1x: {env: A-B}
build: x
dockerfile: ../x
kits: [{ref: ./local, digest: x, args: {k: "a${{ kit.args.z }}"}}]
`
	want := []string{
		"schemaVersion", "kind", "iconUrl", "version", "provides[0]", "provides[1]", "provides[2]", "requires[0]", "requires[1]", "conflicts[0]",
		"capabilities[0].type", "capabilities[1].config.path", "capabilities[1].config.size", "capabilities[2].config", "capabilities[3].config",
		"args.1x", "args.1x.env", "args.a.pattern", "args.z", "build", "dockerfile", "dockerfile", "kits[0].ref", "kits[0].digest", "kits[0].args.k",
	}
	var first []string
	for range 5 {
		got := paths(judge(src, capability.Authored))
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "validate ")
		}
		if first == nil {
			first = got
		}
		if !reflect.DeepEqual(got, first) {
			t.Fatalf("two runs differ:\n%q\n%q", first, got)
		}
	}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("findings at\n%q, want\n%q", first, want)
	}
}

func TestValidationDoesNotRepeatDecoding(t *testing.T) {
	got := paths(judge("schemaVersion: 3\nkind: [x]\ncapabilities: [{type: [a], config: {a: 1, a: 2}}]\n", capability.Authored))
	want := []string{"decode schemaVersion", "decode kind", "decode capabilities[0].type", "decode capabilities[0].config.a"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("findings at %q, want %q", got, want)
	}
}

// TestJSONAndYAMLAgree decodes one document by both readers.
func TestJSONAndYAMLAgree(t *testing.T) {
	docs := []string{
		string(published(t, fortyEntries())),
		`{"schemaVersion":"3","kind":"mixin","args":{"a":{"default":"","enum":["","x"]},"b":{"required":true,"pattern":"[a-z]+"}},"capabilities":[{"group":{"name":"G","optional":true,"capabilities":[{"type":"a/b@1","config":{"é\"\\":[1,-2.5,1e3,true,false,null,{},[]]},"source":{"kit":"k","path":"p"}}]}}]}`,
		`{"schemaVersion":"3","kind":"mixin","kits":[{"ref":"hub.example/a:1","digest":"sha256:` + strings.Repeat("0", 64) + `","args":{"x":"${{ kit.args.a }}"}}],"description":" a\tb ","build":"FROM x\nRUN y\n"}`,
	}
	bad := []string{
		`{"schemaVersion":"3","kind":"mixin","kind":"mixin"}`, `{"schemaVersion":"3","x":1}`, `{"schemaVersion":3}`,
		`{"schemaVersion":"3","kind":"mixin","capabilities":[{"type":"a/b@1","name":1},{"group":{"capabilities":[]}}]}`,
		`{"schemaVersion":"3","kind":"mixin","description":null}`,
	}
	for i, doc := range append(docs, bad...) {
		dj, diagsJ := spec.Decode([]byte(doc), spec.Options{Form: capability.Published})
		// A comment keeps the JSON reader away and YAML does not mind.
		dy, diagsY := spec.Decode([]byte(doc+" # x"), spec.Options{Form: capability.Published})
		if i < len(docs) && (len(diagsJ) > 0 || len(diagsY) > 0) {
			t.Fatalf("%s: %v, %v", doc, diagsJ, diagsY)
		}
		if !reflect.DeepEqual(dj.Descriptor, dy.Descriptor) {
			t.Errorf("JSON gives\n%+v, YAML\n%+v", dj.Descriptor, dy.Descriptor)
		}
		if !reflect.DeepEqual(paths(diagsJ), paths(diagsY)) {
			t.Errorf("%s: JSON finds %q, YAML %q", doc, paths(diagsJ), paths(diagsY))
		}
		for j := range diagsJ {
			if diagsJ[j].Line != diagsY[j].Line || diagsJ[j].Column != diagsY[j].Column || diagsJ[j].Message != diagsY[j].Message {
				t.Errorf("%s: JSON says %v, YAML %v", doc, diagsJ[j], diagsY[j])
			}
		}
	}
}

func TestPublishedEncodingIsAFixedPoint(t *testing.T) {
	first := published(t, fortyEntries())
	d, err := spec.DecodePublished(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.AppendJSON(nil)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("encoding again gives %v\n%s\n%s", err, first, second)
	}
	if bytes.ContainsAny(first, "\n\t") || !bytes.HasPrefix(first, []byte(`{"schemaVersion":"3","kind":"workload",`)) {
		t.Errorf("not compact or out of order: %.80s", first)
	}
}

func TestEncodingRefusesToDropWhatIsStated(t *testing.T) {
	for name, d := range map[string]spec.Descriptor{
		"kits":  {Kits: []spec.KitRef{}},
		"enum":  {Args: map[string]spec.Arg{"x": {Enum: []string{}}}},
		"group": {Capabilities: []spec.Item{{Group: &spec.Group{}}}},
	} {
		if b, err := d.AppendJSON(nil); err == nil {
			t.Errorf("an empty %s became %s", name, b)
		}
	}
	d := spec.Descriptor{Capabilities: []spec.Item{{Request: capability.Request{Type: "a/b@1", Config: []byte(`null`)}}}}
	if b, err := d.AppendJSON(nil); err != nil || !strings.Contains(string(b), `"config":null`) {
		t.Errorf("a stated null became %s, %v", b, err)
	}
}

func TestSizeBudgetCountsTheBytesAsStored(t *testing.T) {
	for _, c := range []struct {
		bytes     int
		ok, quiet bool
	}{{spec.WarnBytes, true, true}, {spec.WarnBytes + 1, true, false}, {spec.MaxBytes, true, false}, {spec.MaxBytes + 1, false, false}} {
		src := head + "description: \""
		src += strings.Repeat("q", c.bytes-len(src)-1) + "\""
		diags := judge(src, capability.Authored)
		if diags.HasErrors() == c.ok || (len(diags) == 0) != c.quiet {
			t.Errorf("%d bytes: %v", c.bytes, diags)
		}
	}
}

func TestPublishedRules(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct{ src, want string }{
		{"schemaVersion: \"3\"\nkind: set\nkits: [{ref: a, digest: \"" + digest + "\"}]\n", "validate kind"},
		{head + "kits: [{ref: hub.example/a:1}]\n", "validate kits[0].digest"},
		{head + "provides: [lamp]\n", "validate provides[0]"},
		{head + "version: \"1\"\nprovides: [lamp]\n", ""},
		{head + "args: {b: {buildArg: B}}\ncapabilities: [{type: a/b@1, config: {x: \"${{ kit.args.b }}\"}}]\n", "validate capabilities[0].config.x"},
		{head + "args: {c: {}}\ncapabilities: [{type: a/b@1, config: {x: \"${{ kit.args.c }}\", y: \"${{kit.env.HOME}}\"}}]\n", ""},
		{head + "capabilities: [{type: a/b@1, config: {x: \"${{ kit.args.nope }}\"}}]\n", "validate capabilities[0].config.x"},
		{head + "capabilities: [{type: a/b@1, config: {x: \"${{ kit.arg.nope }}\"}}]\n", "validate capabilities[0].config.x"},
		{head + "description: \"${{ kit.args.nope }}\"\n", "validate description"},
		{head + "capabilities: [{group: {optional: true, capabilities: [{type: a/b@1}]}}]\n", ""},
	} {
		got := paths(judge(c.src, capability.Published))
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || got[0] != c.want) {
			t.Errorf("%q finds %q, want %q", c.src, got, c.want)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, c := range []struct {
		src  string
		want []string
	}{
		{"{group: {capabilities: [{type: a/b@1, optional: false}]}}", []string{"validate capabilities[0].group.capabilities[0].optional"}},
		{"{group: {capabilities: [{group: {capabilities: [{type: a/b@1}]}}]}}", []string{"validate capabilities[0].group.capabilities[0].group"}},
		{"{type: a/b@1, group: {capabilities: [{type: a/b@1}]}}", []string{"validate capabilities[0]"}},
		{"{optional: true, group: {capabilities: [{type: a/b@1}]}}", []string{"validate capabilities[0].optional"}},
		{"{group: {}}", []string{"validate capabilities[0].group.capabilities"}},
		{"{group: {capabilities: [{type: com.docker.sandbox/sbx@1}, {type: com.docker.sandbox/port@1, config: {container: 1}}, {type: com.docker.sandbox/port@1, config: {container: 1}}]}}",
			[]string{"validate capabilities[0].group.capabilities[0].type", "validate capabilities[0].group.capabilities[2].config.container"}},
		{"{group: {capabilities: [{type: com.docker.sandbox/privileged@1}]}}, {group: {capabilities: [{type: com.docker.sandbox/privileged@1}]}}, {type: com.docker.sandbox/privileged@1}", nil},
	} {
		if got := paths(judge(head+"capabilities: ["+c.src+"]\n", capability.Authored)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s finds %q, want %q", c.src, got, c.want)
		}
	}
}

func TestArity(t *testing.T) {
	const np = "com.docker.sandbox/network-policy@"
	for _, c := range []struct {
		src  string
		want []string
	}{
		{"{type: " + np + "2, config: {runtime: {allow: [a.ex]}}}, {type: " + np + "1, config: {runtime: {allow: [a.ex]}}}", []string{"validate capabilities[0].type"}},
		{"{type: " + np + "1, config: {runtime: {allow: [a.ex]}}}, {type: " + np + "2, config: {runtime: {allow: [a.ex]}}}", []string{"validate capabilities[1].type"}},
		{"{type: a/b@1, config: {a: 1, b: 2}}, {type: a/b@1, name: N, config: {b: 2, a: 1.0}}", []string{"validate capabilities[1]"}},
		{"{type: a/b@1}, {type: a/b@1, config: null}, {type: a/c@1}, {type: a/b@1}", []string{"validate capabilities[3]"}},
		{"{type: com.docker.sandbox/volume@1, config: {path: /d, size: \"${{ kit.args.s }}\"}}, {type: com.docker.sandbox/host-mount@1, config: {path: /x/../d}}", []string{"validate capabilities[1].config.path"}},
	} {
		src := head + "args: {s: {default: 1g}}\ncapabilities: [" + c.src + "]\n"
		if got := paths(judge(src, capability.Authored)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s finds %q, want %q", c.src, got, c.want)
		}
	}
}

func TestEffectiveFormHasNothingOpen(t *testing.T) {
	src := head + "args: {x: {}}\ncapabilities: [{group: {capabilities: [{type: a/b@1, config: {a: \"${{ kit.env.X }}\"}}]}}]\n"
	want := []string{"validate capabilities[0].group", "validate capabilities[0].group.capabilities[0].config.a"}
	if got := paths(judge(src, capability.Effective)); !reflect.DeepEqual(got, want) {
		t.Errorf("findings at %q, want %q", got, want)
	}
	d, _ := spec.Decode([]byte(strings.Replace(src, "${{ kit.env.X }}", "v", 1)), spec.Options{})
	if diags := spec.New(d.Descriptor, spec.Options{Form: capability.Effective, Unselected: true}).Validate(); len(diags) > 0 {
		t.Errorf("an expanded descriptor with a group that waits for selection: %v", diags)
	}
}

// FuzzDecode says: what is accepted encodes, and decodes to the same value.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(fortyEntries()))
	f.Add([]byte(head + "args: {x: {default: a}}\ncapabilities: [{group: {capabilities: [{type: a/b@1, config: {a: [1, {}]}}]}}]\n"))
	f.Add([]byte("# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\nFROM x\n"))
	f.Add([]byte(`{"schemaVersion":"3","kind":"mixin","args":{"é":{}},"capabilities":[{"type":"a/b@1","config":"\u0000"}]}`))
	f.Add([]byte("a: &a [*a]\n<<: [{b: c}]"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, form := range []capability.Form{capability.Authored, capability.Published, capability.Effective} {
			d, diags := spec.Decode(src, spec.Options{Form: form})
			if d != nil {
				diags = append(diags, d.Validate()...)
			}
			if diags.HasErrors() {
				continue
			}
			b, err := d.AppendJSON(nil)
			if err != nil {
				t.Fatalf("accepted but cannot encode: %v", err)
			}
			again, diags := spec.Decode(b, spec.Options{Form: form})
			if diags.HasErrors() {
				t.Fatalf("cannot decode what was encoded: %v\n%s", diags, b)
			}
			b2, err := again.AppendJSON(nil)
			if err != nil || !bytes.Equal(b, b2) {
				t.Fatalf("changed on the way around: %v\n%s\n%s", err, b, b2)
			}
		}
	})
}

func TestDocumentsMayBeJudgedConcurrently(t *testing.T) {
	d, diags := spec.Decode([]byte(fortyEntries()+"nope: 1\n"), spec.Options{})
	if len(diags) != 1 {
		t.Fatal(diags)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			findings, lines := d.Judge()
			b, err := d.AppendJSON(nil)
			if len(findings) > 0 || len(lines) == 0 || err != nil || len(b) == 0 {
				t.Errorf("%v, %d lines, %v", findings, len(lines), err)
			}
		})
	}
	wg.Wait()
}
