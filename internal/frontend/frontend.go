// Package frontend builds a Kit over BuildKit's gateway client: it reads a
// descriptor, builds its recipe with BuildKit's Dockerfile frontend, stages the
// sources in the image and puts the published descriptor on its manifest. The
// image of a set it makes of those of other Kits.
//
// [Builder.Build] is one function for three callers: kit-builder runs it in its
// own process against a BuildKit, a BuildKit that links it runs it as a builtin
// frontend, and the frontend image runs it where "# syntax=docker/sandbox-kit:3"
// sends a build. The image is the same, byte for byte.
//
// The rules of a descriptor are in package spec, the forms of authoring in
// internal/authoring. Running a BuildKit is internal/builder's business.
package frontend

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	commonexptypes "github.com/moby/buildkit/exporter/exptypes"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// BuiltinSource is the name of this frontend where a BuildKit links it.
const BuiltinSource = "sandbox-kit.v3"

// A Builder builds Kits. Its zero value works and says "dev" for its version.
// It is safe for concurrent use.
type Builder struct {
	Version  string // of kitbox, for the built-by annotation; empty: dev
	Revision string // of its source; empty: not stated

	// Images provides an image that a recipe needs and returns it as the value
	// of a named context of the Dockerfile frontend, or "" to leave the image
	// to BuildKit. Nil leaves all of them.
	Images func(ctx context.Context, im Image) (string, error)
}

// Build builds the Kit that c's options name. It is a
// [github.com/moby/buildkit/frontend/gateway/client.BuildFunc].
//
// Besides the options of the Dockerfile frontend, of which "filename" names the
// descriptor and "build-arg:NAME" gives Kit args, it has none of its own. An
// error that is the author's to solve is an [*Error] or has the recipe's place
// in it, and belongs to the refused family when the descriptor is at fault.
func (b Builder) Build(ctx context.Context, c client.Client) (*client.Result, error) {
	ui, err := dockerui.NewClient(c)
	if err != nil {
		return nil, err
	}
	// Questions such as "which targets are there" are the Dockerfile frontend's;
	// answering them with an image would be worse than not at all.
	if res, asked, err := ui.HandleSubrequest(ctx, dockerui.RequestHandler{}); asked || err != nil {
		return res, err
	}
	src, err := ui.ReadEntrypoint(ctx, "YAML")
	if err != nil {
		return nil, noDescriptor(c.BuildOpts().Opts["filename"], err)
	}
	k, err := readKit(ctx, c, src)
	if err != nil {
		return nil, err
	}
	if err := k.resolve(c.BuildOpts().Opts); err != nil {
		return nil, err
	}
	k.warn(ctx, append(k.findings, k.surprises()...))
	if k.isSet() {
		return b.assemble(ctx, c, ui, k)
	}
	res, err := k.buildRecipe(ctx, b, c, ui)
	if err != nil {
		return nil, err
	}
	platforms, err := platformsOf(res)
	if err != nil {
		return nil, err
	}
	if err := k.derive(ctx, platforms); err != nil {
		return nil, err
	}
	descriptor, err := k.finish()
	if err != nil {
		return nil, err
	}
	staged, err := k.stage(descriptor)
	if err != nil {
		return nil, err
	}
	for _, p := range platforms {
		if err := k.finishPlatform(ctx, c, res, p, staged); err != nil {
			return nil, err
		}
	}
	annotations, err := b.annotations(k.published, c.BuildOpts().Opts)
	if err != nil {
		return nil, err
	}
	if err := k.judge(ctx, res, platforms, annotations); err != nil {
		return nil, err
	}
	annotate(res, annotations, c.BuildOpts().Opts)
	if _, ok := res.Metadata[commonexptypes.ExporterEpochKey]; !ok {
		// Without one, the config says when the build ran, and two builds of
		// one source differ in nothing else. Files keep their times.
		res.AddMeta(commonexptypes.ExporterEpochKey, []byte("0"))
	}
	return res, nil
}

// A kit is what is known of the Kit being built.
type kit struct {
	source    *dockerui.Source // the descriptor's file
	stem      string
	text      []byte // the descriptor as authored, comment signs removed
	firstLine int    // line of the file that text begins on
	doc       *spec.Document
	findings  spec.Diagnostics // none is an error

	recipe  *recipe           // nil: declaration only
	staged  []content.Staged  // content files
	content map[string][]byte // what is in them, by base name

	published spec.Descriptor   // after build-phase expansion
	buildArgs map[string]string // for the recipe, by its own names
}

// A platform is one of a result's.
type platform struct {
	id  string // key of metadata and refs; empty when the result has one ref
	ref client.Reference
}

// suffix is what the platform's metadata keys end in.
func (p platform) suffix() string {
	if p.id == "" {
		return ""
	}
	return "/" + p.id
}

func platformsOf(res *client.Result) ([]platform, error) {
	if len(res.Refs) == 0 {
		ref, err := res.SingleRef()
		return []platform{{ref: ref}}, err
	}
	var ps []platform
	for _, id := range slices.Sorted(maps.Keys(res.Refs)) {
		ps = append(ps, platform{id: id, ref: res.Refs[id]})
	}
	return ps, nil
}

