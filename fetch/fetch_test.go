package fetch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// TestMain lets the test binary stand in for kit-builder: a program that makes
// an image of the files it is given, slowly if they say so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "build" {
		os.Exit(fakeBuilder())
	}
	if len(os.Args) > 1 && os.Args[1] == "transfer" {
		os.Exit(transfer(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func fakeBuilder() int {
	var req struct {
		Home, Context, Descriptor, Platform, Network, Builder string
		Args                                                  map[string]string
		NoCache                                               bool
	}
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	log, err := os.OpenFile(filepath.Join(req.Home, "builds.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(log, "%s %s %v\n", req.Descriptor, req.Platform, req.Args)
	if asked, err := json.Marshal(req); err == nil {
		os.WriteFile(filepath.Join(req.Home, "request.json"), asked, 0o600)
	}
	recipe, _ := os.ReadFile(filepath.Join(req.Context, "hello.dockerfile"))
	switch {
	case strings.Contains(string(recipe), "REFUSE"):
		fmt.Println(`{"error":{"file":"hello.dockerfile","line":2,"message":"step \"REFUSE\" failed","next":"write another"}}`)
		return 2
	case strings.Contains(string(recipe), "BREAK"):
		fmt.Println(`{"error":{"message":"the disk is full","next":"free some space"}}`)
		return 1
	case strings.Contains(string(recipe), "MUMBLE"):
		fmt.Println(`not json`)
		return 0
	case strings.Contains(string(recipe), "EDIT"):
		os.WriteFile(filepath.Join(req.Context, "extra"), []byte(time.Now().String()), 0o644)
	case strings.Contains(string(recipe), "HANG"):
		fmt.Fprintln(os.Stderr, "hanging")
		select {}
	}
	s, err := layout.Open(filepath.Join(req.Home, "images"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	d, err := image(s, string(recipe)+fmt.Sprint(req.Args), map[string]string{fetch.Annotation: `{"schemaVersion":"3"}`}, layout.HostPlatform())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"result": map[string]any{"digest": d.Digest, "mediaType": d.MediaType, "size": d.Size, "unknownToUs": true,
		"warnings": []map[string]any{{"message": "it is old", "file": "hello.yaml", "line": 3}, {"message": "it is odd"}}}})
	return 0
}

// image stores an image whose only layer holds text.
func image(s *layout.Store, text string, annotations map[string]string, p ocispec.Platform) (ocispec.Descriptor, error) {
	ctx := context.Background()
	l, err := s.PushBytes(ctx, ocispec.MediaTypeImageLayer, []byte(text))
	if err != nil {
		return l, err
	}
	c, err := s.PushJSON(ctx, ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.Digest}}})
	if err != nil {
		return c, err
	}
	m, err := s.PushJSON(ctx, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: []ocispec.Descriptor{l}, Annotations: annotations,
	})
	m.Platform = &p
	return m, err
}

func kitImage(t *testing.T, s *layout.Store, text string) ocispec.Descriptor {
	t.Helper()
	d, err := image(s, text, map[string]string{fetch.Annotation: text}, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

type fixture struct {
	*fetch.Fetcher
	t      *testing.T
	dir    string // of the Kit hello
	images *layout.Store
}

// builder is a program that becomes the stand-in. A Kit's key depends on the
// builder's bytes, and the test binary has many.
func builder(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "kit-builder")
	if err := os.WriteFile(p, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' \"$@\"\n", exe), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	descriptor = "schemaVersion: \"3\"\nkind: workload\nargs:\n  base: {default: kitbox.local/base:1, buildArg: KIT_BASE}\n  greeting: {default: x, env: GREETING}\n"
	recipe     = "ARG KIT_BASE=kitbox.local/base:1\nFROM ${KIT_BASE}\nCOPY . /\n"
)

// contentFiles are beside the recipe, and builders read them past its ignore file.
const contentFiles = `capabilities:
  - type: com.docker.sandbox/agent-context@1
    config: {contentFile: docs/guide.md}
  - group:
      capabilities:
        - type: com.docker.sandbox/agent-context@1
          config: {directory: /home/agent/.x, filename: X.md, contentFile: docs/way/link.md}
`

func setup(t *testing.T) *fixture {
	t.Helper()
	home := t.TempDir()
	f := &fixture{Fetcher: &fetch.Fetcher{Home: home, Builder: builder(t)}, t: t, dir: filepath.Join(t.TempDir(), "hello")}
	var err error
	if f.images, err = layout.Open(filepath.Join(home, "images")); err != nil {
		t.Fatal(err)
	}
	f.write("hello.yaml", descriptor)
	f.write("hello.dockerfile", recipe)
	f.write("data/file", "content")
	f.age()
	return f
}

func (f *fixture) write(name, text string) {
	f.t.Helper()
	p := filepath.Join(f.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

// age makes modification times old, as those of a checkout are. Change times
// cannot be, so a second fetch still reads the files again.
func (f *fixture) age() {
	then := time.Now().Add(-time.Hour)
	filepath.WalkDir(f.dir, func(p string, _ os.DirEntry, err error) error { return os.Chtimes(p, then, then) })
}

// forget takes a blob out of the store and returns where it was.
func (f *fixture) forget(blob digest.Digest) (path string) {
	f.t.Helper()
	path, err := f.images.BlobPath(blob)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *fixture) builds() int {
	data, _ := os.ReadFile(filepath.Join(f.Home, "builds.log"))
	return strings.Count(string(data), "\n")
}

func (f *fixture) get(args map[string]string) *fetch.Kit {
	f.t.Helper()
	kit, err := f.Fetch(f.t.Context(), f.dir, args)
	if err != nil {
		f.t.Fatal(err)
	}
	return kit
}

// TestAKitIsWhatItsNetworkAndBuilderMadeOfIt: steps that reached this machine's
// network may have made something that those without one would not.
func TestAKitIsWhatItsNetworkAndBuilderMadeOfIt(t *testing.T) {
	f := setup(t)
	for i, c := range []struct {
		network, address string
		again            bool // was built before
	}{
		{"host", "", false}, {"none", "", false}, {"", "", true}, {"host", "", true}, {"public", "", false},
		{"none", "unix:///other.sock", false}, {"", "tcp://other:1", false}, {"none", "unix:///other.sock", true}, {"none", "", true},
	} {
		f.BuildNetwork, f.Address = c.network, c.address
		before := f.builds()
		if kit := f.get(nil); kit.Built == c.again || f.builds()-before != map[bool]int{false: 1}[c.again] {
			t.Errorf("%d: %+v: built %v, by %d builds", i, c, kit.Built, f.builds()-before)
		}
	}
}

func TestADirectoryIsBuiltOnce(t *testing.T) {
	f := setup(t)
	first := f.get(nil)
	second := f.get(nil)
	if f.builds() != 1 || !first.Built || second.Built || first.Digest != second.Digest {
		t.Errorf("%d builds; %v then %v", f.builds(), first.Built, second.Built)
	}
	if second.Source != fetch.Directory || string(second.Descriptor) != `{"schemaVersion":"3"}` || len(second.Layers) != 1 || second.Ref != f.dir {
		t.Errorf("kit is %+v", second)
	}
	// By its file, by another way, and in another place it is the same Kit.
	if _, err := f.Fetch(t.Context(), filepath.Join(f.dir, "hello.yaml"), nil); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "l")
	os.Symlink(f.dir, link)
	if _, err := f.Fetch(t.Context(), link+"/", nil); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "elsewhere", "hello")
	if err := os.CopyFS(copied, os.DirFS(f.dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), copied, nil); err != nil {
		t.Fatal(err)
	}
	if f.builds() != 1 {
		t.Errorf("%d builds", f.builds())
	}
}

func TestWarningsOfABuildAreTold(t *testing.T) {
	f := setup(t)
	var told bytes.Buffer
	f.Progress = &told
	f.get(nil)
	if want := "warning: " + filepath.Join(f.dir, "hello.yaml") + ":3: it is old\nwarning: it is odd\n"; !strings.HasSuffix(told.String(), want) {
		t.Errorf("told %q, want %q at the end", told.String(), want)
	}
	told.Reset()
	f.NoCache, f.ProgressMode = true, "json"
	f.get(nil)
	if told.Len() > 0 {
		t.Errorf("among documents: %q", told.String())
	}
}

// TestAnUnchangedKitNeedsNoBuilder asks for one that can be found and not run.
func TestAnUnchangedKitNeedsNoBuilder(t *testing.T) {
	f := setup(t)
	f.Address = "tcp://127.0.0.1:1"
	first := f.get(nil)
	if err := os.Chmod(f.Builder, 0o644); err != nil {
		t.Fatal(err)
	}
	if again := f.get(nil); again.Built || again.Digest != first.Digest {
		t.Errorf("built %v, %s instead of %s", again.Built, again.Digest, first.Digest)
	}
	if err := os.Chmod(f.Builder, 0o755); err != nil {
		t.Fatal(err)
	}
	f.NoCache = true
	if again := f.get(nil); !again.Built || f.builds() != 2 {
		t.Errorf("without the cache: built %v, %d builds", again.Built, f.builds())
	}
	var asked struct {
		NoCache bool
		Builder string
	}
	data, err := os.ReadFile(filepath.Join(f.Home, "request.json"))
	if err == nil {
		err = json.Unmarshal(data, &asked)
	}
	if err != nil || !asked.NoCache || asked.Builder != f.Address {
		t.Errorf("the builder was asked for %s, %v", data, err)
	}
}

func TestEveryChangeOfTheSourcesRebuilds(t *testing.T) {
	f := setup(t)
	base := kitImage(t, f.images, "base one")
	if err := f.images.Tag(t.Context(), base, "kitbox.local/base:1"); err != nil {
		t.Fatal(err)
	}
	args := map[string]string{}
	p := filepath.Join(f.dir, "data", "file")
	for _, c := range []struct {
		what   string
		change func() error
		builds int
	}{
		{"the first time", func() error { return nil }, 1},
		{"nothing", func() error { return nil }, 0},
		{"modification times", func() error { now := time.Now(); return os.Chtimes(p, now, now) }, 0},
		{"same size, same modification time", func() error {
			st, err := os.Stat(p)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(p, []byte("CONTENT"), 0o644), os.Chtimes(p, st.ModTime(), st.ModTime()))
		}, 1},
		{"replaced by a rename", func() error {
			return errors.Join(os.WriteFile(p+".new", []byte("other!!"), 0o644), os.Rename(p+".new", p))
		}, 1},
		{"mode", func() error { return os.Chmod(p, 0o755) }, 1},
		{"a new file", func() error { f.write("data/more", ""); return nil }, 1},
		{"a renamed file", func() error { return os.Rename(filepath.Join(f.dir, "data/more"), filepath.Join(f.dir, "data/most")) }, 1},
		{"a deleted file", func() error { return os.Remove(filepath.Join(f.dir, "data/most")) }, 0}, // known from before
		{"a symlink", func() error { return os.Symlink("file", filepath.Join(f.dir, "data/l")) }, 1},
		{"its target", func() error {
			return errors.Join(os.Remove(filepath.Join(f.dir, "data/l")), os.Symlink("elif", filepath.Join(f.dir, "data/l")))
		}, 1},
		{"the recipe", func() error { f.write("hello.dockerfile", recipe+"# more\n"); return nil }, 1},
		{"the descriptor", func() error { f.write("hello.yaml", descriptor+"version: \"1\"\n"); return nil }, 1},
		{"a build arg", func() error { args["base"] = "kitbox.local/other:1"; return nil }, 1},
		{"a create arg", func() error { args["greeting"] = "hi"; return nil }, 0},
		{"an undeclared arg", func() error { args["nonsense"] = "hi"; return nil }, 0},
		{"the base image", func() error {
			return f.images.Tag(t.Context(), kitImage(t, f.images, "base two"), "kitbox.local/base:1")
		}, 1},
		{"the base an arg names", func() error { return f.images.Tag(t.Context(), base, "kitbox.local/other:1") }, 1},
		{"the builder", func() error {
			f.Builder = builder(t)
			text, err := os.ReadFile(f.Builder)
			return errors.Join(err, os.WriteFile(f.Builder, append(text, "# newer\n"...), 0o755))
		}, 1},
		{"an unrelated image", func() error { return f.images.Tag(t.Context(), base, "kitbox.local/unrelated:1") }, 0},
		{"an ignore file", func() error { f.write(".dockerignore", "*.log\ndata/*\n!data/file\n"); return nil }, 1},
		{"an ignored file", func() error { f.write("x.log", "noise"); f.write("data/ignored", "noise"); return nil }, 0},
		{"an excepted file", func() error { f.write("data/file", "seen"); return nil }, 1},
		{"an ignore file that hides all", func() error { f.write(".dockerignore", "*\n"); return nil }, 1},
		{"a file it hides", func() error { f.write("data/file", "unseen"); return nil }, 0},
		{"the recipe it hides", func() error { f.write("hello.dockerfile", recipe+"# again\n"); return nil }, 1},
		{"the descriptor it hides", func() error { f.write("hello.yaml", descriptor+"version: \"2\"\n"); return nil }, 1},
		{"an ignore file of the recipe's own", func() error { f.write("hello.dockerfile.dockerignore", "x.log\n"); return nil }, 1},
		{"a file only the other hid", func() error { f.write("data/file", "seen again"); return nil }, 1},
		{"a recipe elsewhere", func() error {
			f.write("build/Recipe", "FROM scratch\n")
			f.write("hello.yaml", descriptor+"dockerfile: build/Recipe\n")
			f.write("build/Recipe.dockerignore", "build\n")
			return nil
		}, 1},
		{"that recipe, ignored", func() error { f.write("build/Recipe", "FROM scratch\nRUN x\n"); return nil }, 1},
		{"a recipe elsewhere, in one line", func() error {
			f.write("other/Recipe", "FROM scratch\n")
			f.write("other/Recipe.dockerignore", "*\n")
			f.write("hello.dockerfile.dockerignore", "*\n")
			f.write("hello.yaml", "{\nschemaVersion: \"3\", kind: workload, dockerfile: other/Recipe}\n")
			return nil
		}, 1},
		{"that recipe, ignored, too", func() error { f.write("other/Recipe", "FROM scratch\nRUN x\n"); return nil }, 1},
		{"content files that are ignored", func() error {
			f.write("docs/guide.md", "one")
			f.write("docs/real/other.md", "one")
			f.write("hello.yaml", descriptor+contentFiles)
			return errors.Join(os.Symlink("/docs/real", filepath.Join(f.dir, "docs/way")), os.Symlink("other.md", filepath.Join(f.dir, "docs/real/link.md")))
		}, 1},
		{"one of them", func() error { f.write("docs/guide.md", "two"); return nil }, 1},
		{"one of a group, behind symlinks", func() error { f.write("docs/real/other.md", "two"); return nil }, 1},
		{"their neighbour", func() error { f.write("docs/real/none.md", "two"); return nil }, 0},
		{"a recipe behind a symlink", func() error {
			f.write("docs/recipe", recipe)
			p := filepath.Join(f.dir, "hello.dockerfile")
			return errors.Join(os.Remove(p), os.Symlink("docs/recipe", p))
		}, 1},
		{"what the symlink leads to", func() error { f.write("docs/recipe", recipe+"# more\n"); return nil }, 1},
		{"a recipe in the descriptor", func() error {
			f.write(".dockerignore", "docs\n")
			f.write("hello.yaml", descriptor+"build: |\n  FROM scratch\n  COPY . /\n")
			return nil
		}, 1},
		{"a file that only the ignore file of a recipe hid", func() error { f.write("data/file", "seen once more"); return nil }, 1},
	} {
		if err := c.change(); err != nil {
			t.Fatal(c.what, err)
		}
		before := f.builds()
		f.get(args)
		if n := f.builds() - before; n != c.builds {
			t.Errorf("%s: %d builds, want %d", c.what, n, c.builds)
		}
		if kit := f.get(args); kit.Built {
			t.Errorf("%s: built again at once", c.what)
		}
	}
}

// TestAContentFileOfASetCountsUnderItsExpandedName although the set's ignore file
// hides it.
func TestAContentFileOfASetCountsUnderItsExpandedName(t *testing.T) {
	f := setup(t)
	built := 0
	f.Sets = func(_ context.Context, _ *fetch.Fetcher, images *layout.Store, _ fetch.SetSource) (ocispec.Descriptor, error) {
		built++
		return kitImage(t, images, "set"), nil
	}
	f.write("hello.yaml", `schemaVersion: "3"
kind: set
kits: [{ref: registry.example/x:1}]
args: {which: {default: one, buildArg: WHICH}}
capabilities:
  - type: com.docker.sandbox/agent-context@1
    config: {contentFile: "docs/${{ kit.args.which }}.md"}
`)
	f.write(".dockerignore", "docs\n")
	f.write("docs/one.md", "text")
	f.write("docs/two.md", "text")
	for _, c := range []struct {
		file, text string
		args       map[string]string
		want       int
	}{
		{"docs/one.md", "text", nil, 1},
		{"docs/one.md", "other", nil, 1},
		{"docs/two.md", "other", nil, 0},
		{"docs/two.md", "other", map[string]string{"which": "two"}, 1},
		{"docs/two.md", "another", map[string]string{"which": "two"}, 1},
		{"docs/one.md", "another", map[string]string{"which": "two"}, 0},
	} {
		f.write(c.file, c.text)
		built = 0
		if f.get(c.args); built != c.want {
			t.Errorf("%s, now %q, with %v: assembled %d times, want %d", c.file, c.text, c.args, built, c.want)
		}
	}
}

func TestBuildArgsAreReported(t *testing.T) {
	f := setup(t)
	kit := f.get(map[string]string{"base": "kitbox.local/base:2", "greeting": "hi"})
	if len(kit.BuildArgs) != 1 || kit.BuildArgs[0] != "base" {
		t.Errorf("consumed %v", kit.BuildArgs)
	}
	log, _ := os.ReadFile(filepath.Join(f.Home, "builds.log"))
	if !strings.Contains(string(log), "map[base:kitbox.local/base:2]") {
		t.Errorf("the builder was given %s", log)
	}
}

func TestALostBlobRebuilds(t *testing.T) {
	f := setup(t)
	kit := f.get(nil)
	for _, d := range []digest.Digest{kit.Layers[0].Blob.Digest, kit.Manifest.Config.Digest, kit.Digest} {
		p, err := f.images.BlobPath(d)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(p)
		before := f.builds()
		if again := f.get(nil); f.builds() != before+1 || again.Digest != kit.Digest {
			t.Errorf("%d builds after losing %s", f.builds()-before, d)
		}
	}
}

func TestManyFetchersBuildOnce(t *testing.T) {
	f := setup(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			one := &fetch.Fetcher{Home: f.Home, Builder: f.Builder}
			if _, err := one.Fetch(t.Context(), f.dir, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if f.builds() != 1 {
		t.Errorf("%d builds", f.builds())
	}
}

func TestSourcesThatChangeWhileBuiltAreBuiltAgain(t *testing.T) {
	f := setup(t)
	f.write("hello.dockerfile", "EDIT")
	f.get(nil)
	f.get(nil)
	if f.builds() != 2 {
		t.Errorf("%d builds", f.builds())
	}
}

func TestBuildFailures(t *testing.T) {
	f := setup(t)
	for recipe, want := range map[string]struct {
		text   string
		family error
	}{
		"REFUSE": {"hello.dockerfile:2: step \"REFUSE\" failed: write another", kiterr.ErrRefused},
		"BREAK":  {"hello: the disk is full: free some space", nil},
		"MUMBLE": {"without an answer", nil},
	} {
		f.write("hello.dockerfile", recipe)
		_, err := f.Fetch(t.Context(), f.dir, nil)
		if err == nil || !strings.Contains(err.Error(), want.text) || strings.Contains(err.Error(), "\n") || want.family != nil && !errors.Is(err, want.family) || want.family == nil && errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	if records, _ := filepath.Glob(filepath.Join(f.Home, "builds", "*.json")); len(records) > 0 {
		t.Errorf("failures are recorded: %v", records)
	}
	f.Builder = filepath.Join(f.dir, "none")
	if _, err := f.Fetch(t.Context(), f.dir, nil); !errors.Is(err, kiterr.ErrUnavailable) {
		t.Errorf("without a builder: %v", err)
	}
	f.Builder = ""
	t.Setenv("PATH", t.TempDir())
	t.Setenv("KITBOX_LIBEXEC", "")
	if _, err := f.Fetch(t.Context(), f.dir, nil); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "KITBOX_LIBEXEC") {
		t.Errorf("without a builder anywhere: %v", err)
	}
}

func TestABuildEndsWithItsContext(t *testing.T) {
	f := setup(t)
	f.write("hello.dockerfile", "HANG")
	ctx, cancel := context.WithCancel(t.Context())
	f.Progress = notify(func(line string) {
		if strings.Contains(line, "hanging") {
			cancel()
		}
	})
	if _, err := f.Fetch(ctx, f.dir, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch = %v", err)
	}
}

type notify func(string)

func (n notify) Write(p []byte) (int, error) { n(string(p)); return len(p), nil }

func TestReferencesThatLeadNowhere(t *testing.T) {
	f := setup(t)
	t.Chdir(filepath.Dir(f.dir))
	d, err := image(f.images, "plain", nil, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.images.Tag(t.Context(), d, "kitbox.local/plain:latest"); err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(t.TempDir(), "two")
	os.MkdirAll(two, 0o755)
	for _, n := range []string{"a", "b"} {
		os.WriteFile(filepath.Join(two, n+".yaml"), []byte("schemaVersion: \"3\"\nkind: workload\n"), 0o644)
	}
	f.write("other/notes.txt", "text")
	for ref, want := range map[string]struct {
		text   string
		family error
	}{
		"":                                  {"empty", kiterr.ErrNotFound},
		"hello":                             {"write ./hello for the directory", kiterr.ErrNotFound},
		"nothing":                           {"'kitbox images' lists", kiterr.ErrNotFound},
		"kitbox.local/nothing:1":            {"make it with 'kitbox build --tag kitbox.local/nothing:1 DIR'", kiterr.ErrNotFound},
		"./nothing":                         {"./nothing: no such file or directory; name the directory", kiterr.ErrNotFound},
		"./hello/other":                     {"no Kit descriptor in ./hello/other", kiterr.ErrNotFound},
		"./hello/other/notes.txt":           {"no Kit descriptor", kiterr.ErrRefused},
		"./hello/hello.dockerfile":          {"it is the recipe of hello/hello.yaml", kiterr.ErrRefused},
		two:                                 {"holds two workloads, a.yaml and b.yaml", kiterr.ErrRefused},
		"kitbox.local/plain":                {"is not a Kit", kiterr.ErrRefused},
		d.Digest.String():                   {"is not a Kit", kiterr.ErrRefused},
		"sha256:" + strings.Repeat("0", 64): {"not found", kiterr.ErrNotFound},
	} {
		_, err := f.Fetch(t.Context(), ref, nil)
		if err == nil || !strings.Contains(err.Error(), want.text) || !errors.Is(err, want.family) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if f.builds() != 0 {
		t.Errorf("%d builds", f.builds())
	}
}

func TestImagesOfTheLocalStore(t *testing.T) {
	f := setup(t)
	d := kitImage(t, f.images, "stored")
	for _, n := range []string{"kitbox.local/a:1", "ghcr.invalid/b:latest", "short"} {
		if err := f.images.Tag(t.Context(), d, n); err != nil {
			t.Fatal(err)
		}
	}
	// None of these asks a network, whatever host they name.
	for _, ref := range []string{"kitbox.local/a:1", "ghcr.invalid/b", "ghcr.invalid/b:latest", "short", d.Digest.String(), "ghcr.invalid/whatever@" + d.Digest.String()} {
		kit, err := f.Fetch(t.Context(), ref, nil)
		if err != nil || kit.Digest != d.Digest || kit.Source != fetch.Store || string(kit.Descriptor) != "stored" {
			t.Errorf("%s: %+v, %v", ref, kit, err)
			continue
		}
		if err := f.Pull(t.Context(), kit); err != nil {
			t.Error(err)
		}
	}
}

func TestAnOCILayoutIsAReference(t *testing.T) {
	f := setup(t)
	dir := filepath.Join(t.TempDir(), "lay:out")
	src, err := layout.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), dir, nil); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("an empty layout: %v", err)
	}
	a := kitImage(t, src, "a")
	if err := src.Tag(t.Context(), a, "one"); err != nil {
		t.Fatal(err)
	}
	if kit, err := f.Fetch(t.Context(), dir, nil); err != nil || kit.Digest != a.Digest || kit.Source != fetch.Layout {
		t.Errorf("%+v, %v", kit, err)
	}
	b := kitImage(t, src, "b")
	if err := src.Tag(t.Context(), b, "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), dir, nil); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("an ambiguous layout: %v", err)
	}
	for suffix, want := range map[string]digest.Digest{":one": a.Digest, ":two": b.Digest, "@" + b.Digest.String(): b.Digest} {
		if kit, err := f.Fetch(t.Context(), dir+suffix, nil); err != nil || kit.Digest != want {
			t.Errorf("%s: %+v, %v", suffix, kit, err)
		}
	}
	if _, err := f.Fetch(t.Context(), dir+":three", nil); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("a missing tag: %v", err)
	}
}

// BenchmarkUnchangedDirectory is the cost of a small Kit that is built already.
func BenchmarkUnchangedDirectory(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "hello")
	os.MkdirAll(dir, 0o755)
	for i := range 10 {
		os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte(strings.Repeat("x", 2000)), 0o644)
	}
	os.WriteFile(filepath.Join(dir, "hello.yaml"), []byte(descriptor), 0o644)
	os.WriteFile(filepath.Join(dir, "hello.dockerfile"), []byte(recipe), 0o644)
	f := &fetch.Fetcher{Home: b.TempDir(), Builder: builder(b)}
	// Files that changed a moment ago are read each time, so they must age:
	// the only thing that makes a change time old is time.
	time.Sleep(2100 * time.Millisecond)
	if _, err := f.Fetch(b.Context(), dir, nil); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if kit, err := f.Fetch(b.Context(), dir, nil); err != nil || kit.Built {
			b.Fatal(kit, err)
		}
	}
}
