package compose

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/progress"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// A loadedKit is a Kit with its create-phase args expanded.
type loadedKit struct {
	image      *fetch.Kit
	descriptor spec.Descriptor
	exports    map[string]string // variables that its args export
}

// load fetches every Kit and expands its args. All that is wrong with the args
// of any is reported together.
func (c *Composer) load(ctx context.Context, o sandbox.CreateOptions) ([]loadedKit, error) {
	f := progress.Fetcher(c.c.Fetcher, o)
	used, known := map[string]bool{}, map[string]bool{}
	var kits []loadedKit
	for _, ref := range o.Kits {
		if w, ok := f.Progress.(*progress.Lines); ok {
			w.Of = ref
		}
		image, err := fetchLocked(ctx, f, o.Lock, ref, o.Args)
		if err != nil {
			return nil, err
		}
		doc, err := spec.DecodePublished(image.Descriptor)
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, err)
		}
		k := loadedKit{image: image, exports: map[string]string{}}
		for _, name := range image.BuildArgs {
			used[name] = true
		}
		for name := range doc.Args {
			known[name] = true
		}
		supplied := map[string]string{}
		for name, value := range o.Args {
			a, declared := doc.Args[name]
			if !declared || slices.Contains(image.BuildArgs, name) {
				continue
			}
			if a.BuildArg != "" {
				return nil, fmt.Errorf("kit %s: arg %s was settled when the Kit was built; build it from its directory with --arg %s=…: %w", ref, name, name, kiterr.ErrRefused)
			}
			used[name] = true
			supplied[name] = value
		}
		values, err := expand.ResolveArgs(doc.Args, supplied, expand.PhaseCreate)
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, explainArgs(err, doc.Args, supplied))
		}
		if k.descriptor, err = expand.Create(doc.Descriptor, values); err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, err)
		}
		for name, a := range doc.Args {
			if v, ok := values[name]; ok && a.Env != "" {
				k.exports[a.Env] = v
			}
		}
		kits = append(kits, k)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		if !used[name] {
			return nil, fmt.Errorf("no Kit given declares an arg %s; %s: %w", name, declaredArgs(known), kiterr.ErrRefused)
		}
	}
	return kits, nil
}

func resolvable(kits []loadedKit) []resolve.Kit {
	var out []resolve.Kit
	for _, k := range kits {
		out = append(out, resolve.Kit{Ref: k.image.Ref, Digest: k.image.Digest.String(), Descriptor: k.descriptor})
	}
	return out
}

// ordered returns kits in the order of order.
func ordered(order []resolve.Kit, kits []loadedKit) []loadedKit {
	var out []loadedKit
	for _, o := range order {
		for _, k := range kits {
			if k.image.Ref == o.Ref {
				out = append(out, k)
			}
		}
	}
	return out
}
