package builder_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/builder/cli"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

// TestMain lets the test binary be kit-builder: a builder is started by running
// the program that wants one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"serve", "build", "stop", "status"}, os.Args[1]) {
		os.Exit(cli.Main(frontend.Builder{}, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	code := m.Run()
	os.RemoveAll(programs.dir)
	os.Exit(code)
}

// busybox is a program that needs no libraries, for the base image.
func busybox(t *testing.T) []byte {
	t.Helper()
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		f, err := elf.Open(p)
		if err != nil {
			continue
		}
		dynamic := f.Section(".interp") != nil
		f.Close()
		if b, err := os.ReadFile(p); err == nil && !dynamic {
			return b
		}
	}
	needs.Lacks(t, "this machine has no static busybox: apt-get install busybox-static")
	return nil
}

// A bench is a home with a base image and a builder of its own.
type bench struct {
	*testing.T
	home string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	needs.Root(t, "BuildKit mounts")
	needs.Program(t, "runc", "apt-get install runc")
	b := &bench{t, filepath.Join(t.TempDir(), "home")}
	t.Cleanup(func() {
		if err := builder.Stop(context.Background(), b.dir()); err != nil && !errors.Is(err, kiterr.ErrNotRunning) {
			t.Errorf("stopping the builder: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(b.dir(), "builder.log"))
			t.Logf("builder.log:\n%s", log)
		}
	})
	b.writeBase(busybox(t))
	return b
}

func (b *bench) dir() string {
	d, err := builder.Dir(b.home)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func (b *bench) images() *layout.Store {
	s, err := layout.Open(filepath.Join(b.home, "images"))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

const dpkgStatus = `Package: bash
Status: install ok installed
Version: 5.2.15-2+b7

Package: gone
Status: deinstall ok config-files
Version: 1.0-1

Package: libssl3
Status: install ok installed
Version: 1:3.0.15~rc1-1

Package: zlib1g
Status: install ok installed
Version: 1:1.2.13.dfsg-1`

// writeBase puts an image kitbox.local/base:1 into the store.
func (b *bench) writeBase(busybox []byte) {
	b.Helper()
	ctx := context.Background()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	add := func(h tar.Header, data string) {
		h.Size = int64(len(data))
		h.ModTime = time.Unix(0, 0)
		if err := w.WriteHeader(&h); err != nil {
			b.Fatal(err)
		}
		io.WriteString(w, data)
	}
	for _, d := range []string{"bin", "etc", "tmp", "var", "var/lib", "var/lib/dpkg", "home", "etc/ssl", "etc/ssl/certs", "usr", "usr/bin"} {
		add(tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, string(busybox))
	for _, a := range []string{"sh", "cat", "echo", "sleep", "chown", "ls", "mkdir", "touch", "wget", "nc", "date", "env", "true", "false", "id"} {
		add(tar.Header{Name: "bin/" + a, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, "")
	}
	// What content may assume of a base; none of it is run here.
	for _, f := range []string{"bin/bash", "usr/bin/git", "etc/ssl/certs/ca-certificates.crt"} {
		add(tar.Header{Name: f, Typeflag: tar.TypeReg, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, "root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
	add(tar.Header{Name: "var/lib/dpkg/status", Typeflag: tar.TypeReg, Mode: 0o644}, dpkgStatus)
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(raw.Bytes())
	z.Close()
	s := b.images()
	layer, err := s.PushBytes(ctx, ocispec.MediaTypeImageLayerGzip, zipped.Bytes())
	if err != nil {
		b.Fatal(err)
	}
	config, err := s.PushJSON(ctx, ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   ocispec.ImageConfig{Env: []string{"PATH=/bin:/usr/bin", "BASE=yes"}, User: "agent", WorkingDir: "/home", Labels: map[string]string{"base": "1"}},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(raw.Bytes())}},
	})
	if err != nil {
		b.Fatal(err)
	}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{layer}}
	m.SchemaVersion = 2
	desc, err := s.PushJSON(ctx, ocispec.MediaTypeImageManifest, m)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Tag(ctx, desc, "kitbox.local/base:1"); err != nil {
		b.Fatal(err)
	}
}

// kit writes a Kit's directory.
func (b *bench) kit(files map[string]string) string {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "hello")
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// build builds and returns what went wrong, if anything.
func (b *bench) build(r builder.Request) (*builder.Result, error) {
	b.Helper()
	r.Home = b.home
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return builder.Build(ctx, r, builder.Progress{})
}

func (b *bench) mustBuild(r builder.Request) *builder.Result {
	b.Helper()
	res, err := b.build(r)
	if err != nil {
		b.Fatalf("%v\n%+v", err, builder.AsFailure(err))
	}
	return res
}

// image reads a result's manifest and config from the store.
func (b *bench) image(res *builder.Result) layout.Image {
	b.Helper()
	img, err := b.images().Image(context.Background(), ocispec.Descriptor{Digest: res.Digest, MediaType: res.MediaType, Size: res.Size}, layout.HostPlatform())
	if err != nil {
		b.Fatal(err)
	}
	return img
}

// file reads a file of an image: the topmost layer that has it.
func (b *bench) file(img layout.Image, name string) string {
	b.Helper()
	for _, l := range slices.Backward(img.Layers()) {
		r, err := b.images().Fetch(context.Background(), l.Blob)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		z, err := gzip.NewReader(r)
		if err != nil {
			b.Fatal(err)
		}
		tr := tar.NewReader(z)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if strings.Trim(h.Name, "/") == strings.Trim(name, "/") {
				data, _ := io.ReadAll(tr)
				return string(data)
			}
		}
	}
	b.Errorf("the image has no %s", name)
	return ""
}

const workload = `# syntax=docker/sandbox-kit:3
schemaVersion: "3"
kind: workload
displayName: Hello # the name people see
provides: ["hello@1.0.0"]
`

const recipe = `# syntax=docker/dockerfile:1
ARG KIT_BASE=kitbox.local/base:1
FROM ${KIT_BASE}
USER root
RUN echo hello >/hello.txt && mkdir -p /opt/x
COPY note.txt /note.txt
CMD ["/bin/sh"]
`

func TestACompanionWorkloadBecomesAKitImage(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"})
	res := b.mustBuild(builder.Request{Context: dir, Tag: "kitbox.local/hello:1"})
	if res.Cached || res.Stem != "hello" {
		t.Errorf("result = %+v; want a first build of hello", res)
	}
	img := b.image(res)
	a := img.Annotations
	for k, want := range map[string]string{
		annotation.SchemaVersion:  "3",
		ocispec.AnnotationTitle:   "Hello",
		ocispec.AnnotationVersion: "1.0.0", // derived provides have no vote
		annotation.BuiltBy:        `{"name":"kitbox","version":"dev"}`,
	} {
		if a[k] != want {
			t.Errorf("annotation %s = %q, want %q", k, a[k], want)
		}
	}
	for _, k := range []string{ocispec.AnnotationCreated, ocispec.AnnotationRevision, annotation.Capabilities, ocispec.AnnotationBaseImageName} {
		if v, ok := a[k]; ok {
			t.Errorf("annotation %s = %q, want none", k, v)
		}
	}
	var d struct{ Provides []string }
	if err := json.Unmarshal([]byte(a[annotation.Descriptor]), &d); err != nil {
		t.Fatal(err)
	}
	if want := []string{"hello@1.0.0", "deb/bash@5.2.15", "deb/zlib1g@1.2.13"}; !slices.Equal(d.Provides, want) {
		t.Errorf("provides = %q, want %q", d.Provides, want)
	}
	if got := b.file(img, "/usr/share/sandbox/kit/hello/kit.dockerfile"); got != recipe {
		t.Errorf("staged recipe = %q", got)
	}
	yaml := b.file(img, "/usr/share/sandbox/kit/hello/kit.yaml")
	if !strings.Contains(yaml, "# the name people see") || !strings.Contains(yaml, "deb/bash@5.2.15") {
		t.Errorf("staged descriptor lost its comments or its derived provides:\n%s", yaml)
	}
	if got := b.file(img, "/hello.txt") + b.file(img, "/note.txt"); got != "hello\nnote\n" {
		t.Errorf("content = %q", got)
	}
	base, err := b.images().Resolve(context.Background(), "kitbox.local/base:1")
	if err != nil {
		t.Fatal(err)
	}
	baseImg, err := b.images().Image(context.Background(), base, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := img.Layers()[0], baseImg.Layers()[0]; got.Blob.Digest != want.Blob.Digest || got.DiffID != want.DiffID {
		t.Errorf("first layer = %v, want the base's own %v", got, want)
	}
	if n := len(img.Layers()); n != 4 {
		t.Errorf("%d layers, want the base's, two of the recipe and the staged one", n)
	}
	if tagged, err := b.images().Resolve(context.Background(), "kitbox.local/hello:1"); err != nil || tagged.Digest != res.Digest {
		t.Errorf("tag = %v, %v; want %s", tagged.Digest, err, res.Digest)
	}
	if left, _ := filepath.Glob(filepath.Join(b.home, "images", "ingest", "*")); len(left) > 0 {
		t.Errorf("left in the store: %q", left)
	}

	again := b.mustBuild(builder.Request{Context: dir})
	if !again.Cached || again.Digest != res.Digest {
		t.Errorf("second build: cached %v, digest %s; want the first's %s", again.Cached, again.Digest, res.Digest)
	}
}

func TestFormsOfAuthoring(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		files      map[string]string
		descriptor string
		file, want string
	}{
		"inline":                           {map[string]string{"hello.yaml": workload + "build: |\n  # syntax=docker/dockerfile:1\n  FROM kitbox.local/base:1\n  USER root\n  RUN echo inline >/x\n  CMD [\"sh\"]\n"}, "", "/x", "inline\n"},
		"named recipe":                     {map[string]string{"hello.yaml": workload + "dockerfile: sub/Recipe\n", "sub/Recipe": "FROM kitbox.local/base:1\nUSER root\nRUN echo named >/x\nCMD [\"sh\"]\n"}, "", "/x", "named\n"},
		"comment":                          {map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#\n#   # kept\n#   provides: [\"c@1.0\"]\n\nFROM kitbox.local/base:1\nUSER root\nRUN echo comment >/x\nCMD [\"sh\"]\n"}, "Dockerfile", "/x", "comment\n"},
		"comment with a syntax of its own": {map[string]string{"c.dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   provides: [\"c@1.0\"]\n\n# syntax=docker/dockerfile:1\nFROM kitbox.local/base:1\nUSER root\nRUN echo second >/x\nCMD [\"sh\"]\n"}, "c.dockerfile", "/x", "second\n"},
		"declaration only":                 {map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"d@1.0\"]\n"}, "", "/usr/share/sandbox/kit/hello/kit.yaml", "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"d@1.0\"]\n"},
		"descriptor in a subdirectory":     {map[string]string{"sub/a.yaml": workload, "sub/a.dockerfile": "FROM kitbox.local/base:1\nUSER root\nCOPY note.txt /x\nCMD [\"sh\"]\n", "note.txt": "from the root\n"}, "sub/a.yaml", "/x", "from the root\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			res := b.mustBuild(builder.Request{Context: b.kit(c.files), Descriptor: c.descriptor})
			img := b.image(res)
			if got := b.file(img, c.file); got != c.want {
				t.Errorf("%s = %q, want %q", c.file, got, c.want)
			}
			if name == "declaration only" && len(img.Layers()) != 1 {
				t.Errorf("%d layers, want the staged one alone", len(img.Layers()))
			}
		})
	}
}

func TestAMixinKeepsOnlyWhatItsRecipeStates(t *testing.T) {
	b := newBench(t)
	res := b.mustBuild(builder.Request{Context: b.kit(map[string]string{
		"hello.yaml": `schemaVersion: "3"
kind: mixin
provides: [tool]
version: ${{ kit.args.release }}
args:
  release:
    default: "1.0"
    buildArg: RELEASE
    enum: ["1.0", "2.0"]
capabilities:
  - type: com.docker.sandbox/agent-context@1
    config:
      # where it is written
      contentFile: ./doc/use.md
`,
		"hello.dockerfile": "ARG RELEASE\nFROM kitbox.local/base:1\nARG RELEASE\nENV TOOL=$RELEASE PATH=/opt/tool:/bin:/usr/bin:/opt/tool\nLABEL tool=1\nUSER agent\nEXPOSE 80\nENTRYPOINT [\"/tool\"]\n",
		"doc/use.md":       "use it\n",
	}), Args: map[string]string{"release": "2.0"}})
	img := b.image(res)
	want := ocispec.ImageConfig{Env: []string{"PATH=/opt/tool", "TOOL=2.0"}, Labels: map[string]string{"tool": "1"}, Entrypoint: []string{"/tool"}, ExposedPorts: map[string]struct{}{"80/tcp": {}}}
	got := img.Config.Config
	slices.Sort(got.Env)
	if !slices.Equal(got.Env, want.Env) || !maps.Equal(got.Labels, want.Labels) || !slices.Equal(got.Entrypoint, want.Entrypoint) || !maps.Equal(got.ExposedPorts, want.ExposedPorts) || got.User != "" || got.WorkingDir != "" || got.Cmd != nil {
		t.Errorf("config = %+v, want %+v", got, want)
	}
	a := img.Annotations
	if a[ocispec.AnnotationVersion] != "2.0" || a[annotation.Capabilities] != "com.docker.sandbox/agent-context@1" {
		t.Errorf("annotations = %v", a)
	}
	const staged = "/usr/share/sandbox/kit/hello/use.md"
	if !strings.Contains(a[annotation.Descriptor], `"contentFile":"`+staged+`"`) {
		t.Errorf("descriptor = %s, want contentFile %s", a[annotation.Descriptor], staged)
	}
	if got := b.file(img, staged); got != "use it\n" {
		t.Errorf("%s = %q", staged, got)
	}
	if y := b.file(img, "/usr/share/sandbox/kit/hello/kit.yaml"); !strings.Contains(y, "# where it is written") || !strings.Contains(y, staged) {
		t.Errorf("staged descriptor:\n%s", y)
	}
}

// TestWhatIsBuiltPassesTheArtifactSuite lets the judge, which shares no code with
// the builder, look at what the builder makes.
func TestWhatIsBuiltPassesTheArtifactSuite(t *testing.T) {
	b := newBench(t)
	for tag, files := range map[string]map[string]string{
		"kitbox.local/w:1": {"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"},
		"kitbox.local/m:1": {
			"hello.yaml":       "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/agent-context@1\n    config: {contentFile: use.md}\n",
			"hello.dockerfile": "FROM kitbox.local/base:1 AS make\nUSER root\nRUN mkdir -p /out/home/agent && chown 1000:1000 /out/home/agent && echo x >/out/home/agent/.x\nFROM scratch\nCOPY --from=make /out/ /\n",
			"use.md":           "use it\n",
		},
		"kitbox.local/d:1": {"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\n"},
	} {
		b.mustBuild(builder.Request{Context: b.kit(files), Tag: tag})
		var out bytes.Buffer
		if code := artifact.Validate(t.Context(), []string{tag, "--layout", b.images().Dir()}, &out, &out); code != 0 || !strings.Contains(out.String(), " 0 failed, 0 warnings") {
			t.Errorf("%s: %d\n%s", tag, code, &out)
		}
	}
}

func TestWhatTheSuiteWarnsOfNamesTheLine(t *testing.T) {
	b := newBench(t)
	res := b.mustBuild(builder.Request{Context: b.kit(map[string]string{
		"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/privileged@1\n    description: to mount\n  - type: com.docker.sandbox/acp@1\n    config: {agent: a, command: a}\n"})})
	if len(res.Warnings) != 1 || res.Warnings[0].File != "hello.yaml" || res.Warnings[0].Line != 7 || !strings.Contains(res.Warnings[0].Message, "acp@1/optional-for-compatibility") {
		t.Errorf("warnings: %+v", res.Warnings)
	}
}

func TestARuleThatNoBoundaryCanApplyIsWarnedAbout(t *testing.T) {
	b := newBench(t)
	res := b.mustBuild(builder.Request{Context: b.kit(map[string]string{
		"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/network-policy@1\n    config:\n      runtime:\n        allow:\n          - good.example\n          - api..example.com\n"})})
	if len(res.Warnings) != 1 || res.Warnings[0].File != "hello.yaml" || res.Warnings[0].Line != 10 || !strings.Contains(res.Warnings[0].Message, "does not start") {
		t.Errorf("warnings: %+v", res.Warnings)
	}
}

func TestMixinsWithLinksToNowhereAreWarnedAbout(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\n",
		"hello.dockerfile": "FROM kitbox.local/base:1 AS make\nUSER root\nRUN mkdir -p /out/opt && touch /out/opt/there && cd /out/opt && /bin/busybox ln -s gone bad && /bin/busybox ln -s there good && /bin/busybox ln -s /bin/sh base\nFROM scratch\nCOPY --from=make /out/ /\n"})
	told := fmt.Sprint(b.mustBuild(builder.Request{Context: dir}).Warnings)
	if !strings.Contains(told, `/opt/bad: leads to "gone"`) || strings.Contains(told, "/opt/good") || strings.Contains(told, "/opt/base") {
		t.Errorf("told: %s", told)
	}
}

