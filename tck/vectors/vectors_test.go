package vectors_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/vectors"
)

// files returns the vectors that ship with the specification and, in own/, ours:
// one file per area and, for each rule that a library can judge, inputs that it
// accepts and inputs that it refuses.
func files(t *testing.T) []string {
	t.Helper()
	samples, err := filepath.Glob("testdata/*.json")
	own, err2 := filepath.Glob("testdata/own/*.json")
	if err := errors.Join(err, err2); err != nil || len(samples) != 11 || len(own) != 11 {
		t.Fatalf("%d and %d files, %v", len(samples), len(own), err)
	}
	return append(samples, own...)
}

func TestVectorsPass(t *testing.T) {
	for _, name := range files(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		verdicts, err := vectors.Run(b)
		if err != nil || len(verdicts) == 0 {
			t.Fatalf("%s: %d verdicts, %v", name, len(verdicts), err)
		}
		for _, v := range verdicts {
			if !v.OK {
				t.Errorf("%s: want %s, got %s", v.ID, v.Want, v.Got)
			}
		}
	}
}

// TestEveryVectorCanFail turns each expectation into another one. A vector that
// passes whatever is expected has never judged anything.
func TestEveryVectorCanFail(t *testing.T) {
	for _, name := range files(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]jsontext.Value
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			v["expect"] = spoil(t, v["expect"])
		}
		spoiled, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		verdicts, err := vectors.Run(spoiled)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range verdicts {
			if v.OK {
				t.Errorf("%s accepts %s: %s", v.ID, v.Want, v.Got)
			}
		}
	}
}

// spoil returns an expectation that nothing can meet.
func spoil(t *testing.T, expect jsontext.Value) jsontext.Value {
	var m map[string]any
	if err := json.Unmarshal(expect, &m); err != nil {
		t.Fatal(err)
	}
	if _, failed := m["error"]; failed {
		m = map[string]any{"version": "999", "values": "none", "document": "none", "kind": "none", "annotations": map[string]any{"x": "y"}, "ok": true, "satisfies": "none", "name": "none", "delta": "none"}
	} else {
		for k, v := range m {
			switch v := v.(type) {
			case bool:
				m[k] = !v
			case string:
				m[k] = v + "x"
			case float64:
				m[k] = v + 1
			case nil:
				m[k] = "x"
			case []any:
				m[k] = append([]any{"x"}, v...)
			case map[string]any:
				m[k] = map[string]any{"x": "y"}
			}
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	const vector = `[{"id":"v1","area":"version","input":{"op":"compare","a":"1","b":"2"},"expect":{"cmp": %},"why":"w"}]`
	for name, cmp := range map[string]string{good: "-1", bad: "1"} {
		if err := os.WriteFile(name, []byte(strings.Replace(vector, "%", cmp, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{"--json", good}, 0, `{"verdicts":[{"id":"v1","ok":true,"want":{"cmp":-1},"got":{"cmp":-1}}]}` + "\n"},
		{[]string{good, "--json", bad}, 1, `{"verdicts":[{"id":"v1","ok":true,"want":{"cmp":-1},"got":{"cmp":-1}},{"id":"v1","ok":false,"want":{"cmp":1},"got":{"cmp":-1}}]}` + "\n"},
		{[]string{good}, 0, "ok    v1\n1 vectors, 0 differ\n"},
		{[]string{bad}, 1, "FAIL  v1\n      want {\"cmp\":1}\n      got  {\"cmp\":-1}\n1 vectors, 1 differ\n"},
		{nil, 1, ""},
		{[]string{"--nope", good}, 1, ""},
		{[]string{"--json", filepath.Join(dir, "none")}, 1, "{\"verdicts\":[]}\n"},
	} {
		var stdout, stderr bytes.Buffer
		code := vectors.Main(t.Context(), c.args, &stdout, &stderr)
		if code != c.code || stdout.String() != c.stdout {
			t.Errorf("%q: status %d, %q; want %d, %q", c.args, code, stdout.String(), c.code, c.stdout)
		}
		if (stderr.Len() > 0) != (c.stdout == "" || strings.Contains(c.stdout, "[]")) {
			t.Errorf("%q: stderr %q", c.args, stderr.String())
		}
	}
}

func TestUnknownAreasAndBrokenInputsAreFailures(t *testing.T) {
	verdicts, err := vectors.Run([]byte(`[{"id":"a","area":"nope","input":{},"expect":{}},{"id":"b","area":"version","input":{"op":"nope"},"expect":{}},{"id":"c","area":"resolve","input":[],"expect":{}},{"id":"d","area":"version","input":{"op":"compare"},"expect":5}]`))
	if err != nil || len(verdicts) != 4 {
		t.Fatal(verdicts, err)
	}
	for _, v := range verdicts {
		if v.OK {
			t.Errorf("%s is ok: %s", v.ID, v.Got)
		}
	}
	if _, err := vectors.Run([]byte(`{}`)); err == nil {
		t.Error("an object is a list of vectors")
	}
}

// TestFindingsCiteKnownStatements holds the ids that findings carry against the
// registry.
func TestFindingsCiteKnownStatements(t *testing.T) {
	b, err := os.ReadFile("testdata/descriptors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Input struct {
			YAML string `json:"yaml"`
		} `json:"input"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	cited := 0
	for _, v := range list {
		for _, form := range []capability.Form{capability.Authored, capability.Published, capability.Effective} {
			d, diags := spec.Decode([]byte(v.Input.YAML), spec.Options{Form: form})
			if d != nil {
				diags = append(diags, d.Validate()...)
			}
			for _, dg := range diags {
				if dg.Statement == "" {
					continue
				}
				cited++
				if _, ok := tck.Lookup(dg.Statement); !ok {
					t.Errorf("%s cites %q, which the registry does not know", dg, dg.Statement)
				}
			}
		}
	}
	if cited < 50 {
		t.Errorf("only %d findings cite a statement", cited)
	}
}
