package builder_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/solver/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/kitset"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact"
)

const both = "linux/amd64,linux/arm64"

// members are Kits to list in sets, by the file that they are built from.
var members = map[string]map[string]string{
	"shell": {
		"shell.yaml": "schemaVersion: \"3\"\nkind: workload\nprovides: [shell@1.0.0]\nlicenses: [MIT]\nargs:\n  where: {default: /d}\n  level: {default: low, env: LEVEL}\n" +
			"capabilities:\n  - {type: com.docker.sandbox/volume@1, config: {path: \"${{ kit.args.where }}\"}}\n",
		"shell.dockerfile": "FROM kitbox.local/multi:1\nENV A=1\nCOPY note.txt /note\nUSER agent\nCMD [\"/bin/sh\"]\n", "note.txt": "shell\n",
	},
	"gh": {
		"gh.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [gh@2.1.0]\nrequires: [shell >= 1]\nlicenses: [Apache-2.0]\n" +
			"capabilities:\n  - {type: com.docker.sandbox/agent-context@1, config: {contentFile: gh.md}}\n",
		"gh.dockerfile": "FROM scratch\nENV PATH=/opt/gh\nCOPY note.txt /opt/gh/note\nCOPY gh.md /opt/gh/more\n", "note.txt": "gh\n", "gh.md": "how to\n",
	},
	"say": {"say.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [say@1.0.0]\nrequires: [gh < 3]\n"},
}

// A library is a registry with Kits that were built for two platforms.
type library struct {
	*bench
	*watched
	layers map[string]bool // of the Kits, encoded digests
}

func newLibrary(t *testing.T, lenient bool) library {
	b := newBench(t)
	l := library{b, newWatched(t, false), map[string]bool{}}
	if !lenient {
		l.watched = newValidating(t)
	}
	b.multi()
	for name, files := range members {
		r := builder.Request{Context: b.kit(files), Platform: both}
		if name == "gh" {
			r.SourceDateEpoch = new(int64) // the exporter notes that on its layers
		}
		l.publish(name+":1", r)
	}
	// Whoever lists Kits has not built them: a builder that has would know some of
	// their layers by how it made them, and fetch others to tell what is between.
	if err := builder.Stop(context.Background(), b.dir()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(b.dir(), "buildkit")); err != nil {
		t.Fatal(err)
	}
	return l
}

// publish builds a Kit and puts it into the registry under name.
func (l library) publish(name string, r builder.Request) {
	l.bench.Helper()
	r.Tag = "kitbox.local/published:1"
	l.mustBuild(r)
	l.bench.push(r.Tag, l.host+"/kits/"+name)
	root, err := l.images().Resolve(l.bench.Context(), r.Tag)
	if err != nil {
		l.bench.Fatal(err)
	}
	all, err := layout.ReadAll(l.bench.Context(), l.images(), root)
	if err != nil {
		l.bench.Fatal(err)
	}
	for _, im := range all {
		for _, layer := range im.Manifest.Layers {
			l.layers[layer.Digest.Encoded()] = true
		}
	}
}

// foreign publishes a Kit as other programs do, which do not say where they stage
// its sources; it is a Kit at all only if its manifest says so.
func (l library) foreign(name string, annotated bool, files map[string]string) {
	l.bench.Helper()
	img := l.image(l.mustBuild(builder.Request{Context: l.kit(files)}))
	for i := range img.Config.History {
		img.Config.History[i].CreatedBy = "COPY . ."
	}
	if !annotated {
		img.Manifest.Annotations = nil
	}
	s := l.images()
	var err error
	if img.Manifest.Config, err = s.PushJSON(l.bench.Context(), ocispec.MediaTypeImageConfig, img.Config); err != nil {
		l.bench.Fatal(err)
	}
	d, err := s.PushJSON(l.bench.Context(), ocispec.MediaTypeImageManifest, img.Manifest)
	if err != nil {
		l.bench.Fatal(err)
	}
	l.bench.push(d.Digest.String(), l.host+"/kits/"+name)
}

