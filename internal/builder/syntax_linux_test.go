package builder_test

import (
	"context"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// program builds a command for an image that holds nothing else, once for all
// tests of the package.
func program(t *testing.T, pkg string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if p := programs.built[pkg]; p != "" {
		return p
	}
	if programs.dir == "" {
		var err error
		if programs.dir, err = os.MkdirTemp("", "kit-frontend-test-"); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(programs.dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, b)
	}
	programs.built[pkg] = out
	return out
}

var programs = struct {
	sync.Mutex
	dir   string
	built map[string]string // by package
}{built: map[string]string{}}

// frontendImage puts the image of kit-frontend into a layout, and under name
// into a registry if there is one, with the command that `make frontend-image`
// runs.
func frontendImage(t *testing.T, name string) (dir string, d digest.Digest) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"run", "../frontend/bundle", "--dir", dir, "--tag", "kitbox.local/sandbox-kit:3"}
	if name != "" {
		args = append(args, "--push", name)
	}
	cmd := exec.Command("go", append(args, "linux/"+runtime.GOARCH+"="+program(t, "../../cmd/kit-frontend"))...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bundle: %v\n%s", err, &errs)
	}
	said, _, _ := strings.Cut(string(out), "\n")
	return filepath.Join(dir, "images"), digest.Digest(said)
}

// frontendLayout is a layout with the image of kit-frontend, shared by the tests
// of this package.
func (b *bench) frontendLayout() (dir string, d digest.Digest) {
	b.Helper()
	out := filepath.Dir(program(b.T, "../../cmd/kit-frontend"))
	dir = filepath.Join(out, "images")
	if _, err := os.Stat(dir); err != nil {
		made, _ := frontendImage(b.T, "")
		if err := os.Rename(made, dir); err != nil {
			b.Fatal(err)
		}
	}
	s, err := layout.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	desc, err := s.Resolve(b.Context(), "kitbox.local/sandbox-kit:3")
	if err != nil {
		b.Fatal(err)
	}
	return dir, desc.Digest
}

