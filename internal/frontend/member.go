package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// A lookup resolves the Kits of a set by what BuildKit tells of images. It never
// asks for their attestations: a BuildKit can end over that question.
type lookup struct {
	c  client.Client
	ui *dockerui.Client

	size atomic.Int64 // bytes of configs
}

// lookups is how many Kits are asked for at once.
const lookups = 8

// probed are the platforms that a Kit can be for. BuildKit tells of no index which
// ones it has, and answers for one of them out of what it has read once.
var probed = []ocispec.Platform{
	{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}, {OS: "linux", Architecture: "arm", Variant: "v7"},
	{OS: "linux", Architecture: "arm", Variant: "v6"}, {OS: "linux", Architecture: "386"}, {OS: "linux", Architecture: "riscv64"},
	{OS: "linux", Architecture: "ppc64le"}, {OS: "linux", Architecture: "s390x"}, {OS: "linux", Architecture: "loong64"},
}

// all returns the Kits of list, in its order, and the references by which
// BuildKit has them, with their digests.
func (l *lookup) all(ctx context.Context, list []spec.KitRef) ([]merge.Member, []string, error) {
	members, pinned, errs := make([]merge.Member, len(list)), make([]string, len(list)), make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(lookups)
	for i, k := range list {
		g.Go(func() error {
			members[i], pinned[i], errs[i] = l.member(ctx, k)
			return nil
		})
	}
	_ = g.Wait()
	for i, err := range errs {
		if err != nil { // the first in the list, not the first to fail
			return nil, nil, &merge.Error{Path: fmt.Sprintf("kits[%d]", i), Err: err}
		}
	}
	return members, pinned, nil
}