// set writes a set of text, in which HUB stands for the registry.
func (l library) set(text string, more ...string) string {
	files := map[string]string{"hello.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: set\nversion: \"3\"\nprovides: [team@3]\n" + strings.ReplaceAll(text, "HUB", l.host)}
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = more[i+1]
	}
	return l.kit(files)
}

// assembled is the set in dir as kitbox build makes it, without a builder.
func (l library) assembled(dir string, args map[string]string, epoch *int64, ps ...ocispec.Platform) (kit *fetch.Kit, images string) {
	l.bench.Helper()
	home := l.bench.TempDir()
	sets := kitset.Assembler{Builder: annotation.Builder{Name: "kitbox"}}
	if epoch != nil {
		sets.SourceDateEpoch = strconv.FormatInt(*epoch, 10)
	}
	f := &fetch.Fetcher{Home: home, Policy: fetch.Always, Sets: sets.Assemble, Platforms: ps}
	kit, err := f.Fetch(l.bench.Context(), dir, args)
	if err != nil {
		l.bench.Fatal(err)
	}
	return kit, filepath.Join(home, "images")
}

// moved are the requests for layers of the Kits since they were last taken.
func (l library) moved() []string {
	var out []string
	for _, a := range l.take() {
		if d := a[strings.LastIndexByte(a, ':')+1:]; l.layers[d] && !strings.HasPrefix(a, "HEAD ") || strings.HasPrefix(a, "PATCH ") {
			out = append(out, a)
		}
	}
	return out
}

const threeKits = `args:
  registry: {required: true, buildArg: registry, pattern: '[a-z0-9.:]+'}
  dir: {default: /data}
capabilities:
  - {type: com.docker.sandbox/agent-context@1, config: {contentFile: team.md}}
kits:
  - {ref: "${{ kit.args.registry }}/kits/say:1"}
  - {ref: "${{ kit.args.registry }}/kits/gh:1"}
  - {ref: "${{ kit.args.registry }}/kits/shell:1", args: {where: "${{ kit.args.dir }}", level: high}}
`

// TestStockClientsAssembleSets builds sets by the frontend that the builder has
// built in and by its image, and holds them against what kitbox build makes.
func TestStockClientsAssembleSets(t *testing.T) {
	for name, lenient := range map[string]bool{"a registry that shows manifests": true, "one that wants to be asked for them": false} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t, lenient)
			dir := l.set(threeKits, "team.md", "together\n")
			images, d := l.frontendLayout()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			// Published beside its Kits, not one byte of their layers moves. Where the
			// manifests cannot be seen, BuildKit unpacks the Kits to read their
			// sources, and still sends nothing.
			l.take()
			r := builder.Request{Home: l.home, Context: dir, Args: map[string]string{"registry": l.host}}
			pushed, err := builder.PushBy(ctx, r, frontend.BuiltinSource, map[string]string{"platform": both}, l.host+"/kits/team:3")
			if err != nil {
				t.Fatal(err)
			}
			for _, asked := range l.moved() {
				if lenient || !strings.HasPrefix(asked, "GET ") {
					t.Errorf("a layer moved: %s", asked)
				}
			}
			if want, _ := l.assembled(dir, r.Args, nil); pushed != want.Root {
				t.Errorf("pushed: %s; kitbox build: %s", pushed, want.Root)
			}
			epoch := int64(1700000000)
			for name, c := range map[string]struct {
				platform string // empty: the builder's
				epoch    *int64
			}{
				"no platform": {}, "both": {platform: both}, "one platform": {platform: "linux/arm64"},
				"at a time": {platform: "linux/amd64", epoch: &epoch}, "both at a time": {platform: both, epoch: &epoch},
			} {
				ps := []ocispec.Platform{oursPlatform}
				if c.platform == both {
					ps = nil // kitbox build makes it for all that the Kits share
				} else if c.platform != "" {
					ps = nil
					for p := range strings.SplitSeq(c.platform, ",") {
						parsed, err := layout.ParsePlatform(p)
						if err != nil {
							t.Fatal(err)
						}
						ps = append(ps, parsed)
					}
				}
				want, home := l.assembled(dir, map[string]string{"registry": l.host}, c.epoch, ps...)
				r := builder.Request{Home: l.home, Context: dir, Args: map[string]string{"registry": l.host}, SourceDateEpoch: c.epoch,
					Contexts: []builder.NamedContext{{Name: "docker/sandbox-kit:3", Layout: images, Digest: d}}}
				attrs := map[string]string{"platform": c.platform}
				for _, how := range []string{frontend.BuiltinSource, "dockerfile.v0"} {
					got, warnings, err := builder.SolveBy(ctx, r, how, attrs)
					if err != nil || got != want.Root {
						t.Errorf("%s by %s: %s, %v; kitbox build: %s", name, how, got, err, want.Root)
						l.compare(got, want.Root.String(), home)
					}
					if len(warnings) > 0 {
						t.Errorf("%s: %v", name, warnings)
					}
				}
			}
			var out strings.Builder
			if code := artifact.Validate(t.Context(), []string{"--kits", l.host + "/kits/team:3"}, &out, &out); code != 0 {
				t.Errorf("the judge: %d\n%s", code, &out)
			}
		})
	}
}

