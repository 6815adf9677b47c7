package rule_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

const setText = `{"schemaVersion":"3","kind":"mixin","provides":["a@1","b@1"],"capabilities":[{"type":"com.docker.sandbox/port@1","source":{"kit":"r.example/a:1","path":"capabilities[0]"},"config":{"container":80}}],` +
	`"kits":[{"ref":"r.example/a:1","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000001","args":{"x":"1"}},` +
	`{"ref":"r.example/b:1","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000002"}]}`

// FuzzJudge lets an artifact say anything of itself and of its Kits. Whatever it
// is, there is a verdict for every rule, and a finding wherever one fails.
func FuzzJudge(f *testing.F) {
	const a = `{"schemaVersion":"3","kind":"mixin","provides":["a@1"],"args":{"x":{"default":"2"}},"capabilities":[{"type":"com.docker.sandbox/port@1","config":{"container":80}}]}`
	f.Add(setText, a, `{"schemaVersion":"3","kind":"mixin","provides":["b@1"]}`, "---\nname: s\n---\n")
	f.Add(`{"schemaVersion":"3","kind":"workload","capabilities":[{"type":"com.docker.sandbox/sbx@1"},{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/s"}}]}`, setText, "", "x")
	f.Add(`{"schemaVersion":"3","kind":"workload","kits":[{"ref":"r.example/a:1"},{"ref":"r.example/a:1"}]}`, "{", setText, "---\n---\n")
	f.Fuzz(func(t *testing.T, text, first, second, skill string) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, file := range []struct{ name, data string }{
			{"usr/share/sandbox/kit/a/kit.yaml", first}, {"usr/share/sandbox/kit/b/kit.yaml", second},
			{"usr/share/sandbox/kit/own/kit.yaml", text}, {"usr/share/sandbox/kit/own/kit.dockerfile", skill}, {"s/SKILL.md", skill}, {"etc/passwd", first},
		} {
			if err := w.WriteHeader(&tar.Header{Name: file.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(file.data))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(file.data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		files := &tree.Tree{Keep: rule.Keep, Hash: true}
		if err := files.Add(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		im := &rule.Image{Platform: "linux/amd64", Files: files, Layers: files, Manifest: ocispec.Manifest{Annotations: map[string]string{annotation.Descriptor: text}}}
		out := rule.Judge(&rule.Subject{Images: []*rule.Image{im}})
		failed := false
		for _, v := range out.Verdicts {
			failed = failed || v.Outcome == tck.Fail
			if v.Outcome != tck.Pass && v.Message == "" {
				t.Errorf("%s: %s without a reason", v.Statement, v.Outcome)
			}
		}
		if len(out.Verdicts) < 50 || failed && len(out.Findings) == 0 {
			t.Errorf("%d verdicts, %d findings", len(out.Verdicts), len(out.Findings))
		}
		draft := rule.Judge(&rule.Subject{Images: []*rule.Image{im}, Draft: true})
		if len(draft.Verdicts) < 50 {
			t.Errorf("%d verdicts of a draft", len(draft.Verdicts))
		}
	})
}

// TestLayersOfTheSamePlatform are held against a Kit's, whose index calls the
// platform by its variant.
func TestLayersOfTheSamePlatform(t *testing.T) {
	layers := []ocispec.Descriptor{{Digest: "sha256:a"}, {Digest: "sha256:b"}}
	for platform, want := range map[string]tck.Outcome{
		"linux/arm64": tck.Pass, "linux/arm64/v8": tck.Pass, "linux/arm64/v9": tck.Fail, "linux/arm/v8": tck.Fail, "linux/amd64": tck.Fail,
	} {
		im := &rule.Image{Platform: "linux/arm64", Manifest: ocispec.Manifest{Layers: layers, Annotations: map[string]string{annotation.Descriptor: setText}}}
		listed := map[string]rule.Lookup{}
		for n := range 2 {
			listed[fmt.Sprintf("sha256:%064d", n+1)] = rule.Lookup{Images: []rule.Listed{{Platform: platform, Layers: []digest.Digest{layers[n].Digest}}}}
		}
		for _, v := range rule.Judge(&rule.Subject{Images: []*rule.Image{im}, Listed: listed}).Verdicts {
			if v.Statement == "SPEC-v3 §9.5/layers-preserved" && v.Outcome != want {
				t.Errorf("%s: %v", platform, v)
			}
		}
	}
}

// TestHostileSetsAreJudged lists and stages as many Kits as are told apart, and
// one more, with as many entries as a descriptor holds.
func TestHostileSetsAreJudged(t *testing.T) {
	for _, c := range []struct {
		kits int
		want tck.Outcome
	}{{200, tck.Pass}, {300, tck.Warn}} {
		var list, entries, offers []string
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		stage := func(stem, text string) {
			if err := w.WriteHeader(&tar.Header{Name: "usr/share/sandbox/kit/" + stem + "/kit.yaml", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		for n := range c.kits {
			var own []string
			for e := range 10 {
				entry := fmt.Sprintf(`{"type":"x.example/y@1","config":{"n":%d}`, n*10+e)
				own = append(own, entry+"}")
				entries = append(entries, fmt.Sprintf(`%s,"source":{"kit":"r.example/k%d:1","path":"capabilities[%d]"}}`, entry, n, e))
			}
			offers = append(offers, fmt.Sprintf(`"k%d@1"`, n))
			list = append(list, fmt.Sprintf(`{"ref":"r.example/k%d:1","digest":"sha256:%064d"}`, n, n))
			stage(fmt.Sprintf("s%d", n), fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["k%d@1"],"capabilities":[%s]}`, n, strings.Join(own, ",")))
		}
		text := `{"schemaVersion":"3","kind":"mixin","provides":[` + strings.Join(offers, ",") + `],"capabilities":[` + strings.Join(entries, ",") + `],"kits":[` + strings.Join(list, ",") + `]}`
		stage("own", text)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		files := &tree.Tree{Keep: rule.Keep, Hash: true}
		if err := files.Add(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		im := &rule.Image{Platform: "linux/amd64", Files: files, Layers: files, Manifest: ocispec.Manifest{Annotations: map[string]string{annotation.Descriptor: text}}}
		begin := time.Now()
		out := rule.Judge(&rule.Subject{Images: []*rule.Image{im}})
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("%d Kits took %v", c.kits, d)
		}
		for _, v := range out.Verdicts {
			if v.Statement == "SPEC-v3 §10/merged-set-sources-told-apart" && v.Outcome != c.want {
				t.Errorf("%d Kits: %v", c.kits, v)
			}
			if v.Statement == "SPEC-v3 §9.5/capabilities-merged" && v.Outcome != tck.Pass && c.want == tck.Pass {
				t.Errorf("%d Kits: %v", c.kits, v)
			}
		}
	}
}
