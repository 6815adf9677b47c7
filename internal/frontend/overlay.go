package frontend

import (
	"context"
	"fmt"
	"slices"

	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/lint"
)

// told are the rules of the linter that a build applies: what they find cannot be
// seen in the published image, or keeps it from ever running.
var told = []string{"workload-base", "host-pattern"}

// surprises finds workloads whose recipe starts from an image that lacks what
// content may assume (§3.5), and rules that no boundary can apply.
func (k *kit) surprises() spec.Diagnostics {
	o := lint.Options{}
	if k.recipe != nil {
		o.Recipe = string(k.recipe.data)
	}
	var ds spec.Diagnostics
	for _, f := range lint.Check(k.doc, o) {
		if slices.Contains(told, f.ID) {
			ds = append(ds, f.Diagnostic)
		}
	}
	return ds
}

// overlay checks what a mixin would do to a base it lands on (§10).
func (k *kit) overlay(ctx context.Context, ref client.Reference) error {
	if ref == nil {
		return nil
	}
	owners := map[string]int{}
	for _, dir := range assemble.SharedDirs() {
		st, err := ref.StatFile(ctx, client.StatRequest{Path: dir})
		switch {
		case isNotExist(err):
		case err != nil:
			return fmt.Errorf("looking at %s in the image: %w", dir, err)
		case st.IsDir():
			owners[dir] = int(st.Uid)
		}
	}
	for _, dir := range assemble.OverlayHome(owners) {
		return k.fault("kind", fmt.Sprintf("the recipe makes %s belong to user %d, and so it would on every base that the mixin lands on", dir, owners[dir]),
			fmt.Sprintf("COPY makes missing parents for root: before it, make %s with the owner that every base gives it (root for /home, 1000 for /home/agent)", dir), "SPEC-v3 §10/overlay-home-ownership")
	}
	return nil
}