func TestFailuresNameTheThingAndTheNextStep(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		files map[string]string
		r     builder.Request
		file  string
		line  int
		has   []string // in the one line
		not   []string
		err   error // family; nil: none of them
	}{
		"a step fails": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN echo about to fail && false\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 3, has: []string{"RUN echo about to fail && false", "exit code: 1", "about to fail"}, not: []string{"-network"},
		},
		"an inline step fails": {
			files: map[string]string{"hello.yaml": workload + "build: |\n  FROM kitbox.local/base:1\n  USER root\n  RUN false\n  CMD [\"sh\"]\n"},
			file:  "hello.yaml", line: 9, has: []string{"RUN false"},
		},
		"a step wants the network": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN wget http://kitbox.example/x\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 3, has: []string{"wget", "--build-network public"},
		},
		"a step wants to be root": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER agent\nRUN mkdir /x\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 3, has: []string{"mkdir /x", "it runs as the user agent: write USER root before it, and USER agent after it"},
		},
		"a step is root": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER 0:0\nRUN echo x: Permission denied && false\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 3, has: []string{"Permission denied"}, not: []string{"USER"},
		},
		"a recipe takes the network": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN --network=host true\nCMD [\"sh\"]\n"},
			has:   []string{"host's network", "--build-network host"}, err: kiterr.ErrRefused,
		},
		"a frontend of the recipe's own": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "# syntax=127.0.0.1:1/other:1\nFROM kitbox.local/base:1\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 1, has: []string{"syntax line"}, err: kiterr.ErrRefused,
		},
		"recipe syntax": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nRUNN true\n"},
			file:  "hello.dockerfile", line: 2, has: []string{"RUNN"},
		},
		"no base": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:9\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 1, has: []string{"kitbox.local/base:9", "kitbox base create"}, err: kiterr.ErrNotFound,
		},
		"no registry": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM 127.0.0.1:1/nothing:1\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 1, has: []string{"127.0.0.1:1/nothing:1", "connection refused", "kitbox base create"}, err: kiterr.ErrNotFound,
		},
		"a file that is not there": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nCOPY nothere /x\nCMD [\"sh\"]\n"},
			file:  "hello.dockerfile", line: 2, has: []string{"there is no /nothere where this copies from", ".dockerignore"}, not: []string{"checksum", "cache key"},
		},
		"unknown key": {
			files: map[string]string{"hello.yaml": workload + "entrypoint: [sh]\n", "hello.dockerfile": recipe},
			file:  "hello.yaml", line: 6, has: []string{"entrypoint"}, err: kiterr.ErrRefused,
		},
		"a workload without a recipe": {
			files: map[string]string{"hello.yaml": workload},
			file:  "hello.yaml", line: 3, has: []string{"hello.dockerfile"}, err: kiterr.ErrRefused,
		},
		"a named recipe that is not there": {
			files: map[string]string{"hello.yaml": workload + "dockerfile: other\n"},
			file:  "hello.yaml", line: 6, has: []string{"other"}, err: kiterr.ErrRefused,
		},
		"nothing to launch": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\n"},
			file:  "hello.yaml", line: 3, has: []string{"ENTRYPOINT", "CMD"}, err: kiterr.ErrRefused,
		},
		"undeclared arg": {
			files: map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe}, r: builder.Request{Args: map[string]string{"nope": "1"}},
			file: "hello.yaml", has: []string{"nope"}, err: kiterr.ErrRefused,
		},
		"a content file that is not there": {
			files: map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/agent-context@1\n    config: {contentFile: ./nope.md}\n"},
			file:  "hello.yaml", has: []string{"nope.md"}, err: kiterr.ErrRefused,
		},
		"a content file of a reserved name": {
			files: map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/agent-context@1\n    config: {contentFile: ./doc/kit.yaml}\n", "doc/kit.yaml": "x"},
			file:  "hello.yaml", line: 4, has: []string{"capabilities[0].config.contentFile", "kit.yaml"}, err: kiterr.ErrRefused,
		},
		"a mixin that takes the agent's home": {
			files: map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\n", "hello.dockerfile": "FROM scratch\nCOPY x /home/agent/x\n", "x": ""},
			file:  "hello.yaml", line: 2, has: []string{"/home/agent", "user 0", "overlay-home-ownership"}, err: kiterr.ErrRefused,
		},
		"a mixin that takes all homes": {
			files: map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\n", "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN chown 1000 /home\n"},
			file:  "hello.yaml", line: 2, has: []string{"/home belong to user 1000"}, err: kiterr.ErrRefused,
		},
		"a user nobody knows": { // this and the next are the artifact suite's
			files: map[string]string{"hello.yaml": workload + "capabilities:\n  - type: com.docker.sandbox/sbx@1\n", "hello.dockerfile": "FROM kitbox.local/base:1\nUSER ghost\nENV BASH_ENV=/etc/passwd\nCMD [\"sh\"]\n"},
			file:  "hello.yaml", line: 3, has: []string{"ghost", "sbx@1/user-resolves-in-passwd", "kit-tck validate"}, err: kiterr.ErrRefused,
		},
		"a skill without content": {
			files: map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"a@1\"]\ncapabilities:\n  - type: com.docker.sandbox/agent-skill@1\n    config: {path: /opt/s}\n", "hello.dockerfile": "FROM scratch\nCOPY x /opt/s/x\n", "x": ""},
			file:  "hello.yaml", has: []string{"/opt/s/SKILL.md", "agent-skill@1/content-present"}, err: kiterr.ErrRefused,
		},
		"a descriptor of 600 KiB": {
			files: map[string]string{"hello.yaml": workload + "description: " + strings.Repeat("x", 600<<10) + "\n", "hello.dockerfile": recipe},
			file:  "hello.yaml", has: []string{"the descriptor has 6", "more than 524288 are refused", "move large texts into the content"}, not: []string{"xxx"}, err: kiterr.ErrRefused,
		},
		"a descriptor of 600 KiB in a recipe's head": {
			files: map[string]string{"Dockerfile": "# syntax=docker/sandbox-kit:3\n# kit:\n#   schemaVersion: \"3\"\n#   kind: workload\n#   provides: [\"c@1.0\"]\n#   description: " + strings.Repeat("x", 600<<10) + "\n\nFROM kitbox.local/base:1\nCMD [\"sh\"]\n"},
			file:  "Dockerfile", has: []string{"the descriptor has 6", "more than 524288 are refused"}, not: []string{"xxx"}, err: kiterr.ErrRefused,
		},
		"a descriptor of 3 MiB": {
			files: map[string]string{"hello.yaml": workload + "description: " + strings.Repeat("x", 3<<20) + "\n", "hello.dockerfile": recipe}, r: builder.Request{Descriptor: "hello.yaml"},
			file: "hello.yaml", has: []string{"the descriptor has 3", "more than 524288 are refused"}, not: []string{"xxx"}, err: kiterr.ErrRefused,
		},
		"a descriptor of 3 MiB to be found": {
			files: map[string]string{"hello.yaml": workload + "description: " + strings.Repeat("x", 3<<20) + "\n", "hello.dockerfile": recipe},
			has:   []string{"hello.yaml", "524288"}, not: []string{"xxx"}, err: kiterr.ErrRefused,
		},
		"no descriptor": {files: map[string]string{"readme": ""}, has: []string{"schemaVersion"}, err: kiterr.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t, b.home}
			c.r.Context = b.kit(c.files)
			_, err := b.build(c.r)
			if err == nil {
				t.Fatal("the build went well")
			}
			f := builder.AsFailure(err)
			if f.File != c.file || c.line > 0 && f.Line != c.line {
				t.Errorf("place = %s:%d, want %s:%d (%v)", f.File, f.Line, c.file, c.line, err)
			}
			for _, want := range c.has {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error = %q, lacks %q", err, want)
				}
			}
			for _, no := range append(c.not, "\n", "failed to solve", "rpc error") {
				if strings.Contains(err.Error(), no) {
					t.Errorf("error = %q, must not hold %q", err, no)
				}
			}
			for _, family := range []error{kiterr.ErrRefused, kiterr.ErrNotFound} {
				if got := errors.Is(err, family); got != (family == c.err) {
					t.Errorf("errors.Is(%q, %v) = %v", err, family, got)
				}
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(b.home, "images", "ingest", "*")); len(left) > 0 {
		t.Errorf("left in the store: %q", left)
	}
}