// a registry on the loopback; it is gone when the test ends.
func newRegistry(t *testing.T) (host string) {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// forms has one Kit for each form of authoring, with a syntax line of %.
var forms = map[string]struct {
	files      map[string]string
	descriptor string
}{
	"companion": {files: map[string]string{
		"hello.yaml": "# syntax=%\nschemaVersion: \"3\" # kept\nkind: workload\nprovides: [\"hello@1.0.0\"]\nargs:\n  word: {default: hi, enum: [hi, ho], buildArg: WORD}\n" +
			"capabilities:\n  - type: com.docker.sandbox/agent-context@1\n    config: {contentFile: ./doc/guide.md}\n",
		"hello.dockerfile": "# syntax=docker/dockerfile:1\nARG KIT_BASE=kitbox.local/base:1\nFROM ${KIT_BASE}\nARG WORD\nUSER root\nRUN echo $WORD >/word\nCOPY note.txt /note.txt\nCMD [\"/bin/sh\"]\n",
		"note.txt":         "note\n", "doc/guide.md": "guide\n",
	}},
	"named": {files: map[string]string{
		"hello.yaml":  "# syntax=%\nschemaVersion: \"3\"\nkind: mixin\nprovides: [\"hello@1.0.0\"]\ndockerfile: sub/Recipe\n",
		"sub/Recipe":  "FROM kitbox.local/base:1 AS make\nUSER root\nRUN mkdir -p /out/opt && echo x >/out/opt/x\nFROM scratch\nCOPY --from=make /out /\nCOPY skip* /opt/\nCOPY note.txt /opt/\n",
		"note.txt":    "note\n",
		"skipped.txt": "not in the context\n", "sub/Recipe.dockerignore": "skipped.txt\n",
	}},
	"inline": {files: map[string]string{
		"hello.yaml": "# syntax=%\nschemaVersion: \"3\"\nkind: workload\nprovides: [\"hello@1.0.0\"]\nbuild: |\n  # syntax=docker/dockerfile:1\n  FROM kitbox.local/base:1\n  USER root\n  RUN echo inline >/x\n  CMD [\"sh\"]\n",
	}},
	"comment": {descriptor: "Dockerfile", files: map[string]string{
		"Dockerfile": "# syntax=%\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   provides: [\"c@1.0\"]\n\nFROM kitbox.local/base:1\nUSER root\nRUN echo comment >/x\nCMD [\"sh\"]\n",
	}},
	"comment, recipe with a syntax line": {descriptor: "Dockerfile", files: map[string]string{
		"Dockerfile": "# syntax=%\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   provides: [\"c@1.0\"]\n\n# syntax=docker/dockerfile:1\nFROM kitbox.local/base:1\nUSER root\nRUN echo second >/x\nCMD [\"sh\"]\n",
	}},
	"declaration": {files: map[string]string{
		"hello.yaml": "# syntax=%\nschemaVersion: \"3\"\nkind: mixin\nprovides: [\"d@1.0\"]\n",
	}},
}

// write returns the directory of a form with its syntax line.
func (b *bench) form(name, syntax string) builder.Request {
	b.Helper()
	f := forms[name]
	files := maps.Clone(f.files)
	for n, text := range files {
		files[n] = strings.Replace(text, "# syntax=%", "# syntax="+syntax, 1)
	}
	return builder.Request{Home: b.home, Context: b.kit(files), Descriptor: f.descriptor}
}

// TestThreeWaysToBuildMakeOneImage builds every form of authoring in this
// process, by the frontend that the builder has built in, and by the frontend
// image, which BuildKit finds by the syntax line in a registry and in a layout.
func TestThreeWaysToBuildMakeOneImage(t *testing.T) {
	b := newBench(t)
	host := newRegistry(t)
	syntax := host + "/kits/sandbox-kit:3"
	dir, d := b.frontendLayout()
	fetcher := &fetch.Fetcher{Home: filepath.Dir(dir)}
	if got, err := fetcher.Push(t.Context(), "kitbox.local/sandbox-kit:3", syntax); err != nil || got != d {
		t.Fatalf("push: %s, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for name := range forms {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			r := b.form(name, syntax)
			want := b.mustBuild(r)
			for how, c := range map[string]struct {
				frontend string
				attrs    map[string]string
			}{
				"built in":        {frontend.BuiltinSource, nil},
				"by syntax line":  {"dockerfile.v0", nil},
				"by its name":     {"gateway.v0", map[string]string{"source": syntax}},
				"another refused": {"gateway.v0", map[string]string{"source": host + "/kits/none:3"}},
			} {
				got, _, err := builder.SolveBy(ctx, r, c.frontend, c.attrs)
				if how == "another refused" {
					if err == nil {
						t.Error("a frontend that is not there built something")
					}
					continue
				}
				if err != nil || got != want.Digest {
					t.Errorf("%s: %s, %v; in this process: %s", how, got, err, want.Digest)
				}
			}
			// The line as the format writes it, found in a layout: no registry.
			r = b.form(name, "docker/sandbox-kit:3")
			want = b.mustBuild(r)
			r.Contexts = []builder.NamedContext{{Name: "docker/sandbox-kit:3", Layout: dir, Digest: d}}
			if got, _, err := builder.SolveBy(ctx, r, "dockerfile.v0", nil); err != nil || got != want.Digest {
				t.Errorf("by a layout: %s, %v; in this process: %s", got, err, want.Digest)
			}
		})
	}
}

