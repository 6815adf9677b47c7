package artifact_test

import (
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
		"kits":     withKits(t),
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
	if ids := broken(judge(t, product{images: []*built{im}}, "")); !slices.Equal(ids, []string{"SPEC-v3 §3.5/workload-base-should-match-runtime", "sbx@1/bash-present"}) {
		t.Errorf("a whiteout: %q", ids)
	}
	im = workload(t, "amd64")
	im.layers = slices.Insert(im.layers, 1, []file{reg("usr/bin/.wh..wh..opq", ""), exe("bin/sh"), exe("usr/bin/bash"), exe("usr/bin/git")})
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
	if r.Version != "dev" {
		t.Errorf("the report is of version %q", r.Version)
	}
	for _, c := range []struct {
		p    product
		code int
		want string
	}{{product{images: []*built{workload(t, "amd64")}}, 0, "FROM base\n"}, {product{images: []*built{mixin(t)}}, 3, ""}} {
		var recipe, errs bytes.Buffer
		if code := artifact.Inspect(t.Context(), []string{"kit", "--layout", c.p.write(t), "--dockerfile"}, &recipe, &errs); code != c.code || recipe.String() != c.want {
			t.Errorf("inspect --dockerfile: %d, %q, %s", code, recipe.String(), &errs)
		}
	}
}

// TestInspect shows descriptor and recipe as their author wrote them, and takes
// no flag that it does not heed.
func TestInspect(t *testing.T) {
	w := product{images: []*built{workload(t, "amd64")}}.write(t)
	broken := workload(t, "amd64")
	broken.blob = func(n int, b []byte) []byte { return b[:len(b)-9*n] } // the layer with the sources
	unstaged := mixin(t)
	unstaged.layers = unstaged.layers[:1]
	odd := mixin(t)
	odd.annotations = maps.Clone(odd.annotations)
	odd.annotations[annotation.Descriptor] = `{"schemaVersion":"3","kind":"mixin","description":"yes","version":"1.0","licenses":["no"],"provides":["m@1"]}`
	plain := mixin(t)
	plain.annotations = nil
	for what, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"a workload": {[]string{w}, 0, []string{"linux/amd64", "entrypoint /bin/bash", "# comment\n", "\n# the recipe\nFROM base\n"}},
		"as JSON":    {[]string{w, "--format", "json"}, 0, []string{"\"recipe\": \"FROM base\\n\"", "\"staged\": \"# comment", "\"kind\": \"workload\""}},
		"its recipe": {[]string{w, "--dockerfile"}, 0, []string{"FROM base\n"}},
		"a set":      {[]string{product{images: []*built{set(t)}}.write(t)}, 0, []string{"# comment\n", "r.example/m:1"}},
		"a set's recipe": {[]string{product{images: []*built{set(t)}}.write(t), "--dockerfile"}, 3,
			[]string{"stages no recipe"}},
		"without sources": {[]string{product{images: []*built{unstaged}}.write(t)}, 0, []string{"\nkind: \"mixin\"\nprovides:\n  - \"m@1\"\n"}},
		"what other programs misread": {[]string{product{images: []*built{odd}}.write(t)}, 0,
			[]string{"description: \"yes\"\n", "version: \"1.0\"\n", "- \"no\"\n"}},
		"a damaged layer":   {[]string{product{images: []*built{broken}}.write(t)}, 3, []string{"kind: \"workload\"", "kit-tck: layers[1]: "}},
		"no Kit":            {[]string{product{images: []*built{plain}}.write(t)}, 0, []string{"not a Kit"}},
		"both formats":      {[]string{w, "--dockerfile", "--format", "json"}, 3, []string{"prints the recipe alone"}},
		"the judge's flags": {[]string{w, "--verbose"}, 3, []string{"-verbose"}},
		"its colors":        {[]string{w, "--color", "always"}, 3, []string{"-color"}},
		"its lookups":       {[]string{w, "--kits"}, 3, []string{"-kits"}},
	} {
		var out bytes.Buffer
		code := artifact.Inspect(t.Context(), append([]string{"kit", "--layout"}, c.args...), &out, &out)
		for _, want := range c.want {
			if code != c.code || !strings.Contains(out.String(), want) {
				t.Errorf("%s: %d, no %q in\n%s", what, code, want, &out)
			}
		}
	}
	var out bytes.Buffer
	if code := artifact.Validate(t.Context(), []string{"kit", "--layout", w, "--dockerfile"}, &out, &out); code != 3 {
		t.Errorf("validate --dockerfile: %d, %s", code, &out)
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