func serveCanary(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, "canary\n")
		c.Close()
	}
}

func TestStepsReachTheHostOnlyWithConsent(t *testing.T) {
	b := newBench(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveCanary(l)
	port := l.Addr().(*net.TCPAddr).Port
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": fmt.Sprintf("FROM kitbox.local/base:1\nUSER root\nRUN nc -w 2 127.0.0.1 %d </dev/null >/got || true\nCMD [\"sh\"]\n", port)})
	for network, want := range map[string]string{builder.NetworkNone: "", builder.NetworkPublic: "", builder.NetworkHost: "canary\n"} {
		res := b.mustBuild(builder.Request{Context: dir, Network: network})
		if got := b.file(b.image(res), "/got"); got != want {
			t.Errorf("network %s: a step read %q from the host's loopback, want %q", network, got, want)
		}
		if res.Network != network {
			t.Errorf("result says network %s, want %s", res.Network, network)
		}
	}
	// The boundary is there, and does not lead home by another address either.
	var own []string
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			own = append(own, ip.String())
		}
	}
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	go serveCanary(all)
	steps := "FROM kitbox.local/base:1\nUSER root\nRUN cat /etc/resolv.conf >/resolv\n"
	for _, a := range append(own, "198.18.0.1", "localhost") {
		steps += fmt.Sprintf("RUN nc -w 2 %s %d </dev/null >>/reached || true\n", a, all.Addr().(*net.TCPAddr).Port)
	}
	res := b.mustBuild(builder.Request{Network: builder.NetworkPublic, Context: b.kit(map[string]string{
		"hello.yaml": workload, "hello.dockerfile": steps + "RUN touch /reached\nCMD [\"sh\"]\n"})})
	img := b.image(res)
	if got := b.file(img, "/reached"); got != "" {
		t.Errorf("the public network reaches this machine at one of %q", own)
	}
	if got := b.file(img, "/resolv"); got != control.ResolvConf() {
		t.Errorf("resolv.conf = %q, want the boundary's", got)
	}
}

