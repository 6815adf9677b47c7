package builder_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// document reads a JSON document of the store.
func (b *bench) document(d digest.Digest, v any) {
	b.Helper()
	desc, err := b.images().Describe(b.Context(), d)
	if err != nil {
		b.Fatal(err)
	}
	data, err := b.images().Document(b.Context(), desc)
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		b.Fatal(err)
	}
}

// TestAnnotationsAreOnEveryManifestAndOnTheIndex covers the exports that make an
// index: several platforms, one that was asked for as if there were several, and
// an attestation. BuildKit refuses index annotations where there is no index and
// drops those of one platform without a word.
func TestAnnotationsAreOnEveryManifestAndOnTheIndex(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{
		"hello.yaml":       "schemaVersion: \"3\"\nkind: mixin\ndisplayName: H\nprovides: [\"h@1.0\"]\n",
		"hello.dockerfile": "FROM scratch\nCOPY x /opt/h/x\n", "x": "x",
	})
	other := "linux/arm64"
	if runtime.GOARCH == "arm64" {
		other = "linux/amd64"
	}
	ours := "linux/" + runtime.GOARCH
	for name, c := range map[string]struct {
		platform  string
		attrs     map[string]string
		platforms []string // nil: no index
	}{
		"one":          {ours, nil, nil},
		"two":          {ours + "," + other, nil, []string{ours, other}},
		"one as many":  {ours, map[string]string{"multi-platform": "true"}, []string{ours}},
		"an attested":  {ours, map[string]string{"attest:provenance": "mode=min"}, []string{ours, "unknown/unknown"}},
		"asked by arg": {ours, map[string]string{"build-arg:BUILDKIT_MULTI_PLATFORM": "1"}, []string{ours}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			d, _, err := builder.SolveBy(ctx, builder.Request{Home: b.home, Context: dir, Platform: c.platform, Tag: "kitbox.local/many:1"}, frontend.BuiltinSource, c.attrs)
			if err != nil {
				t.Fatal(err)
			}
			var root ocispec.Index // a manifest has annotations in the same place
			b.document(d, &root)
			if root.Annotations[annotation.Title] != "H" || root.Annotations[annotation.Descriptor] == "" {
				t.Errorf("the root's annotations are %v", root.Annotations)
			}
			var got []string
			for _, m := range root.Manifests {
				got = append(got, m.Platform.OS+"/"+m.Platform.Architecture)
				if m.Annotations["vnd.docker.reference.type"] != "" {
					continue
				}
				var im ocispec.Manifest
				b.document(m.Digest, &im)
				for _, k := range annotation.Keys() {
					if im.Annotations[k] != root.Annotations[k] {
						t.Errorf("%s: %s is %q, on the index %q", m.Platform.Architecture, k, im.Annotations[k], root.Annotations[k])
					}
				}
			}
			slices.Sort(got)
			slices.Sort(c.platforms)
			if !slices.Equal(got, c.platforms) {
				t.Errorf("platforms %q, want %q", got, c.platforms)
			}
			desc, err := b.images().Describe(ctx, d)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.images().Tag(ctx, desc, "kitbox.local/many:1"); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if code := artifact.Validate(ctx, []string{"kitbox.local/many:1", "--layout", b.images().Dir()}, &out, &out); code != 0 {
				t.Errorf("the judge: %d\n%s", code, &out)
			}
		})
	}
}

// TestNoCacheMakesTheSameImage builds every form twice, the second time running
// every step again at another time of day.
func TestNoCacheMakesTheSameImage(t *testing.T) {
	b := newBench(t)
	epoch := int64(1700000000)
	first := map[string]*builder.Result{}
	requests := map[string]builder.Request{}
	for name := range forms {
		r := b.form(name, "docker/sandbox-kit:3")
		r.SourceDateEpoch = &epoch
		requests[name], first[name] = r, b.mustBuild(r)
	}
	for start := time.Now().Unix(); time.Now().Unix() == start; {
		time.Sleep(10 * time.Millisecond) // or the clock would hide what depends on it
	}
	for name, r := range requests {
		r.NoCache = true
		again := b.mustBuild(r)
		if again.Digest != first[name].Digest {
			t.Errorf("%s: %s and, without the cache, %s", name, first[name].Digest, again.Digest)
		}
		if name != "declaration" && again.Cached {
			t.Errorf("%s: nothing ran the second time", name)
		}
	}
}