func (l *lookup) member(ctx context.Context, k spec.KitRef) (merge.Member, string, error) {
	m := merge.Member{Ref: k.Ref}
	ref, err := merge.Pinned(k)
	if err != nil {
		return m, "", err
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return m, "", fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	pinned, err := l.images(ctx, reference.TagNameOnly(named).String(), &m)
	if err != nil {
		return m, "", err
	}
	doc, err := l.descriptor(ctx, pinned, &m)
	if err != nil {
		return m, "", fmt.Errorf("kit %s: %w", k.Ref, err)
	}
	m.Descriptor = doc.Descriptor
	return m, pinned, nil
}

// images fills in what m is and its configs, by platform.
func (l *lookup) images(ctx context.Context, ref string, m *merge.Member) (pinned string, err error) {
	var none, lie error
	for _, p := range probed {
		got, d, text, err := l.c.ResolveImageConfig(ctx, ref, sourceresolver.Opt{
			LogName:  "[kit] resolve " + ref,
			ImageOpt: &sourceresolver.ResolveImageOpt{Platform: &p, ResolveMode: l.ui.ImageResolveMode.String()},
		})
		if err != nil && strings.Contains(err.Error(), "no match for platform") {
			none = err
			continue
		}
		if isNotExist(err) {
			return "", fmt.Errorf("kit %s: %w: %w", m.Ref, kiterr.ErrNotFound, err)
		}
		if err != nil {
			return "", fmt.Errorf("kit %s: %w", m.Ref, err)
		}
		if pinned == "" {
			// From here on it is this one, whatever happens to its name.
			named, err := reference.ParseNormalizedNamed(got)
			if err != nil {
				return "", fmt.Errorf("kit %s: BuildKit names it %s: %w", m.Ref, got, err)
			}
			m.Digest, pinned = d.String(), reference.TrimNamed(named).String()+"@"+d.String()
			ref = pinned
		} else if d.String() != m.Digest {
			return "", fmt.Errorf("kit %s: BuildKit answers with %s for %s: %w", m.Ref, d, ref, kiterr.ErrRefused)
		}
		if l.size.Add(int64(len(text))) > merge.MaxDocuments {
			return "", fmt.Errorf("with those of %s the documents of the listed Kits have more than %d bytes: %w", m.Ref, merge.MaxDocuments, kiterr.ErrRefused)
		}
		im := merge.Image{}
		if err := json.Unmarshal(text, &im.Config); err != nil {
			return "", fmt.Errorf("kit %s: its config is none: %w: %w", m.Ref, err, kiterr.ErrRefused)
		}
		// A platform can stand in for another, and an image without an index does
		// for all.
		if lie == nil && !platforms.Only(p).Match(im.Config.Platform) {
			lie = merge.Stated(&p, im.Config.Platform)
		}
		if im.Platform = merge.Normal(im.Config.Platform); m.At(im.Platform) < 0 {
			m.Images = append(m.Images, im)
		}
	}
	if lie != nil && none != nil { // an index, since not every platform is there
		return "", fmt.Errorf("kit %s: %w", m.Ref, lie)
	}
	if pinned == "" {
		return "", fmt.Errorf("kit %s has no image for a platform that a sandbox can be for: %w: %w", m.Ref, kiterr.ErrRefused, none)
	}
	return pinned, nil
}

// descriptor returns what the Kit declares: by its manifests, where its registry
// shows them to BuildKit, or else as its sources have it, which are in its last
// layer. For that one BuildKit unpacks those below it as well.
func (l *lookup) descriptor(ctx context.Context, pinned string, m *merge.Member) (*spec.Document, error) {
	text, shown, err := l.annotated(ctx, pinned, m.Digest)
	if err != nil {
		return nil, err
	}
	if shown && text == "" {
		return nil, fmt.Errorf("the image is not a Kit: it has no annotation %s: %w", annotation.Descriptor, kiterr.ErrRefused)
	}
	if shown && m.Told() {
		return spec.DecodePublished([]byte(text))
	}
	staged, err := l.staged(ctx, pinned, m)
	if err != nil {
		return nil, fmt.Errorf("looking for its sources: %w", err)
	}
	m.Stems = sortedKeys(staged)
	if !shown {
		if len(staged) != 1 {
			return nil, fmt.Errorf("its registry does not show its manifest to BuildKit, and its last layer holds the sources of %d Kits rather than its own: kitbox build can read it: %w", len(staged), kiterr.ErrRefused)
		}
		text = string(staged[m.Stems[0]])
	}
	return spec.DecodePublished([]byte(text))
}

// annotated returns the descriptor that the Kit's documents hold; shown tells
// whether there was a way to see them. All platforms have one descriptor.
func (l *lookup) annotated(ctx context.Context, pinned, root string) (text string, shown bool, err error) {
	name, _, _ := strings.Cut(pinned, "@")
	var doc struct {
		Annotations map[string]string    `json:"annotations"`
		Manifests   []ocispec.Descriptor `json:"manifests"`
	}
	if err := l.document(ctx, name, root, &doc); errors.Is(err, errNotShown) {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	text, _ = annotation.Discover(doc.Annotations, nil)
	for _, d := range doc.Manifests {
		if d.Platform != nil && d.Platform.OS == "unknown" || d.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		var m ocispec.Manifest
		if err := l.document(ctx, name, d.Digest.String(), &m); errors.Is(err, errNotShown) {
			return "", false, nil
		} else if err != nil {
			return "", false, err
		}
		each, _ := annotation.Discover(nil, m.Annotations)
		if text == "" {
			text = each
		}
		if each != text {
			return "", true, fmt.Errorf("its platforms have different descriptors [SPEC-v3 §9.5/declarations-platform-independent]: %w", kiterr.ErrRefused)
		}
	}
	return text, true, nil
}

// errNotShown means that a registry does not hand out a document to BuildKit.
var errNotShown = errors.New("not shown")

// document reads a manifest or index, if the registry answers a request that does
// not say what it wants, and the BuildKit is one that can make it.
func (l *lookup) document(ctx context.Context, name, d string, into any) error {
	const file = "document.json"
	if digest.Digest(d).Validate() != nil {
		return fmt.Errorf("its index names %q: %w", d, kiterr.ErrRefused)
	}
	if caps := l.c.BuildOpts().LLBCaps; caps.Supports(pb.CapSourceImageBlob) != nil {
		return errNotShown
	}
	ref, err := solve(ctx, l.c, llb.ImageBlob(name+"@"+d, llb.Filename(file), llb.WithCustomName("[kit] read "+name+"@"+d)))
	var b []byte
	if err == nil {
		b, err = readFile(ctx, ref, file)
	}
	var theirs *Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &theirs):
		return err // too large, for example
	case err != nil:
		return errNotShown
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s is no manifest: %w: %w", d, err, kiterr.ErrRefused)
	}
	return nil
}

// staged returns the staged descriptors in the last layer of the Kit, by stem.
func (l *lookup) staged(ctx context.Context, pinned string, m *merge.Member) (map[string][]byte, error) {
	im := m.Images[0]
	of := func(o ...llb.ImageOption) llb.State {
		return llb.Image(pinned, append(o, llb.Platform(im.Platform), l.ui.ImageResolveMode, llb.WithCustomName("[kit] read "+content.StageRoot+" of "+m.Ref))...)
	}
	st := of()
	if below := len(im.Config.RootFS.DiffIDs) - 1; below > 0 {
		st = llb.Diff(of(llb.WithLayerLimit(below)), st)
	}
	ref, err := solve(ctx, l.c, st)
	if err != nil {
		return nil, err
	}
	return stagedStems(ctx, ref)
}