func TestWithASourceDateBytesDoNotDependOnTheClockOrTheCache(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"})
	decl := b.kit(map[string]string{"hello.yaml": declaration})
	epoch := int64(1700000000)
	first := b.mustBuild(builder.Request{Context: dir, SourceDateEpoch: &epoch})
	firstDecl := b.mustBuild(builder.Request{Context: decl})
	if got := b.image(first).Annotations[ocispec.AnnotationCreated]; got != "2023-11-14T22:13:20Z" {
		t.Errorf("created = %q", got)
	}
	if freed, err := builder.Prune(context.Background(), b.dir()); err != nil || freed == 0 {
		t.Fatalf("Prune = %d, %v; want the cache gone", freed, err)
	}
	// The clock has to differ for this to prove anything.
	for start := time.Now().Unix(); time.Now().Unix() == start; {
		time.Sleep(10 * time.Millisecond)
	}
	second := b.mustBuild(builder.Request{Context: dir, SourceDateEpoch: &epoch})
	if second.Cached {
		t.Error("the second build was cached: it proves nothing")
	}
	if first.Digest != second.Digest {
		t.Errorf("digests differ: %s and %s", first.Digest, second.Digest)
	}
	if d := b.mustBuild(builder.Request{Context: decl}); d.Digest != firstDecl.Digest {
		t.Errorf("a declaration-only Kit without a source date: %s and %s", firstDecl.Digest, d.Digest)
	}
}