// buildRecipe runs the recipe and returns its result, with a config for every
// platform. A Kit without a recipe gives empty images.
func (k *kit) buildRecipe(ctx context.Context, b Builder, c client.Client, ui *dockerui.Client) (*client.Result, error) {
	r := k.recipe
	if r == nil {
		r = &recipe{name: "kit.dockerfile", data: []byte("FROM scratch\n")}
	}
	opts := maps.Clone(c.BuildOpts().Opts)
	for name := range opts {
		if strings.HasPrefix(name, buildArgPrefix) && !passesThrough(strings.TrimPrefix(name, buildArgPrefix)) {
			delete(opts, name)
		}
	}
	for name, v := range k.buildArgs {
		opts[buildArgPrefix+name] = v
	}
	// Left in, these would bring the build back here, without end.
	for _, name := range []string{"source", "cmdline", "frontend.caps", buildArgPrefix + "BUILDKIT_SYNTAX", "dockerfilekey"} {
		delete(opts, name)
	}
	if text := r.behind(); text != "" {
		k.source.Warn(ctx, text, r.place(r.syntax))
	}
	if !r.foreign {
		// Being there is what makes the Dockerfile frontend skip the recipe's
		// syntax line: it is itself what "docker/dockerfile" names, and
		// fetching the image of that needs a network.
		opts["cmdline"] = "kit"
	}
	opts["filename"] = r.name
	build, targets := ui.BuildPlatforms[0], ui.TargetPlatforms
	if len(targets) == 0 {
		targets = ui.BuildPlatforms
	}
	var runnable []ocispec.Platform
	for _, w := range c.BuildOpts().Workers {
		runnable = append(runnable, w.Platforms...)
	}
	needs, err := r.scan(opts, build, targets, runnable)
	if err != nil {
		return nil, err
	}
	provided, err := b.provide(ctx, r, needs)
	if err != nil {
		return nil, err
	}
	maps.Copy(opts, provided)
	def, err := r.state().Marshal(ctx)
	if err != nil {
		return nil, err
	}
	res, err := c.Solve(ctx, client.SolveRequest{
		Frontend:       "dockerfile.v0",
		FrontendOpt:    opts,
		FrontendInputs: inputs(def),
		Evaluate:       true, // so that a step that fails, fails here and is located
	})
	if err != nil {
		return nil, r.relocate(err)
	}
	return res, nil
}

// finishPlatform lays the staged sources over p's content and corrects its
// config.
func (k *kit) finishPlatform(ctx context.Context, c client.Client, res *client.Result, p platform, staged llb.State) error {
	key := exptypes.ExporterImageConfigKey + p.suffix()
	config, err := parseConfig(res.Metadata[key])
	if err != nil {
		return err
	}
	if k.published.Kind == spec.KindWorkload && !config.launches() {
		return k.fault("kind", "the recipe states neither ENTRYPOINT nor CMD, so that there is nothing to launch",
			"a workload's recipe needs one, not empty", "SPEC-v3 §10")
	}
	if k.published.Kind == spec.KindMixin {
		base := scratchConfig()
		if b, ok := res.Metadata[exptypes.ExporterImageBaseConfigKey+p.suffix()]; ok {
			if base, err = parseConfig(b); err != nil {
				return err
			}
		}
		config = config.delta(base)
		if err := k.overlay(ctx, p.ref); err != nil {
			return err
		}
	}
	config.note(content.StageNote + k.stem)
	if res.Metadata[key], err = config.encode(); err != nil {
		return err
	}

	st := staged
	if p.ref != nil { // nil: a recipe that ends with an empty file system
		own, err := p.ref.ToState()
		if err != nil {
			return err
		}
		// Merging leaves every layer of the recipe as it is, and the staged
		// layer's digest does not depend on them.
		st = llb.Merge([]llb.State{own, staged}, llb.WithCustomName("[kit] stage descriptor and recipe"))
	}
	def, err := st.Marshal(ctx)
	if err != nil {
		return err
	}
	r, err := c.Solve(ctx, client.SolveRequest{Definition: def.ToPB()})
	if err != nil {
		return err
	}
	ref, err := r.SingleRef()
	if err != nil {
		return err
	}
	if p.id == "" {
		res.SetRef(ref)
	} else {
		res.AddRef(p.id, ref)
	}
	return nil
}

// noDescriptor explains a descriptor that cannot be read.
func noDescriptor(name string, err error) error {
	if name == "" {
		name = dockerui.DefaultDockerfileName
	}
	if !isNotExist(err) {
		return err
	}
	return &Error{File: name, Message: "there is no such descriptor in the Kit's directory", cause: err}
}

// isNotExist also knows the errors that lost their type in transport.
func isNotExist(err error) bool {
	return err != nil && (errors.Is(err, errNotExist) || strings.Contains(err.Error(), "no such file or directory") ||
		strings.Contains(err.Error(), "not found"))
}
