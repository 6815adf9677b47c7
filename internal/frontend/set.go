package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	commonexptypes "github.com/moby/buildkit/exporter/exptypes"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// isSet reports whether the Kit's content is that of other Kits.
func (k *kit) isSet() bool { return k.doc.Kind == spec.KindSet || len(k.doc.Kits) > 0 }

// assemble makes the image of a set (§9.5): the layers of its Kits in a row, each
// as it is, and one of its own. BuildKit reads none of them for it. It is made for
// the platforms that were asked for: BuildKit objects to more, and a client that
// loads what it builds cannot have an index.
func (b Builder) assemble(ctx context.Context, c client.Client, ui *dockerui.Client, k *kit) (*client.Result, error) {
	opts := c.BuildOpts().Opts
	about, err := b.about(opts)
	if err != nil {
		return nil, k.fault("", err.Error(), "", "")
	}
	src := merge.Source{Stem: k.stem, Set: k.published}
	if err := src.Check(); err != nil {
		return nil, k.setFault(err)
	}
	if err := replaced(opts, src.Set.Kits); err != nil {
		return nil, k.setFault(err)
	}
	members, pinned, err := (&lookup{c: c, ui: ui}).all(ctx, src.Set.Kits)
	if err != nil {
		return nil, k.setFault(err)
	}
	set, err := merge.Of(src, members, about)
	if err != nil {
		return nil, k.setFault(err)
	}
	wanted := ui.TargetPlatforms
	if len(wanted) == 0 {
		wanted = ui.BuildPlatforms[:1]
	}
	targets, err := set.Platforms(wanted)
	if err != nil {
		return nil, k.setFault(err)
	}
	k.published = set.Descriptor
	descriptor, err := set.StagedDescriptor()
	if err != nil {
		return nil, err
	}
	files := k.sources(descriptor)
	_, diff, err := set.Layer(files)
	if err != nil {
		return nil, err
	}
	staged := k.stageFiles(files)
	res := client.NewResult()
	many := len(targets) > 1 || ui.MultiPlatformRequested
	made := exptypes.Platforms{Platforms: make([]exptypes.Platform, len(targets))}
	var judged []platform
	for i, p := range targets {
		made.Platforms[i] = exptypes.Platform{ID: platforms.FormatAll(p), Platform: p}
		at := platform{}
		if many {
			at.id = made.Platforms[i].ID
		}
		judged = append(judged, at)
		if err := k.assemblePlatform(ctx, c, ui, res, set, pinned, staged, diff, p, at); err != nil {
			return nil, err
		}
	}
	ids, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	res.AddMeta(exptypes.ExporterPlatformsKey, ids)
	if err := k.judge(ctx, res, judged, set.Annotations); err != nil {
		return nil, err
	}
	annotate(res, set.Annotations, opts)
	epoch := "0"
	if about.SourceDateEpoch != nil {
		epoch = opts[buildArgPrefix+sourceDateEpoch]
	}
	res.AddMeta(commonexptypes.ExporterEpochKey, []byte(epoch))
	return res, nil
}

// assemblePlatform adds the image for p to res.
func (k *kit) assemblePlatform(ctx context.Context, c client.Client, ui *dockerui.Client, res *client.Result, set *merge.Set, pinned []string, staged llb.State, diff digest.Digest, p ocispec.Platform, at platform) error {
	config, err := set.Config(p)
	if err != nil {
		return k.setFault(err)
	}
	for name, v := range ui.Labels {
		if config.Config.Labels == nil {
			config.Config.Labels = map[string]string{}
		}
		config.Config.Labels[name] = v
	}
	set.Stage(&config, diff)
	b, err := merge.Encode(config)
	if err != nil {
		return err
	}
	res.AddMeta(exptypes.ExporterImageConfigKey+at.suffix(), b)
	// The exporter takes all of it for a base, and so keeps the layers as they are
	// when it is told to set the times in an image.
	res.AddMeta(exptypes.ExporterImageBaseConfigKey+at.suffix(), b)
	var row []llb.State
	for _, i := range set.Order() {
		row = append(row, llb.Image(pinned[i], llb.Platform(p), ui.ImageResolveMode))
	}
	row = append(row, staged)
	ref, err := solve(ctx, c, llb.Merge(row, llb.WithCustomName("[kit] put the layers of "+k.stem+" in a row")))
	if err != nil {
		return err
	}
	if at.id == "" {
		res.SetRef(ref)
	} else {
		res.AddRef(at.id, ref)
	}
	return nil
}