// TestARequestIsOfTheTimeThatItsEnvironmentStates builds as kitbox has Kits built.
func TestARequestIsOfTheTimeThatItsEnvironmentStates(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{"hello.yaml": declaration})
	epoch := int64(1700000000)
	want := b.mustBuild(builder.Request{Context: dir, SourceDateEpoch: &epoch})
	request, err := json.Marshal(builder.Request{Home: b.home, Context: dir})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "build", "--request", "-", "--progress", "quiet")
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	cmd.Stdin = bytes.NewReader(request)
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), want.Digest.String()) {
		t.Errorf("%s, %v; want %s", out, err, want.Digest)
	}
}

func TestTwoProgramsBuildAtOnce(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	type outcome struct {
		doc  []byte
		errs string
		err  error
	}
	out := make([]outcome, 3)
	for i := range out {
		dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": fmt.Sprintf("FROM kitbox.local/base:1\nUSER root\nRUN echo %d >/n\nCMD [\"sh\"]\n", i%2)})
		wg.Go(func() {
			var errs bytes.Buffer
			cmd := exec.Command(os.Args[0], "build", "--home", b.home, "--progress", "plain", "--tag", fmt.Sprintf("kitbox.local/n:%d", i), dir)
			cmd.Stderr = &errs
			out[i].doc, out[i].err = cmd.Output()
			out[i].errs = errs.String()
		})
	}
	wg.Wait()
	for i, o := range out {
		var doc struct{ Result builder.Result }
		if err := json.Unmarshal(o.doc, &doc); o.err != nil || err != nil {
			t.Fatalf("build %d: %v, %v\n%s\n%s", i, o.err, err, o.doc, o.errs)
		}
		if got := b.file(b.image(&doc.Result), "/n"); got != fmt.Sprintln(i%2) {
			t.Errorf("build %d has /n = %q", i, got)
		}
	}
	tags, err := b.images().Tags()
	if err != nil || len(tags) != 4 {
		t.Errorf("tags = %v, %v; want the base and three", tags, err)
	}
}