// TestTheFrontendImageNeedsNoNetwork is what its label promises BuildKit.
func TestTheFrontendImageNeedsNoNetwork(t *testing.T) {
	dir, d := newBench(t).frontendLayout()
	// Made once more, and pushed, it is the same.
	again, e := frontendImage(t, newRegistry(t)+"/kits/sandbox-kit:3")
	if d != e || dir == again {
		t.Errorf("one program, two images: %s and %s", d, e)
	}
	s, err := layout.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	desc, err := s.Resolve(t.Context(), "kitbox.local/sandbox-kit:3")
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.Image(t.Context(), desc, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if l := img.Config.Config.Labels; l["moby.buildkit.frontend.network.none"] != "true" || len(img.Layers()) != 1 || img.Config.Created != nil {
		t.Errorf("labels %v, %d layers, created %v", l, len(img.Layers()), img.Config.Created)
	}
}

// TestBuildKitShowsWhereAnErrorIs looks at what clients of BuildKit other than
// ours get to show: the file, the lines and an excerpt.
func TestBuildKitShowsWhereAnErrorIs(t *testing.T) {
	b := newBench(t)
	dir, d := b.frontendLayout()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const head = "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: workload\nprovides: [\"hello@1.0.0\"]\n"
	for name, c := range map[string]struct {
		files map[string]string
		file  string
		r     builder.Request
		line  int32
		text  string   // in the error
		shown []string // in the excerpt
	}{
		"an unknown key":              {map[string]string{"hello.yaml": head + "entrypoint: [sh]\n", "hello.dockerfile": recipe}, "hello.yaml", builder.Request{}, 5, "entrypoint", []string{">>> entrypoint: [sh]"}},
		"a tab":                       {map[string]string{"hello.yaml": head + "capabilities:\n\t- x\n"}, "hello.yaml", builder.Request{}, 6, "hello.yaml:6", []string{"   6 | >>>"}},
		"a value":                     {map[string]string{"hello.yaml": head + "capabilities:\n  - type: com.docker.sandbox/volume@1\n    config: {path: data}\n", "hello.dockerfile": recipe}, "hello.yaml", builder.Request{}, 7, "path", []string{">>>     config: {path: data}"}},
		"an argument":                 {map[string]string{"hello.yaml": head + "args:\n  n: {default: \"1\", pattern: \"[0-9]+\", buildArg: N}\n", "hello.dockerfile": "FROM kitbox.local/base:1\nRUN false\n"}, "hello.yaml", builder.Request{Args: map[string]string{"n": "x"}}, 5, "pattern", []string{">>> args:"}},
		"a recipe's syntax":           {map[string]string{"hello.yaml": head, "hello.dockerfile": "FROM kitbox.local/base:1\nRUNN true\n"}, "hello.dockerfile", builder.Request{}, 2, "RUNN", []string{">>> RUNN true"}},
		"a recipe's step":             {map[string]string{"hello.yaml": head, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN false\n"}, "hello.dockerfile", builder.Request{}, 3, "exit code: 1", []string{">>> RUN false"}},
		"an inline step":              {map[string]string{"hello.yaml": head + "build: |\n  FROM kitbox.local/base:1\n  USER root\n  RUN false\n"}, "hello.yaml", builder.Request{}, 8, "exit code: 1", []string{">>>   RUN false"}},
		"a comment's key":             {map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   nmae: x\nFROM kitbox.local/base:1\n"}, "Dockerfile", builder.Request{Descriptor: "Dockerfile"}, 5, "nmae", []string{">>> #   nmae: x"}},
		"a comment's step":            {map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n\nFROM kitbox.local/base:1\nUSER root\nRUN false\n"}, "Dockerfile", builder.Request{Descriptor: "Dockerfile"}, 8, "exit code: 1", []string{">>> RUN false"}},
		"a named recipe's":            {map[string]string{"hello.yaml": head + "dockerfile: sub/Recipe\n", "sub/Recipe": "FROM kitbox.local/base:1\nUSER root\nRUN false\n"}, "sub/Recipe", builder.Request{}, 3, "exit code: 1", []string{">>> RUN false"}},
		"a second syntax line's":      {map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n\n# syntax=docker/dockerfile:1\nFROM kitbox.local/base:1\nUSER root\nRUN false\n"}, "Dockerfile", builder.Request{Descriptor: "Dockerfile"}, 9, "exit code: 1", []string{">>> RUN false"}},
		"a rule of the suite":         {map[string]string{"hello.yaml": head + "capabilities:\n  - type: com.docker.sandbox/agent-skill@1\n    config: {path: /s}\n", "hello.dockerfile": "FROM kitbox.local/base:1\nCMD [\"sh\"]\n"}, "hello.yaml", builder.Request{}, 3, "agent-skill@1/content-present", []string{">>> kind: workload"}},
		"a provide without a version": {map[string]string{"hello.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides:\n  - a@1\n  - b\n"}, "hello.yaml", builder.Request{}, 6, "write b@VERSION or set version", []string{">>>   - b"}},
		"nothing to launch":           {map[string]string{"hello.yaml": head, "hello.dockerfile": "FROM kitbox.local/base:1\n"}, "hello.yaml", builder.Request{}, 3, "ENTRYPOINT", []string{">>> kind: workload"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			c.r.Home, c.r.Context = b.home, b.kit(c.files)
			c.r.Contexts = []builder.NamedContext{{Name: "docker/sandbox-kit:3", Layout: dir, Digest: d}}
			_, _, err := builder.SolveBy(ctx, c.r, "dockerfile.v0", nil)
			if err == nil {
				t.Fatal("the build went well")
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("error = %v, lacks %q", err, c.text)
			}
			var shown strings.Builder
			sources := errdefs.Sources(err)
			for _, s := range sources {
				if err := s.Print(&shown); err != nil {
					t.Error(err)
				}
			}
			if len(sources) == 0 || sources[0].Info.Filename != c.file || len(sources[0].Ranges) == 0 || sources[0].Ranges[0].Start.Line != c.line {
				t.Fatalf("places = %+v of %v, want %s:%d", sources, err, c.file, c.line)
			}
			for _, want := range c.shown {
				if !strings.Contains(shown.String(), want) {
					t.Errorf("shown:\n%s\nlacks %q", &shown, want)
				}
			}
		})
	}
}
