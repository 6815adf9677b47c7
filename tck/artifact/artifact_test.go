package artifact_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

func judge(t testing.TB, p product, platform string) *artifact.Report {
	t.Helper()
	a, err := artifact.Open(t.Context(), "kit", artifact.Options{Layout: p.write(t), Platform: platform})
	if err != nil {
		t.Fatal(err)
	}
	r, err := artifact.Judge(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// broken returns the statements that r finds broken, or only warned about.
func broken(r *artifact.Report) []string {
	var ids []string
	for _, v := range r.Verdicts {
		if v.Outcome == tck.Fail || v.Outcome == tck.Warn {
			ids = append(ids, v.Statement)
		}
	}
	return ids
}

func TestGoodKitsPass(t *testing.T) {
	for name, p := range map[string]product{
		"workload": {images: []*built{workload(t, "amd64")}},
		"mixin":    {images: []*built{mixin(t)}},
		"set":      {images: []*built{set(t)}},
		"two":      twice(t),
	} {
		r := judge(t, p, "")
		if ids := broken(r); len(ids) > 0 || !r.OK() || r.Tally.Passed < 15 {
			t.Errorf("%s: %q, %+v", name, r.Findings, r.Tally)
		}
	}
	if r := judge(t, twice(t), "linux/arm64"); !r.OK() || len(r.Platforms) != 1 || r.Platforms[0] != "linux/arm64" {
		t.Errorf("one platform: %q of %q", r.Findings, r.Platforms)
	}
}

// spoilers has, for every rule, an artifact made wrong on purpose and nothing
// else.
var spoilers = []struct {
	id, what string
	make     func(*testing.T) product
}{
	{"SPEC-v3 §9.3/descriptor-annotation", "a manifest without a descriptor", func(t *testing.T) product {
		p := twice(t)
		delete(p.images[1].annotations, annotation.Descriptor)
		return p
	}},
	{"SPEC-v3 §9.1/descriptor-valid", "an unknown key", spoilWorkload(func(t *testing.T, im *built) {
		text := strings.Replace(im.annotations[annotation.Descriptor], `"version":`, `"vresion":"1","version":`, 1)
		im.annotations[annotation.Descriptor] = text
	})},
	{"SPEC-v3 §9.2/versioned-provides", "a provide without a version", spoilMixin(func(t *testing.T, im *built) {
		text := `{"schemaVersion":"3","kind":"mixin","provides":["m"]}`
		im.annotations[annotation.Descriptor] = text
		delete(im.annotations, annotation.Version)
		im.layers = im.layers[:1]
		im.layers[0] = append(im.layers[0], reg("usr/share/sandbox/kit/m/kit.yaml", text))
	})},
	{"SPEC-v3 §9.3/descriptor-compact", "blanks", spoilMixin(func(t *testing.T, im *built) {
		im.annotations[annotation.Descriptor] = strings.Replace(im.annotations[annotation.Descriptor], ":", ": ", 1)
	})},
	{"SPEC-v3 §9.3/annotations-agree", "a title nobody stated", spoilMixin(annotate(annotation.Title, "M"))},
	{"SPEC-v3 §9.3/annotations-agree", "a missing version", spoilMixin(annotate(annotation.Version, ""))},
	{"SPEC-v3 §9.3/annotations-agree", "another capability list", spoilWorkload(annotate(annotation.Capabilities, "x/y@1"))},
	{"SPEC-v3 §9.3/built-by-form", "not JSON", spoilMixin(annotate(annotation.BuiltBy, "me"))},
	{"SPEC-v3 §9.3/built-by-form", "no version", spoilMixin(annotate(annotation.BuiltBy, `{"name":"x"}`))},
	{"SPEC-v3 §9.3/created-rfc3339", "a date alone", spoilMixin(annotate(annotation.Created, "2026-01-01"))},
	{"SPEC-v3 §9.3/no-revision-no-base", "a revision", spoilMixin(annotate("org.opencontainers.image.revision", "abc"))},
	{"SPEC-v3 §9.3/no-revision-no-base", "a base", spoilMixin(annotate("org.opencontainers.image.base.name", "abc"))},
	{"SPEC-v3 §9.3/annotations-promoted", "an index that says less", func(t *testing.T) product {
		p := twice(t)
		delete(p.index, annotation.Title)
		return p
	}},
	{"SPEC-v3 §9.5/declarations-platform-independent", "another builder for one platform", func(t *testing.T) product {
		p := twice(t)
		p.images[1].annotations[annotation.BuiltBy] = `{"name":"other","version":"1"}`
		return p
	}},
	{"SPEC-v3 §10/plain-image", "an artifact type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.ArtifactType = "application/x" }
	})},
	{"SPEC-v3 §10/plain-image", "a config of another type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Config.MediaType = "application/x" }
	})},
	{"SPEC-v3 §10/plain-image", "a layer of another type", spoilMixin(func(_ *testing.T, im *built) {
		im.manifest = func(m *ocispec.Manifest) { m.Layers[0].MediaType = "application/x" }
	})},
	{"SPEC-v3 §10/platform-stated", "no architecture", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.Architecture = "" }
	})},
	{"SPEC-v3 §10/platform-stated", "another than the index says", func(t *testing.T) product {
		p := twice(t)
		p.images[1].image = func(c *ocispec.Image) { c.Architecture = "riscv64" }
		return p
	}},
	{"SPEC-v3 §10/layers-intact", "a diff id that is another's", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.RootFS.DiffIDs[0] = c.RootFS.DiffIDs[1] }
	})},
	{"SPEC-v3 §10/layers-intact", "a diff id too many", spoilMixin(func(_ *testing.T, im *built) {
		im.image = func(c *ocispec.Image) { c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, c.RootFS.DiffIDs[0]) }
	})},
	{"SPEC-v3 §10/layers-intact", "a blob cut short", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(n int, b []byte) []byte { return b[:len(b)-9+n] }
	})},
	{"SPEC-v3 §10/layers-intact", "another blob", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(_ int, b []byte) []byte { b = bytes.Clone(b); b[4]++; return b } // the time in a gzip header
	})},
	{"SPEC-v3 §10/layers-intact", "a missing blob", spoilMixin(func(_ *testing.T, im *built) {
		im.blob = func(n int, b []byte) []byte { return nil }
	})},
	{"SPEC-v3 §10/entries-contained", "a path upwards", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], reg("opt/../../etc/x", ""))
	})},
	{"SPEC-v3 §10/entries-contained", "a hard link to nothing", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[0] = append(im.layers[0], file{Header: tarLink("opt/x", "opt/none")})
	})},
	{"SPEC-v3 §3.5/workload-has-content", "nothing but sources", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.layers = im.layers[1:]
		im.describe(t, "w", `{"schemaVersion":"3","kind":"workload","build":"FROM scratch\n"}`)
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §10/workload-launches", "neither entrypoint nor command", spoilWorkload(func(_ *testing.T, im *built) { im.config.Entrypoint = nil })},
	{"SPEC-v3 §10/sources-staged", "another descriptor staged", spoilMixin(func(_ *testing.T, im *built) {
		im.layers[1][0] = reg("usr/share/sandbox/kit/m/kit.yaml", `{"schemaVersion":"3","kind":"mixin","provides":["m@2"]}`)
	})},
	{"SPEC-v3 §10/sources-staged", "none staged", spoilMixin(func(_ *testing.T, im *built) { im.layers = im.layers[:1] })},
	{"SPEC-v3 §10/recipe-staged", "no recipe staged", spoilWorkload(func(_ *testing.T, im *built) {
		im.layers[1] = slices.Delete(im.layers[1], 1, 2)
	})},
	{"SPEC-v3 §10/overlay-home-ownership", "a home of another user", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], dir("home", 1000)) })},
	{"SPEC-v3 §10/overlay-home-ownership", "an agent's home of root", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], dir("home/agent", 0)) })},
	{"SPEC-v3 §10/overlay-links-resolve", "a dangling link", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], link("opt/m/x", "none")) })},
	{"SPEC-v3 §10/overlay-links-resolve", "links in a circle", spoilMixin(func(_ *testing.T, im *built) { im.layers[0] = append(im.layers[0], link("opt/m/x", "x")) })},
	{"SPEC-v3 §10/mixin-config-delta", "the base's PATH", spoilMixin(func(_ *testing.T, im *built) { im.config.Env = []string{"PATH=/usr/bin:/bin:/opt"} })},
	{"SPEC-v3 §9.6/workload-only", "a mixin's package", func(t *testing.T) product {
		im := mixin(t)
		im.describe(t, "m", `{"schemaVersion":"3","kind":"mixin","provides":["m@1","deb/oak@2.1"]}`)
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §9.6/installed-only", "a package that was removed", provides("ash@1")},
	{"SPEC-v3 §9.6/installed-only", "a package that never was", provides("elm@1")},
	{"SPEC-v3 §9.6/prerelease-dropped", "a pre-release", provides("fir@1")},
	{"SPEC-v3 §9.6/version-is-upstream-core", "a packaging suffix", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.describe(t, "w", strings.Replace(workloadText, "oak@2.1", "oak@2.1-3", 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §9.6/agreed-across-platforms", "a package that one platform lacks", func(t *testing.T) product {
		p := twice(t)
		p.images[1].layers[0][7].data = ""
		return p
	}},
	{"SPEC-v3 §9.6/every-package-stated", "a package nobody states", func(t *testing.T) product {
		im := workload(t, "amd64")
		im.describe(t, "w", strings.Replace(workloadText, `,"deb/oak@2.1"`, "", 1))
		return product{images: []*built{im}}
	}},
	{"SPEC-v3 §10/merged-set-carries-sources", "a Kit without sources", spoilSet(func(_ *testing.T, im *built) { im.layers[3] = nil })},
	{"SPEC-v3 §10/merged-set-carries-sources", "sources that cannot be read", spoilSet(func(_ *testing.T, im *built) { im.layers[3][0].data = "{" })},
	{"SPEC-v3 §10/merged-set-files-agree", "a file of another Kit", spoilSet(func(_ *testing.T, im *built) {
		im.layers[2] = append(im.layers[2], reg("etc/env.sh", "other"))
	})},
	{"SPEC-v3 §9.5/licenses-union", "a license left out", respell(`"licenses":["MIT"],`, "")},
	{"SPEC-v3 §9.5/provides-union", "a provide left out", respell(`,"m@1"`, "")},
	{"SPEC-v3 §9.5/internal-requires-dropped", "a require of its own", respell(`"kits":`, `"requires":["m"],"kits":`)},
	{"agent-context@1/content-file-present", "guidance that is not shipped", spoilWorkload(func(_ *testing.T, im *built) { im.layers[1] = im.layers[1][:2] })},
	{"agent-skill@1/content-present", "a skill that is a link", spoilWorkload(func(_ *testing.T, im *built) {
		im.layers[0][8] = link("usr/share/skills/s/SKILL.md", "/etc/passwd")
	})},
	{"sbx@1/posix-shell-present", "no sh", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][3] = link("usr/bin/sh", "zsh") })},
	{"sbx@1/posix-shell-present", "a FIFO", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][2].Typeflag, im.layers[0][2].data = '6', "" })},
	{"sbx@1/bash-present", "a bash for root alone", spoilWorkload(func(_ *testing.T, im *built) { im.layers[0][1].Mode = 0o750 })},
	{"sbx@1/image-declares-user", "no user", spoilWorkload(func(_ *testing.T, im *built) { im.config.User = "" })},
	{"sbx@1/user-resolves-in-passwd", "a user nobody knows", spoilWorkload(func(_ *testing.T, im *built) { im.config.User = "nobody" })},
	{"sbx@1/bash-env-names-a-shipped-file", "a file that is not there", spoilWorkload(func(_ *testing.T, im *built) { im.config.Env = []string{"BASH_ENV=/none"} })},
	{"sbx@1/bash-env-names-a-shipped-file", "no such variable", spoilWorkload(func(_ *testing.T, im *built) { im.config.Env = nil })},
}