// blocking is a Kit whose build has a step that does not end. Running returns
// when that step runs; the test fails if it still does at the end.
func (b *bench) blocking() (dir string, running func()) {
	seconds := fmt.Sprint(100_000_000 + time.Now().UnixNano()%100_000_000)
	marker := "sleep\x00" + seconds
	dir = b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN sleep " + seconds + "\nCMD [\"sh\"]\n"})
	return dir, func() {
		b.Helper()
		b.eventually("the step runs", func() bool { return len(processes(marker)) > 0 })
		b.Cleanup(func() { b.eventually("the step is gone", func() bool { return len(processes(marker)) == 0 }) })
	}
}

// processes returns those with text in their command line.
func processes(text string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

func (b *bench) eventually(what string, f func() bool) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(deadline) {
			b.Fatalf("not in 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (b *bench) status() builder.Status {
	b.Helper()
	s, err := builder.ReadStatus(context.Background(), b.dir())
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func TestAKilledBuilderLeavesNothingAndTheNextOneWorks(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	b := newBench(t)
	before := leftovers()
	ok := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"})
	kept := b.mustBuild(builder.Request{Context: ok})
	dir, running := b.blocking()
	failed := make(chan error, 1)
	go func() {
		_, err := b.build(builder.Request{Context: dir})
		failed <- err
	}()
	running()
	pid := b.status().PID
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), b.home) {
		t.Error("the builder's mounts are in the host's mount namespace")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "builder.log") {
			t.Errorf("error = %v, want one that says the builder ended and names its log", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the build still waits for its builder")
	}
	b.eventually("no process of the builder", func() bool { return len(processes(b.home)) == 0 })
	if again := b.mustBuild(builder.Request{Context: ok}); !again.Cached || again.Digest != kept.Digest {
		t.Errorf("of what was built before the kill: cached %v, %s instead of %s", again.Cached, again.Digest, kept.Digest)
	}
	b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": strings.Replace(recipe, "echo hello", "echo new", 1), "note.txt": "note\n"})})
	for _, dir := range []string{temp, filepath.Join(b.dir(), "buildkit", "tmp")} {
		if left, err := filepath.Glob(filepath.Join(dir, "buildkit-mount*")); err != nil || len(left) > 0 {
			t.Errorf("temporary files of the killed builder: %q, %v", left, err)
		}
	}
	if b.status().PID == pid {
		t.Error("the builder that was killed answers")
	}
	if err := builder.Stop(context.Background(), b.dir()); err != nil {
		t.Fatal(err)
	}
	if after := leftovers(); len(after) > len(before) {
		t.Errorf("left behind: %q, there were %q", after, before)
	}
}

// leftovers lists what steps of killed builders could leave on this machine.
func leftovers() []string {
	runc, _ := filepath.Glob("/run/runc/*")
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/kitbox-builder-*")
	v2, _ := filepath.Glob("/sys/fs/cgroup/kitbox-builder-*")
	return slices.Concat(runc, v1, v2)
}

func TestAnInterruptStopsTheBuildAtOnce(t *testing.T) {
	b := newBench(t)
	dir, running := b.blocking()
	cmd := exec.Command(os.Args[0], "build", "--home", b.home, "--progress", "quiet", dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running()
	start := time.Now()
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("it took %v to stop", d)
	}
	if got := cmd.ProcessState.ExitCode(); got != 130 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit status %d, %q; want 130", got, &errs)
	}
	if !b.status().Running {
		t.Error("the builder went with the build")
	}
}

func TestTheBuilderEndsWhenIdleAndNotBefore(t *testing.T) {
	b := newBench(t)
	dir, running := b.blocking()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	const idle = 300 * time.Millisecond
	go func() {
		defer close(done)
		_, err := builder.Build(ctx, builder.Request{Home: b.home, Context: dir, IdleSeconds: idle.Seconds()}, builder.Progress{})
		t.Log("the build ended with", err)
	}()
	running()
	time.Sleep(2 * idle) // the promise is that nothing happens in this time
	if len(processes(b.home)) == 0 {
		t.Fatal("the builder ended under a running build")
	}
	cancel()
	<-done
	b.eventually("the builder ends", func() bool { return len(processes(b.home)) == 0 })
	if b.status().Running {
		t.Error("status says it runs")
	}
	if _, err := os.Stat(filepath.Join(b.dir(), "builder.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestTheSocketIsItsOwnersAlone(t *testing.T) {
	b := newBench(t)
	b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration})})
	for name, want := range map[string]os.FileMode{"": 0o700, "builder.sock": 0o600, "builder.log": 0o600} {
		fi, err := os.Stat(filepath.Join(b.dir(), name))
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%q: mode %v, %v; want %v", name, fi.Mode().Perm(), err, want)
		}
	}
}

