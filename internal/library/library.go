// Package library is the image store as its users see it: what there is, what is
// built into it, and how images come to it and leave it. It implements
// [sandbox.ImageStore], [sandbox.ImageManager], [sandbox.Builder] and
// [sandbox.Preflighter].
//
// The store itself is internal/store/layout; getting and building is fetch.
package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/progress"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec"
)

// Config is what a library is made of. All fields are required.
type Config struct {
	// Exists reports whether there is a home. One who only looks makes none.
	Exists func() bool

	// Open opens the home, and makes it on first use.
	Open func() (*store.Home, error)

	// Privilege makes this process one that can write the store as machines
	// need it. It may replace the process, so it is called before anything.
	Privilege func() error

	// Fetcher returns what images are fetched and built with.
	Fetcher func() *fetch.Fetcher

	// Base makes the platform base.
	Base func(ctx context.Context, h *store.Home, o sandbox.BaseOptions) (sandbox.Image, error)
}

// A Library is the images of one home. Its methods can be called concurrently.
// Making one reads nothing.
type Library struct{ c Config }

// New returns a library.
func New(c Config) *Library { return &Library{c} }

// Images implements [sandbox.ImageStore].
func (l *Library) Images(ctx context.Context) ([]sandbox.Image, error) {
	if !l.c.Exists() {
		return nil, nil
	}
	home, err := l.c.Open()
	if err != nil {
		return nil, err
	}
	images, err := home.Images()
	if err != nil {
		return nil, err
	}
	tags, err := images.Tags()
	if err != nil {
		return nil, err
	}
	var out []sandbox.Image
	for _, t := range tags {
		im, err := anImage(ctx, images, t.Descriptor)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", t.Name, err)
		}
		out = append(out, describe(t.Name, im))
	}
	return out, nil
}

// anImage is the image of d for this machine, or else for a platform that the
// store has.
func anImage(ctx context.Context, images *layout.Store, d ocispec.Descriptor) (layout.Image, error) {
	im, err := images.Image(ctx, d, layout.HostPlatform())
	if !errors.Is(err, kiterr.ErrNotFound) {
		return im, err
	}
	all, aerr := layout.ReadAll(ctx, images, d)
	if aerr != nil {
		return im, err
	}
	return all[0], nil
}

// describe sums an image up. A descriptor that cannot be read leaves the kind
// open; whoever uses the image is told why.
func describe(ref string, im layout.Image) sandbox.Image {
	s := sandbox.Image{Ref: ref, Digest: im.Root.Digest.String(), SizeBytes: im.Manifest.Config.Size}
	for _, l := range im.Manifest.Layers {
		s.SizeBytes += l.Size
	}
	if a, ok := im.Annotations[fetch.Annotation]; ok {
		if doc, err := spec.DecodePublished([]byte(a)); err == nil {
			s.Kind = doc.Kind
		}
	}
	return s
}

// Build implements [sandbox.Builder].
func (l *Library) Build(ctx context.Context, o sandbox.BuildOptions) (sandbox.Image, error) {
	if err := l.c.Privilege(); err != nil {
		return sandbox.Image{}, err
	}
	home, err := l.c.Open()
	if err != nil {
		return sandbox.Image{}, err
	}
	if o.Ref != "" {
		if o.Ref, err = tagName(o.Ref); err != nil {
			return sandbox.Image{}, err
		}
	}
	f := progress.Fetcher(l.c.Fetcher, sandbox.CreateOptions{Progress: o.Progress, BuildNetwork: o.Network})
	// To build a set is to ask what the names of its Kits stand for.
	f.Policy, f.SetName = fetch.Policy(cmp.Or(o.Pull, string(fetch.Always))), o.Ref
	if err := forPlatforms(f, o.Platforms); err != nil {
		return sandbox.Image{}, err
	}
	f.Address, f.NoCache = o.Builder, o.NoCache
	if o.Console != nil {
		f.Progress, f.ProgressMode = o.Console, o.ConsoleMode
	}
	kit, err := f.Fetch(ctx, local(o.Dir), o.Args)
	if err != nil {
		return sandbox.Image{}, err
	}
	if kit.Source != fetch.Directory && kit.Source != fetch.Git {
		return sandbox.Image{}, fmt.Errorf("%s is an image already; build takes the directory of a Kit: %w", o.Dir, kiterr.ErrUnsupported)
	}
	for name := range o.Args {
		if !slices.Contains(kit.BuildArgs, name) {
			return sandbox.Image{}, fmt.Errorf("kit %s has no build-phase arg %s; args of the create phase are given to run and create: %w", o.Dir, name, kiterr.ErrRefused)
		}
	}
	images, err := home.Images()
	if err != nil {
		return sandbox.Image{}, err
	}
	desc, err := images.Describe(ctx, kit.Root)
	if err != nil {
		return sandbox.Image{}, err
	}
	if o.Ref != "" {
		if err := images.Tag(ctx, desc, o.Ref); err != nil {
			return sandbox.Image{}, err
		}
	}
	im, err := images.Image(ctx, desc, f.Platform)
	if err != nil {
		return sandbox.Image{}, err
	}
	return describe(o.Ref, im), nil
}

// forPlatforms makes f build for platforms, or for what it would by itself if
// there are none. Of several, what is described in the end is this machine's or
// the first. Their order means nothing.
func forPlatforms(f *fetch.Fetcher, platforms []string) error {
	f.Platform = layout.HostPlatform()
	for i, s := range slices.Compact(slices.Sorted(slices.Values(platforms))) {
		p, err := layout.ParsePlatform(s)
		if err != nil {
			return err
		}
		if i == 0 || p.Architecture == layout.HostPlatform().Architecture {
			f.Platform = p
		}
		f.Platforms = append(f.Platforms, p)
	}
	return nil
}

// local turns the name of something that is there into one that is never looked
// up in the store: what is built is always a file or directory.
func local(dir string) string {
	if _, err := os.Stat(dir); err != nil || fetch.IsPath(dir) {
		return dir
	}
	return "./" + dir
}

// CreateBase implements [sandbox.ImageStore].
func (l *Library) CreateBase(ctx context.Context, o sandbox.BaseOptions) (sandbox.Image, error) {
	if err := l.c.Privilege(); err != nil {
		return sandbox.Image{}, err
	}
	home, err := l.c.Open()
	if err != nil {
		return sandbox.Image{}, err
	}
	return l.c.Base(ctx, home, o)
}