func spoilWorkload(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := workload(t, "amd64"); f(t, im); return product{images: []*built{im}} }
}

func spoilMixin(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := mixin(t); f(t, im); return product{images: []*built{im}} }
}

func spoilSet(f func(*testing.T, *built)) func(*testing.T) product {
	return func(t *testing.T) product { im := set(t); f(t, im); return product{images: []*built{im}} }
}

func respell(old, now string) func(*testing.T) product {
	return spoilSet(func(t *testing.T, im *built) { im.describe(t, "both", strings.Replace(setText, old, now, 1)) })
}

func provides(entry string) func(*testing.T) product {
	return spoilWorkload(func(t *testing.T, im *built) {
		im.describe(t, "w", strings.Replace(workloadText, `"deb/oak@2.1"`, `"deb/oak@2.1","deb/`+entry+`"`, 1))
	})
}

func annotate(key, value string) func(*testing.T, *built) {
	return func(_ *testing.T, im *built) {
		if im.annotations[key] = value; value == "" {
			delete(im.annotations, key)
		}
	}
}

func tarLink(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink}
}

// Rules that a spoiled artifact cannot break alone: an image without layers has
// no sources either.
var alone = map[string][]string{
	"SPEC-v3 §9.1/descriptor-valid": {"SPEC-v3 §10/sources-staged"}, // what is staged is what was meant
}