const declaration = "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"d@1.0\"]\n"

func TestAProgramBuildsByRequest(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		text   string
		status int
		want   string
	}{
		"built":   {declaration, kiterr.StatusOK, `{"result":{"digest":"sha256:`},
		"refused": {declaration + "name: d\n", kiterr.StatusRefused, `{"error":{"file":"hello.yaml","line":4,"message":`},
	} {
		request, err := json.Marshal(map[string]any{"home": b.home, "context": b.kit(map[string]string{"hello.yaml": c.text}), "idleSeconds": 30})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "build", "--request", "-", "--progress", "quiet")
		cmd.Stdin = bytes.NewReader(request)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, _ := cmd.Output()
		if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.HasPrefix(string(out), c.want) || bytes.Count(out, []byte("\n")) != 1 || errs.Len() > 0 {
			t.Errorf("%s: exit status %d, stdout %q, stderr %q; want %d and one document %s…", name, got, out, &errs, c.status, c.want)
		}
	}
	if got := b.status().Idle; got != "30s" {
		t.Errorf("the builder stays idle for %s, want what the request says", got)
	}
}

func TestABuilderOfAnotherVersionIsReplacedUnlessBusy(t *testing.T) {
	b := newBench(t)
	other := filepath.Join(t.TempDir(), "kit-builder")
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, data, 0o755); err != nil {
		t.Fatal(err)
	}
	blocked, running := b.blocking()
	cmd := exec.Command(other, "build", "--home", b.home, "--progress", "quiet", blocked)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running()
	old := b.status().PID
	dir := b.kit(map[string]string{"hello.yaml": declaration})
	b.mustBuild(builder.Request{Context: dir})
	if got := b.status().PID; got != old {
		t.Error("a busy builder was replaced")
	}
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	b.mustBuild(builder.Request{Context: dir})
	if got := b.status().PID; got == old {
		t.Error("the other version's builder still serves")
	}
}

func TestAFullDiskIsNamedAndLeavesNoHalfImage(t *testing.T) {
	b := newBench(t)
	const head = "FROM kitbox.local/base:1\nUSER root\n"
	for name, dir := range map[string]string{
		"in a step":       b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": head + "RUN cat /dev/zero >/big\nCMD [\"sh\"]\n"}),
		"reading the Kit": b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": head + "COPY big /\nCMD [\"sh\"]\n", "big": strings.Repeat("0123456789abcdef", 4<<20)}),
	} {
		t.Run(name, func(t *testing.T) { (&bench{t, b.home}).fillDisk(dir) })
	}
}

// fillDisk builds dir on a file system that is too small for it.
func (b *bench) fillDisk(dir string) {
	b.Helper()
	t := b.T
	// The file system is mounted where only these commands and the builder
	// that they start see it.
	const script = `mount -t tmpfs -o size=40m tmpfs "$1" && mkdir "$1/home" && cp -a "$2/images" "$1/home/" || exit 99
"$0" build --home "$1/home" --progress quiet "$3"; status=$?
ls "$1/home/images/ingest" >&2
"$0" stop --home "$1/home"
exit $status`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, os.Args[0], t.TempDir(), b.home, dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, _ := cmd.Output()
	if got := cmd.ProcessState.ExitCode(); got != kiterr.StatusFailed || !strings.Contains(errs.String(), "the disk is full") || strings.Contains(errs.String(), "build-") {
		t.Errorf("exit status %d\n%s\n%s", got, out, &errs)
	}
}