// localDomain is the registry name of images that exist only in a local store.
const localDomain = "kitbox.local"

// replaced refuses a named context that is called like one of the Kits. In a recipe it
// would take the place of the image; a set is of what its references stand for, for
// everybody (§3.4), and who meant another Kit is to be told that it would not be it.
//
// Names of the local store are contexts of every build of kitbox's own, and of no use
// to others: that nobody can list one of those is said where it is looked up.
func replaced(opts map[string]string, kits []spec.KitRef) error {
	named := map[string]string{}
	for o := range opts {
		name, ok := strings.CutPrefix(o, "context:")
		name, _, _ = strings.Cut(name, "::") // a platform
		if img, err := constraint.ParseImage(name); ok && err == nil {
			named[img.Key()] = name
		}
	}
	for i, k := range kits {
		img, err := constraint.ParseImage(k.Ref)
		if err != nil {
			continue
		}
		if name, ok := named[img.Key()]; ok && !strings.HasPrefix(img.Repository, localDomain+"/") {
			return &merge.Error{Path: fmt.Sprintf("kits[%d]", i), Err: fmt.Errorf("%s is what its reference stands for, and the build context %s would not take its place: list that Kit itself, or leave the context out: %w", k.Ref, name, kiterr.ErrRefused)}
		}
	}
	return nil
}

// solve makes a reference of st, which nothing is fetched or run for until
// somebody looks into it.
func solve(ctx context.Context, c client.Client, st llb.State) (client.Reference, error) {
	def, err := st.Marshal(ctx)
	if err != nil {
		return nil, err
	}
	res, err := c.Solve(ctx, client.SolveRequest{Definition: def.ToPB()})
	if err != nil {
		return nil, err
	}
	return res.SingleRef()
}

// setFault is err about the set, with its line. It is the author's to solve if it
// belongs to the refused family or there is no such Kit.
func (k *kit) setFault(err error) error {
	at, rest := merge.Fault(err)
	line := k.lineOfKey("kits")
	if place := k.doc.Place(spec.Diagnostic{Path: at}); place.Line > 0 {
		line = place.Line
	}
	message := oneLine(rest)
	if strings.HasPrefix(at, "kits[") && !strings.Contains(message, at) {
		message = at + ": " + message
	}
	if errors.Is(rest, kiterr.ErrRefused) || errors.Is(rest, kiterr.ErrNotFound) {
		e := &Error{File: k.source.Filename, Line: line, Message: message, cause: rest}
		return errdefs.WithSource(e, source(k.source, line))
	}
	return errdefs.WithSource(fmt.Errorf("%s:%d: %w", k.source.Filename, line, err), source(k.source, line))
}

// stagedStems are the Kits whose sources are in ref.
func stagedStems(ctx context.Context, ref client.Reference) (map[string][]byte, error) {
	stems := map[string][]byte{}
	if ref == nil {
		return stems, nil
	}
	dirs, err := ref.ReadDir(ctx, client.ReadDirRequest{Path: content.StageRoot})
	if isNotExist(err) {
		return stems, nil
	} else if err != nil {
		return nil, err
	}
	if len(dirs) > maxStems {
		return nil, fmt.Errorf("it holds the sources of more than %d Kits", maxStems)
	}
	for _, d := range dirs {
		stem := path.Base(strings.TrimSuffix(d.Path, "/"))
		text, err := readFile(ctx, ref, path.Join(content.StageRoot, stem, content.StagedDescriptor))
		if err == nil {
			stems[stem] = text
		} else if !isNotExist(err) {
			return nil, err
		}
	}
	return stems, nil
}

// maxStems bounds how many staged sources are looked at in one layer.
const maxStems = 256

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
