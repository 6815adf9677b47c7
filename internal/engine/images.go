package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec"
)

// Images implements [sandbox.ImageStore].
func (e *Engine) Images(ctx context.Context) ([]sandbox.Image, error) {
	if !e.exists() {
		return nil, nil
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	images, err := e.home.Images()
	if err != nil {
		return nil, err
	}
	tags, err := images.Tags()
	if err != nil {
		return nil, err
	}
	var out []sandbox.Image
	for _, t := range tags {
		im, err := images.Image(ctx, t.Descriptor, layout.HostPlatform())
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", t.Name, err)
		}
		out = append(out, describe(t.Name, im))
	}
	return out, nil
}

// describe sums an image up. A descriptor that cannot be read leaves the kind
// open; whoever uses the image is told why.
func describe(ref string, im layout.Image) sandbox.Image {
	s := sandbox.Image{Ref: ref, Digest: im.Descriptor.Digest.String(), SizeBytes: im.Manifest.Config.Size}
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
func (e *Engine) Build(ctx context.Context, o sandbox.BuildOptions) (sandbox.Image, error) {
	if err := e.privilege(); err != nil {
		return sandbox.Image{}, err
	}
	if err := e.ready(); err != nil {
		return sandbox.Image{}, err
	}
	f := e.fetcher(sandbox.CreateOptions{Progress: o.Progress, BuildNetwork: o.Network})
	f.Address, f.NoCache = o.Builder, o.NoCache
	if o.Console != nil {
		f.Progress, f.ProgressMode = o.Console, o.ConsoleMode
	}
	kit, err := f.Fetch(ctx, local(o.Dir), o.Args)
	if err != nil {
		return sandbox.Image{}, err
	}
	if kit.Source != fetch.Directory {
		return sandbox.Image{}, fmt.Errorf("%s is an image already; build takes the directory of a Kit: %w", o.Dir, kiterr.ErrUnsupported)
	}
	for name := range o.Args {
		if !contains(kit.BuildArgs, name) {
			return sandbox.Image{}, fmt.Errorf("kit %s has no build-phase arg %s; args of the create phase are given to run and create: %w", o.Dir, name, kiterr.ErrRefused)
		}
	}
	images, err := e.home.Images()
	if err != nil {
		return sandbox.Image{}, err
	}
	desc, err := images.Describe(ctx, kit.Digest)
	if err != nil {
		return sandbox.Image{}, err
	}
	if o.Ref != "" {
		if err := images.Tag(ctx, desc, o.Ref); err != nil {
			return sandbox.Image{}, err
		}
	}
	im, err := images.Image(ctx, desc, layout.HostPlatform())
	if err != nil {
		return sandbox.Image{}, err
	}
	return describe(o.Ref, im), nil
}

// local turns the name of something that is there into one that is never looked
// up in the store: what is built is always a file or directory.
func local(dir string) string {
	if _, err := os.Stat(dir); err != nil || filepath.IsAbs(dir) || dir == "." || dir == ".." || strings.HasPrefix(dir, "./") || strings.HasPrefix(dir, "../") {
		return dir
	}
	return "./" + dir
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// CreateBase implements [sandbox.ImageStore].
func (e *Engine) CreateBase(ctx context.Context, o sandbox.BaseOptions) (sandbox.Image, error) {
	if err := e.privilege(); err != nil {
		return sandbox.Image{}, err
	}
	if err := e.ready(); err != nil {
		return sandbox.Image{}, err
	}
	return e.c.Base(ctx, e.home, o)
}