func TestAnotherBuildKitIsOnlyAnAddress(t *testing.T) {
	b := newBench(t)
	b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration})})
	dir, err := os.Open(b.dir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	short := filepath.Join("/proc/self/fd", fmt.Sprint(dir.Fd()), "builder.sock")
	elsewhere := filepath.Join(t.TempDir(), "images")
	res := b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration}), Builder: "unix://" + short, Layout: elsewhere})
	if _, err := os.Stat(filepath.Join(elsewhere, "blobs", "sha256", res.Digest.Encoded())); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", short)
			if err != nil {
				c.Close()
				return
			}
			go func() { io.Copy(to, c); to.Close() }()
			go func() { io.Copy(c, to); c.Close() }()
		}
	}()
	if again := b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration}), Builder: "tcp://" + l.Addr().String(), Layout: elsewhere}); again.Digest != res.Digest {
		t.Errorf("over TCP: %s, over a socket: %s", again.Digest, res.Digest)
	}
	if _, err := b.build(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration}), Builder: "unix:///nowhere.sock"}); err == nil || !strings.Contains(err.Error(), "unix:///nowhere.sock") {
		t.Errorf("error = %v, want one that names the address", err)
	}
}

// TestAnOrdinaryUserBuildsInAUserNamespace runs everything as root of a user
// namespace whose ids are an ordinary user's, as kitbox does for one.
func TestAnOrdinaryUserBuildsInAUserNamespace(t *testing.T) {
	b := newBench(t)
	const first, count = 200000, 65536
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN mkdir /mine && chown 1000:1000 /mine && id -u >/uid && cat /etc/resolv.conf >/resolv\nCMD [\"sh\"]\n"})
	program := filepath.Join(filepath.Dir(b.home), "kit-builder") // the test's own is in a directory for root
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(b.home)), 0o755); err != nil { // of all of the test's directories
		t.Fatal(err)
	}
	err = filepath.WalkDir(b.home, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, first, first))
	})
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "HOME="+b.home)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: count}}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			GidMappingsEnableSetgroups: true,
			Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, &errs)
		}
		return string(out), err
	}
	out, err := run("build", "--home", b.home, "--progress", "plain", "--network", "public", dir)
	if err != nil {
		t.Fatal(err, out)
	}
	var doc struct{ Result builder.Result }
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if got := b.file(b.image(&doc.Result), "/uid"); got != "0\n" {
		t.Errorf("steps run as uid %q", got)
	}
	if got := b.file(b.image(&doc.Result), "/resolv"); got != control.ResolvConf() {
		t.Errorf("resolv.conf = %q, want the boundary's", got)
	}
	if s := b.status(); s.Snapshots != "overlayfs" {
		t.Errorf("the builder copies layers (%s)", s.Snapshots)
	}
}

// TestABuilderKilledAtAnyMomentUnderLoadLeavesNothing kills it with -9 while several
// programs build, each time a little later, and then expects a cache that works.
func TestABuilderKilledAtAnyMomentUnderLoadLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	b := newBench(t)
	before := leftovers()
	const programs = 3
	for round := range 6 {
		done := make(chan error, programs)
		for p := range programs {
			dir := b.kit(map[string]string{"hello.yaml": workload, "note.txt": "note\n",
				"hello.dockerfile": strings.Replace(recipe, "echo hello", fmt.Sprintf("sleep 0.%d && echo %d.%d", p, round, p), 1)})
			go func() {
				_, err := b.build(builder.Request{Context: dir, Tag: fmt.Sprintf("kitbox.local/k%d-%d:1", round, p)})
				done <- err
			}()
		}
		b.eventually("a builder", func() bool { return b.status().Running })
		time.Sleep(time.Duration(round) * 120 * time.Millisecond) // where in the builds it falls is the point
		if s := b.status(); s.PID > 0 {
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		for range programs {
			select {
			case err := <-done:
				// One that came to connect afterwards has started another.
				if err != nil && !strings.Contains(err.Error(), "build again") && !strings.Contains(err.Error(), "builder") {
					t.Errorf("round %d: %v", round, err)
				}
			case <-time.After(time.Minute):
				t.Fatal("a build still waits for its builder")
			}
		}
		// What has a name is whole.
		tags, err := b.images().Tags()
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			img, err := b.images().Image(t.Context(), tag.Descriptor, layout.HostPlatform())
			if err != nil {
				t.Fatalf("%s: %v", tag.Name, err)
			}
			for _, l := range img.Layers() {
				if ok, err := b.images().Exists(t.Context(), l.Blob); err != nil || !ok {
					t.Errorf("%s lacks %s: %v", tag.Name, l.Blob.Digest, err)
				}
			}
		}
	}
	first := b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"})})
	if got := b.file(b.image(first), "/hello.txt"); got != "hello\n" {
		t.Errorf("afterwards: %q", got)
	}
	if err := builder.Stop(context.Background(), b.dir()); err != nil {
		t.Fatal(err)
	}
	b.eventually("no process of the builder", func() bool { return len(processes(b.home)) == 0 })
	if after := leftovers(); len(after) > len(before) {
		t.Errorf("left behind: %q, there were %q", after, before)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "buildkit-mount*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files: %q, %v", left, err)
	}
}
