package frontend

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/lint"
)

// ruleFloor is the one rule of the linter that a build applies: what it finds
// cannot be seen in the published image.
const ruleFloor = "workload-base"

// floor finds workloads whose recipe starts from an image that lacks what
// content may assume (§3.5).
func (k *kit) floor() spec.Diagnostics {
	o := lint.Options{}
	if k.recipe != nil {
		o.Recipe = string(k.recipe.data)
	}
	var ds spec.Diagnostics
	for _, f := range lint.Check(k.doc, o) {
		if f.ID == ruleFloor {
			ds = append(ds, f.Diagnostic)
		}
	}
	return ds
}

// overlay checks what a mixin would do to a base it lands on (§10). based means
// that its recipe did not start from scratch: its image then holds a whole file
// system, whose links are its base's business.
func (k *kit) overlay(ctx context.Context, ref client.Reference, based bool) error {
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
	if based {
		return nil
	}
	entries, err := list(ctx, ref)
	if err != nil || entries == nil {
		return err
	}
	var ds spec.Diagnostics
	for _, p := range assemble.DanglingLinks(entries) {
		ds = append(ds, spec.Diagnostic{Severity: spec.Warning, Message: fmt.Sprintf("the mixin ships the symlink %s to %q, which it does not ship [SPEC-v3 §10/overlay-links-resolve]", p, entries[p])})
	}
	k.warn(ctx, ds)
	return nil
}

// maxDirs bounds how much of an image is walked for a warning.
const maxDirs = 2000

// list returns every path of ref and, for symlinks, where they lead. It is nil
// for a file system that is too large to walk.
func list(ctx context.Context, ref client.Reference) (map[string]string, error) {
	out := map[string]string{}
	dirs := []string{"/"}
	for n := 0; n < len(dirs); n++ {
		if n == maxDirs {
			return nil, nil
		}
		stats, err := ref.ReadDir(ctx, client.ReadDirRequest{Path: dirs[n]})
		if err != nil {
			return nil, fmt.Errorf("looking at %s in the image: %w", dirs[n], err)
		}
		for _, st := range stats {
			p := path.Join(dirs[n], path.Base(strings.TrimSuffix(st.Path, "/")))
			out[p] = st.Linkname
			if os.FileMode(st.Mode)&os.ModeSymlink == 0 {
				out[p] = ""
			}
			if st.IsDir() {
				dirs = append(dirs, p)
			}
		}
	}
	return out, nil
}