func TestEveryRuleIsSeenToFail(t *testing.T) {
	seen := map[string]bool{"SPEC-v3 §10/has-layer": true} // below
	for _, s := range spoilers {
		seen[s.id] = true
		t.Run(s.id+", "+s.what, func(t *testing.T) {
			r := judge(t, s.make(t), "")
			got := slices.DeleteFunc(broken(r), func(id string) bool { return slices.Contains(alone[s.id], id) })
			if !slices.Equal(got, []string{s.id}) {
				t.Errorf("broken %q: %+v", got, r.Findings)
			}
			st, ok := tck.Lookup(s.id)
			if !ok || r.OK() == st.Level.Binding() {
				t.Errorf("%s: level %q and verdict %v do not agree", s.id, st.Level, r.OK())
			}
			for _, f := range r.Findings {
				if f.Section == "" || f.Message == "" || strings.Contains(f.Section, "/") {
					t.Errorf("incomplete: %+v", f)
				}
			}
		})
	}
	for _, v := range judge(t, product{images: []*built{workload(t, "amd64")}}, "").Verdicts {
		if !seen[v.Statement] && v.Outcome != tck.Waived {
			t.Errorf("%s: no artifact breaks it", v.Statement)
		}
		if _, ok := tck.Lookup(v.Statement); !ok {
			t.Errorf("%s is not in the registry", v.Statement)
		}
	}
}

