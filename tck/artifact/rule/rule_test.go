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
		im := image(t, text, []file{
			{"usr/share/sandbox/kit/a/kit.yaml", first}, {"usr/share/sandbox/kit/b/kit.yaml", second},
			{"usr/share/sandbox/kit/own/kit.yaml", text}, {"usr/share/sandbox/kit/own/kit.dockerfile", skill}, {"s/SKILL.md", skill}, {"etc/passwd", first},
		})
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
// one more, with as many entries as a descriptor holds. Twice as many take some four
// times as long; the bound is what nobody would wait for with a thousand.
func TestHostileSetsAreJudged(t *testing.T) {
	took := map[int]time.Duration{}
	for _, c := range []struct {
		kits int
		want tck.Outcome
	}{{100, tck.Pass}, {200, tck.Pass}, {300, tck.Warn}} {
		im := hostileSet(t, c.kits)
		var out *rule.Judgement
		for n := range 3 { // the best of which a busy machine spoils least
			begin := time.Now()
			out = rule.Judge(&rule.Subject{Images: []*rule.Image{im}})
			if d := time.Since(begin); n == 0 || d < took[c.kits] {
				took[c.kits] = d
			}
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
	t.Logf("%v", took)
	if took[200] > 16*took[100] {
		t.Errorf("twice as many Kits take %v instead of %v", took[200], took[100])
	}
}

// hostileSet is the image of a set of so many Kits.
func hostileSet(t *testing.T, kits int) *rule.Image {
	t.Helper()
	var list, entries, offers []string
	var files []file
	for n := range kits {
		var own []string
		for e := range 10 {
			entry := fmt.Sprintf(`{"type":"x.example/y@1","config":{"n":%d}`, n*10+e)
			own = append(own, entry+"}")
			entries = append(entries, fmt.Sprintf(`%s,"source":{"kit":"r.example/k%d:1","path":"capabilities[%d]"}}`, entry, n, e))
		}
		offers = append(offers, fmt.Sprintf(`"k%d@1"`, n))
		list = append(list, fmt.Sprintf(`{"ref":"r.example/k%d:1","digest":"sha256:%064d"}`, n, n))
		files = append(files, file{fmt.Sprintf("usr/share/sandbox/kit/s%d/kit.yaml", n), fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["k%d@1"],"capabilities":[%s]}`, n, strings.Join(own, ","))})
	}
	text := `{"schemaVersion":"3","kind":"mixin","provides":[` + strings.Join(offers, ",") + `],"capabilities":[` + strings.Join(entries, ",") + `],"kits":[` + strings.Join(list, ",") + `]}`
	return image(t, text, append(files, file{"usr/share/sandbox/kit/own/kit.yaml", text}))
}

type file struct{ name, data string }

// image is one with a single layer of files, which text describes.
func image(t *testing.T, text string, files []file) *rule.Image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f.data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	laid := &tree.Tree{Keep: rule.Keep, Hash: true}
	if err := laid.Add(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return &rule.Image{Platform: "linux/amd64", Files: laid, Layers: laid, Manifest: ocispec.Manifest{Annotations: map[string]string{annotation.Descriptor: text}}}
}
