package schema_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/schema"
	"github.com/kitbox-dev/kitbox/schema/compose"
	"github.com/santhosh-tekuri/jsonschema/v6"
	yaml "go.yaml.in/yaml/v4"
)

func TestFilesAreCurrent(t *testing.T) {
	files, err := compose.Files()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range files {
		want = append(want, f.Name)
		got, err := os.ReadFile(filepath.FromSlash(f.Name))
		if err != nil || !bytes.Equal(got, f.Data) {
			t.Errorf("%s is not current: run go generate in the schema directory (%v)", f.Name, err)
		}
	}
	var got []string
	fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".schema.json") {
			got = append(got, path)
		}
		return err
	})
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("files %q\nwant %q", got, want)
	}
	again, err := compose.Files()
	if err != nil || len(again) != len(files) {
		t.Fatal(err)
	}
	for i := range files {
		if !bytes.Equal(files[i].Data, again[i].Data) {
			t.Errorf("%s differs from run to run", files[i].Name)
		}
	}
}

func TestCapability(t *testing.T) {
	for typ, want := range map[string]bool{
		"com.docker.sandbox/volume@1": true, "com.docker.sandbox/network-policy@2": true, "com.docker.sandbox/sbx@1": true,
		"com.docker.sandbox/volume@2": false, "": false, "../kit": false,
	} {
		b, ok := schema.Capability(typ)
		if ok != want || ok && !json.Valid(b) {
			t.Errorf("Capability(%q): %v", typ, ok)
		}
	}
}

// compiled returns the descriptor schema as an offline editor has it: nothing
// can be loaded from elsewhere.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Kit()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(jsonschema.SchemeURLLoader{})
	if err := c.AddResource("mem:///kit.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mem:///kit.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func document(t *testing.T, src string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(src), &v); err != nil {
		t.Fatalf("%v in\n%s", err, src)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

const head = "schemaVersion: \"3\"\nkind: mixin\n"

func TestDescriptorsThatEditorsAccept(t *testing.T) {
	s := compiled(t)
	for _, src := range []string{
		head,
		head + "provides: [tool, com.example/tool@1.2, \"lamp@${{ kit.args.v }}\"]\nrequires: [\"base >= 1.2, < 2\", deb/tar]\nconflicts: [other]\n",
		head + "version: 0.1.0\nlicenses: [MIT]\niconUrl: https://example.com/i.png\ndockerfile: ./x.dockerfile\n",
		head + "args: {v: {default: \"\", pattern: \"[0-9]*\", env: V}, w: {required: true, enum: [a]}}\n",
		"schemaVersion: '3'\nkind: set\nkits: [{ref: r.example/k:1, digest: \"sha256:" + strings.Repeat("a", 64) + "\", args: {v: \"${{ kit.args.v }}\"}}]\n",
		head + `capabilities:
  - {type: com.docker.sandbox/sbx@1}
  - {type: com.example/anything@7, config: {a: [1]}, optional: true}
  - type: com.docker.sandbox/network-policy@2
    config: {runtime: {allow: [a.example, {hosts: [b.example], methods: [GET]}]}}
  - type: com.docker.sandbox/port@1
    name: web
    config: {container: "${{ kit.args.p }}"}
  - group:
      name: Store
      optional: true
      capabilities:
        - {type: com.docker.sandbox/volume@1, config: {path: /d, size: 2g}}
        - {type: com.docker.sandbox/git-identity@1, description: why}
`,
	} {
		if err := s.Validate(document(t, src)); err != nil {
			t.Errorf("refused: %v\n%s", err, src)
		}
	}
}

func TestDescriptorsThatEditorsRefuse(t *testing.T) {
	s := compiled(t)
	for _, src := range []string{
		"kind: mixin\n",
		"schemaVersion: 3\nkind: mixin\n",
		"schemaVersion: \"3\"\nkind: sandbox\n",
		"schemaVersion: \"3\"\nkind: set\n",
		head + "name: x\n",
		head + "iconUrl: http://example.com/i.png\n",
		head + "version: v1\n",
		head + "requires: [\"lamp >= ${{ kit.args.v }}\"]\n",
		head + "conflicts: [\"lamp >= 2\"]\n",
		head + "build: x\ndockerfile: y\n",
		head + "kits: []\n",
		head + "args: {1x: {}}\n",
		head + "args: {x: {enum: [a], pattern: a}}\n",
		head + "args: {x: {default: a, required: true}}\n",
		head + "capabilities: {volume: /d}\n",
		head + "capabilities: [{config: {}}]\n",
		head + "capabilities: [{type: volume@1}]\n",
		head + "capabilities: [{type: com.example/x@1, name: 12}]\n",
		head + "capabilities: [{type: com.example/x@1, optionall: true}]\n",
		head + "capabilities: [{type: com.docker.sandbox/sbx@1, config: {}}]\n",
		head + "capabilities: [{type: com.docker.sandbox/volume@1}]\n",
		head + "capabilities: [{type: com.docker.sandbox/volume@1, config: {path: d}}]\n",
		head + "capabilities: [{type: com.docker.sandbox/network-policy@1, config: {runtime: {allow: [{hosts: [a]}]}}}]\n",
		head + "capabilities: [{group: {capabilities: []}}]\n",
		head + "capabilities: [{group: {capabilities: [{type: com.example/x@1, optional: false}]}}]\n",
		head + "capabilities: [{group: {capabilities: [{type: com.docker.sandbox/port@1, config: {container: 0}}]}}]\n",
	} {
		if s.Validate(document(t, src)) == nil {
			t.Errorf("accepted:\n%s", src)
		}
	}
}

// TestSchemaStandsAlone looks for references that lead out of the document.
func TestSchemaStandsAlone(t *testing.T) {
	var root any
	if err := json.Unmarshal(schema.Kit(), &root); err != nil {
		t.Fatal(err)
	}
	refs := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				refs++
				if !strings.HasPrefix(ref, "#/$defs/") {
					t.Errorf("%s leads out of the document", ref)
				}
			}
			for _, w := range v {
				walk(w)
			}
		case []any:
			for _, w := range v {
				walk(w)
			}
		}
	}
	walk(root)
	if refs == 0 {
		t.Error("no references found; the test looks at nothing")
	}
}