func TestLayersThatAreNone(t *testing.T) {
	empty := func(m *ocispec.Manifest) { m.Layers = []ocispec.Descriptor{ocispec.DescriptorEmptyJSON} }
	none := func(m *ocispec.Manifest) { m.Layers = nil }
	for what, spoil := range map[string]func(*ocispec.Manifest){"the empty descriptor": empty, "none": none} {
		im := mixin(t)
		im.manifest = spoil
		if ids := broken(judge(t, product{images: []*built{im}}, "")); !slices.Contains(ids, "SPEC-v3 §10/has-layer") {
			t.Errorf("%s: %q", what, ids)
		}
	}
}

func TestAnImageThatIsNoKit(t *testing.T) {
	im := mixin(t)
	im.annotations = nil
	r := judge(t, product{images: []*built{im}}, "")
	if ids := broken(r); !slices.Equal(ids, []string{"SPEC-v3 §9.3/descriptor-annotation"}) || r.Tally.Skipped < 10 {
		t.Errorf("%q, %+v", ids, r.Tally)
	}
}

// TestLayersStack is about what later layers take away.
func TestLayersStack(t *testing.T) {
	im := workload(t, "amd64")
	im.layers = slices.Insert(im.layers, 1, []file{reg("usr/bin/.wh.bash", "")})
	if ids := broken(judge(t, product{images: []*built{im}}, "")); !slices.Equal(ids, []string{"sbx@1/bash-present"}) {
		t.Errorf("a whiteout: %q", ids)
	}
	im = workload(t, "amd64")
	im.layers = slices.Insert(im.layers, 1, []file{reg("usr/bin/.wh..wh..opq", ""), exe("bin/sh"), exe("usr/bin/bash")})
	if ids := broken(judge(t, product{images: []*built{im}}, "")); len(ids) > 0 {
		t.Errorf("an opaque directory, and files through a link: %q", ids)
	}
	im = workload(t, "amd64")
	im.layers = slices.Insert(im.layers, 1, []file{reg("etc", "")})
	if ids := broken(judge(t, product{images: []*built{im}}, "")); !slices.Contains(ids, "sbx@1/user-resolves-in-passwd") {
		t.Errorf("a file in place of a directory: %q", ids)
	}
}