// TestARecipeOfAnotherFrontend is built by that one, where the network allows.
func TestARecipeOfAnotherFrontend(t *testing.T) {
	b := newBench(t)
	host := newRegistry(t)
	syntax := host + "/others/dockerfile:1"
	// It is the Dockerfile frontend again, under a name that is not its own.
	cmd := exec.Command("go", "run", "../frontend/bundle", "--dir", t.TempDir(), "--push", syntax,
		"linux/"+runtime.GOARCH+"="+program(t, "github.com/moby/buildkit/frontend/dockerfile/cmd/dockerfile-frontend"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := map[string]string{"hello.yaml": workload, "hello.dockerfile": "# syntax=" + syntax + "\nFROM kitbox.local/base:1\nUSER root\nRUN echo other >/x\nCMD [\"sh\"]\n"}
	dir := b.kit(files)
	res := b.mustBuild(builder.Request{Context: dir, Network: builder.NetworkHost})
	if got := b.file(b.image(res), "/x"); got != "other\n" {
		t.Errorf("/x = %q", got)
	}
	if got := b.file(b.image(res), "/usr/share/sandbox/kit/hello/kit.dockerfile"); got != files["hello.dockerfile"] {
		t.Errorf("staged: %q", got)
	}
	if _, err := b.build(builder.Request{Context: dir}); err == nil || !strings.Contains(err.Error(), "syntax line") {
		t.Errorf("without a network: %v", err)
	}
	// Docker's name means what is built in for releases alone: another language of
	// it, or one frontend exactly, is that one's, here by a mirror.
	fetcher := &fetch.Fetcher{Home: t.TempDir()}
	d, err := fetcher.PullImage(t.Context(), syntax)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.home, "registries.json"), []byte(`{"version":1,"mirrors":{"docker.io":[{"host":"`+host+`","tags":true}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetcher.Push(t.Context(), syntax, host+"/docker/dockerfile:1-labs"); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"docker/dockerfile:1-labs":                 "",
		"docker/dockerfile@" + d.Digest.String():   "",
		"docker/dockerfile:1@" + d.Digest.String(): "",
		"docker/dockerfile:master":                 "docker/dockerfile:master",
		"docker/dockerfile-upstream:master":        "docker/dockerfile-upstream:master",
	} {
		dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "# syntax=" + line + "\nFROM kitbox.local/base:1\nUSER root\nRUN echo labs >/x\nCMD [\"sh\"]\n"})
		if _, err := b.build(builder.Request{Context: dir}); err == nil || !strings.Contains(err.Error(), "syntax line") || !strings.Contains(err.Error(), "docker/dockerfile:1") {
			t.Errorf("%s without a network: %v", line, err)
		}
		res, err := b.build(builder.Request{Context: dir, Network: builder.NetworkHost})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, which the registry has not: %v", line, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if len(res.Bases) != 1 || res.Bases[0].Digest != d.Digest || b.file(b.image(res), "/x") != "labs\n" {
			t.Errorf("%s: built by %v", line, res.Bases)
		}
	}
	newer := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "# syntax=docker/dockerfile:1.9999\nFROM kitbox.local/base:1\nCMD [\"sh\"]\n"})
	if w := b.mustBuild(builder.Request{Context: newer}).Warnings; len(w) != 1 || w[0].File != "hello.dockerfile" || w[0].Line != 1 || !strings.Contains(w[0].Message, "asks for Dockerfile 1.9999") {
		t.Errorf("warnings: %+v", w)
	}

	comment := b.kit(map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   provides: [\"c@1.0\"]\n\n" + files["hello.dockerfile"]})
	res = b.mustBuild(builder.Request{Context: comment, Network: builder.NetworkHost})
	if got := b.file(b.image(res), "/usr/share/sandbox/kit/Dockerfile/kit.dockerfile"); got != files["hello.dockerfile"] {
		t.Errorf("staged of a comment descriptor: %q", got)
	}
}

// TestARemoteContextHasItsRecipeBesideTheDescriptor builds an archive that
// BuildKit fetches.
func TestARemoteContextHasItsRecipeBesideTheDescriptor(t *testing.T) {
	b := newBench(t)
	r := b.form("companion", "docker/sandbox-kit:3")
	want := b.mustBuild(r)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range forms["companion"].files {
		text = strings.Replace(text, "# syntax=%", "# syntax=docker/sandbox-kit:3", 1)
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(archive.Bytes()) }))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, _, err := builder.SolveBy(ctx, r, frontend.BuiltinSource, map[string]string{"context": srv.URL + "/context.tar"})
	if err != nil {
		t.Fatal(err)
	}
	var got, local ocispec.Manifest
	b.document(d, &got)
	b.document(want.Digest, &local)
	if got.Annotations[annotation.Descriptor] != local.Annotations[annotation.Descriptor] || len(got.Layers) != len(local.Layers) {
		t.Errorf("%d layers, %v", len(got.Layers), got.Annotations)
	}
	// The staged layer is that of the local build: it has no time of its own.
	if a, b := got.Layers[len(got.Layers)-1].Digest, local.Layers[len(local.Layers)-1].Digest; a != b {
		t.Errorf("staged sources: %s and %s", a, b)
	}
}

// TestOtherQuestionsAreNotAnsweredWithAnImage asks what a Dockerfile frontend
// answers.
func TestOtherQuestionsAreNotAnsweredWithAnImage(t *testing.T) {
	b := newBench(t)
	r := b.form("declaration", "docker/sandbox-kit:3")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err := builder.SolveBy(ctx, r, frontend.BuiltinSource, map[string]string{"requestid": "frontend.outline"})
	if err == nil || !strings.Contains(err.Error(), "unsupported request frontend.outline") {
		t.Errorf("error = %v", err)
	}
}

// TestArgsAreJudgedBeforeTheRecipe sees that no step runs.
func TestArgsAreJudgedBeforeTheRecipe(t *testing.T) {
	b := newBench(t)
	r := b.form("companion", "docker/sandbox-kit:3")
	for what, c := range map[string]struct {
		args map[string]string
		has  string
	}{
		"a value outside the enum": {map[string]string{"word": "hu"}, "args.word"},
		"the recipe's own name":    {map[string]string{"WORD": "hi"}, "WORD"},
		"an arg of the recipe":     {map[string]string{"KIT_BASE": "x"}, "KIT_BASE"},
	} {
		r.Args = c.args
		r.NoCache = true
		res, err := b.build(r)
		if f := builder.AsFailure(err); err == nil || f.File != "hello.yaml" || !strings.Contains(f.Message, c.has) || len(f.Output) > 0 || !isRefused(err) {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
	}
	r.Args = map[string]string{"word": "ho"}
	if got := b.file(b.image(b.mustBuild(r)), "/word"); got != "ho\n" {
		t.Errorf("/word = %q", got)
	}
}

func isRefused(err error) bool { return kiterr.ExitCode(err) == kiterr.StatusRefused }
