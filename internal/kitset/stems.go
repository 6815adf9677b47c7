package kitset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/kitset/merge"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// These bound a layer that is read for the names of what is staged in it, in bytes.
const (
	maxSources         = 4 << 20 // as it is stored
	maxSourcesUnpacked = 64 << 20
)

// apart refuses members that keep their sources in one place, where their documents
// do not say it.
func apart(ctx context.Context, f *fetch.Fetcher, own string, list []spec.KitRef, artifacts []*fetch.Artifact, members []merge.Member) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookups)
	for i, m := range members {
		if m.Told() {
			continue
		}
		g.Go(func() error {
			ref, err := merge.Pinned(list[i])
			if err == nil {
				members[i].Stems, err = stems(gctx, f, ref, artifacts[i])
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return merge.Apart(own, members)
}

// stems looks into the last layer of a Kit whose documents do not say where its
// sources are staged, as those of other builders do not. That layer is where
// frontends stage them; a large one is not fetched for it.
func stems(ctx context.Context, f *fetch.Fetcher, ref string, a *fetch.Artifact) ([]string, error) {
	layers := a.Images[0].Manifest.Layers
	if len(layers) == 0 {
		return nil, nil
	}
	last := layers[len(layers)-1]
	if last.Size > maxSources {
		return nil, nil
	}
	var files *tree.Tree
	err := f.Blob(ctx, ref, last, func(r io.Reader) error {
		budget := int64(maxSourcesUnpacked)
		files = &tree.Tree{}
		return add(ctx, files, r, &budget)
	})
	switch {
	case errors.Is(err, errTooMuch), errors.Is(err, tree.ErrTooLarge), errors.Is(err, kiterr.ErrNotFound):
		return nil, nil // not known
	}
	if err != nil {
		return nil, fmt.Errorf("kit %s: looking for its sources: %w", ref, err)
	}
	var out []string
	for _, stem := range files.Names(content.StageRoot) {
		if _, there := files.At(path.Join(content.StageRoot, stem, content.StagedDescriptor)); there {
			out = append(out, stem)
		}
	}
	return out, nil
}