func TestCommands(t *testing.T) {
	good := product{images: []*built{mixin(t)}}.write(t)
	bad := product{images: []*built{func() *built { im := mixin(t); im.layers = im.layers[:1]; return im }()}}.write(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"kit", "--layout", good}, 0, "0 failed"},
		{[]string{"--layout", good, "--verbose", "kit"}, 0, "pass   SPEC-v3 §10/has-layer"},
		{[]string{"kit", "--layout", good, "--platform", "linux/amd64", "--color", "always", "--verbose"}, 0, "\x1b[32mpass"},
		{[]string{"kit", "--layout", bad}, 1, "fail   SPEC-v3 §10/sources-staged /usr/share/sandbox/kit: "},
		{[]string{"none", "--layout", good}, 3, ""},
		{[]string{"kit", "--layout", good, "--platform", "linux/arm64"}, 3, ""},
		{[]string{"kit", "--layout", t.TempDir()}, 3, ""},
		{[]string{"127.0.0.1:1/none/none:1"}, 3, ""},
		{[]string{"kit", "--format", "xml"}, 3, ""},
		{nil, 3, ""},
	} {
		var out, errs bytes.Buffer
		code := artifact.Validate(t.Context(), c.args, &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.want) || (code == 3) != (errs.Len() > 0) {
			t.Errorf("%q: %d\n%s%s", c.args, code, &out, &errs)
		}
	}
	var out bytes.Buffer
	if code := artifact.Validate(t.Context(), []string{"kit", "--layout", bad, "--format", "json"}, &out, io.Discard); code != 1 {
		t.Errorf("json: %d", code)
	}
	var r artifact.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Findings) != 1 || r.Findings[0].Section != "§10" || r.Tally.Failed != 1 {
		t.Errorf("%v: %s", err, &out)
	}
	out.Reset()
	if code := artifact.Inspect(t.Context(), []string{"kit", "--layout", good}, &out, io.Discard); code != 0 || !strings.Contains(out.String(), "\n  \"kind\": \"mixin\"") {
		t.Errorf("inspect: %d\n%s", code, &out)
	}
}

// TestRegistriesAreJudgedLikeLayouts judges one artifact over HTTP.
func TestRegistriesAreJudgedLikeLayouts(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	p := twice(t)
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	src, err := oci.NewFromFS(t.Context(), os.DirFS(p.write(t)))
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(srv.Listener.Addr().String() + "/kits/w")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	if _, err := oras.Copy(t.Context(), src, "kit", repo, "1", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := artifact.Validate(t.Context(), []string{srv.Listener.Addr().String() + "/kits/w:1"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "linux/amd64, linux/arm64") {
		t.Errorf("%d\n%s%s", code, &out, &errs)
	}
}

// TestHostileText does not reach the terminal.
func TestHostileText(t *testing.T) {
	im := mixin(t)
	im.annotations = maps.Clone(im.annotations)
	im.annotations[annotation.Title] = "\x1b]0;x\a"
	var out bytes.Buffer
	artifact.Validate(t.Context(), []string{"kit", "--layout", product{images: []*built{im}}.write(t)}, &out, io.Discard)
	artifact.Inspect(t.Context(), []string{"kit", "--layout", filepath.Clean(product{images: []*built{im}}.write(t))}, &out, io.Discard)
	if strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q", out.String())
	}
}