// compare shows what differs between two images.
func (l library) compare(got digest.Digest, want string, wantIn string) {
	l.bench.Helper()
	var show func(dir string, d digest.Digest)
	show = func(dir string, d digest.Digest) {
		b, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", d.Encoded()))
		l.bench.Logf("%s %v\n%s", d, err, b)
		var m struct {
			Config    ocispec.Descriptor
			Manifests []ocispec.Descriptor
		}
		if json.Unmarshal(b, &m) != nil {
			return
		}
		for _, c := range append(m.Manifests, m.Config) {
			if c.Digest != "" {
				show(dir, c.Digest)
			}
		}
	}
	if got != "" {
		show(l.images().Dir(), got)
	}
	show(wantIn, digest.Digest(want))
}

// TestSetsThatStockClientsCannotAssemble looks at what clients of BuildKit get to
// show, and where.
func TestSetsThatStockClientsCannotAssemble(t *testing.T) {
	mixin := func(name, more string) map[string]string {
		return map[string]string{"kit.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [" + name + "@1.0.0]\n" + more}
	}
	for name, lenient := range map[string]bool{"a registry that shows manifests": true, "one that wants to be asked for them": false} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t, lenient)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			l.bench.push("kitbox.local/base:1", l.host+"/kits/plain:1")
			l.publish("second:1", builder.Request{Platform: both, Context: l.kit(map[string]string{
				"second.yaml": "schemaVersion: \"3\"\nkind: workload\nprovides: [second@1.0.0]\n", "second.dockerfile": "FROM kitbox.local/multi:1\nCMD [\"/bin/sh\"]\n"})})
			l.publish("one:1", builder.Request{Platform: both, Context: l.kit(map[string]string{"one.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [one@1.0.0]\nrequires: [two]\n"})})
			l.publish("two:1", builder.Request{Platform: both, Context: l.kit(map[string]string{"two.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [two@1.0.0]\nrequires: [one]\n"})})
			l.foreign("left:1", true, mixin("left", ""))
			l.foreign("right:1", true, mixin("right", ""))
			l.foreign("bare:1", false, map[string]string{"bare.yaml": mixin("bare", "")["kit.yaml"]})
			inner := builder.Request{Home: l.home, Context: l.kit(map[string]string{"inner.yaml": "schemaVersion: \"3\"\nkind: set\nversion: \"1\"\nprovides: [inner]\nkits:\n  - ref: " + l.host + "/kits/gh:1\n"})}
			if _, err := builder.PushBy(ctx, inner, frontend.BuiltinSource, nil, l.host+"/kits/inner:1"); err != nil {
				t.Fatal(err)
			}
			noKit := "is not a Kit"
			if !lenient {
				noKit = "holds the sources of 0 Kits"
			}
			cases := map[string]struct {
				text string
				line int32
				want string
				args map[string]string
			}{
				"nothing there":      {"kits:\n  - ref: HUB/kits/gh:1\n  - ref: HUB/kits/none:1\n", 8, "kits/none:1: not found", nil},
				"a digest of none":   {"kits:\n  - {ref: HUB/kits/gh:1, digest: \"sha256:" + strings.Repeat("0", 64) + "\"}\n", 7, "not found", nil},
				"two digests":        {"kits:\n  - {ref: \"HUB/kits/gh@sha256:" + strings.Repeat("1", 64) + "\", digest: \"sha256:" + strings.Repeat("0", 64) + "\"}\n", 7, "differs from the digest in ref", nil},
				"no Kit":             {"kits:\n  - ref: HUB/kits/plain:1\n", 7, noKit, nil},
				"two workloads":      {"kits:\n  - ref: HUB/kits/shell:1\n  - ref: HUB/kits/second:1\n", 6, "workload", nil},
				"a cycle":            {"kits:\n  - ref: HUB/kits/one:1\n  - ref: HUB/kits/two:1\n", 6, "in a circle", nil},
				"in another":         {"kits:\n  - ref: HUB/kits/inner:1\n  - ref: HUB/kits/gh:1\n", 8, "already", nil},
				"twice":              {"kits:\n  - ref: HUB/kits/gh:1\n  - ref: HUB/kits/gh\n    digest: \"@GH\"\n", 8, "the same Kit", nil},
				"an unknown arg":     {"kits:\n  - ref: HUB/kits/gh:1\n  - ref: HUB/kits/shell:1\n    args: {nope: x}\n", 8, "nope", nil},
				"one of the set":     {"kits:\n  - ref: HUB/kits/shell:1\n    args: {where: \"${{ kit.args.gone }}\"}\n", 8, "gone", nil},
				"a value":            {"args:\n  tag: {default: \"1\", pattern: \"[0-9]\", buildArg: tag}\nkits:\n  - ref: HUB/kits/gh:${{ kit.args.tag }}\n", 6, "pattern", map[string]string{"tag": "x"}},
				"one stem":           {"kits:\n  - ref: HUB/kits/left:1\n  - ref: HUB/kits/right:1\n", 8, l.host + "/kits/left:1 and " + l.host + "/kits/right:1 both keep their sources in /usr/share/sandbox/kit/kit", nil},
				"another's platform": {"kits:\n  - ref: HUB/kits/gh:1\n  - ref: HUB/kits/left:1\n", 8, "has no image for linux/" + otherPlatform.Architecture, nil},
				"nobody answers":     {"kits:\n  - ref: 127.0.0.1:1/kits/gh:1\n", 7, "connection refused", nil},
				"a local name":       {"kits:\n  - ref: kitbox.local/base:1\n", 7, "no context of this name is given", nil},
				"a time":             {"kits:\n  - ref: HUB/kits/gh:1\n", 0, "SOURCE_DATE_EPOCH=\"soon\" is no number of seconds since 1970", map[string]string{"SOURCE_DATE_EPOCH": "soon"}},
				"no content":         {"capabilities:\n  - {type: com.docker.sandbox/agent-context@1, config: {contentFile: gone.md}}\nkits:\n  - ref: HUB/kits/gh:1\n", 6, "gone.md", nil},
			}
			if lenient { // only who is shown the manifest can tell
				cases["sources of a Kit"] = cases["no Kit"]
				c := cases["sources of a Kit"]
				c.text = "kits:\n  - ref: HUB/kits/bare:1\n"
				cases["sources of a Kit"] = c
			}
			gh, _ := l.assembled(l.set("kits:\n  - ref: HUB/kits/gh:1\n"), nil, nil)
			_, pinned, _ := strings.Cut(string(gh.Descriptor), `"digest":"`)
			for name, c := range cases {
				r := builder.Request{Home: l.home, Args: c.args, Context: l.set(strings.ReplaceAll(c.text, "@GH", pinned[:71]))}
				platform := "linux/" + runtime.GOARCH
				if name == "another's platform" {
					platform = "linux/" + otherPlatform.Architecture
				}
				_, _, err := builder.SolveBy(ctx, r, frontend.BuiltinSource, map[string]string{"platform": platform})
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", name, err, c.want)
					continue
				}
				places := errdefs.Sources(err)
				if c.line > 0 && (len(places) != 1 || places[0].Info.Filename != "hello.yaml" || len(places[0].Ranges) != 1 || places[0].Ranges[0].Start.Line != c.line) {
					t.Errorf("%s: %v is about %+v, want line %d", name, err, places, c.line)
				}
			}
		})
	}
}
