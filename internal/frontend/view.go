package frontend

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/moby/buildkit/frontend/gateway/client"
	fstypes "github.com/tonistiigi/fsutil/types"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A view shows the files of a reference to a judge. It asks BuildKit directory
// by directory, for those that are looked at. It is not safe for concurrent use.
type view struct {
	ctx context.Context //nolint:containedctx // the judge's interface has none, and a view lives for one judgement
	ref client.Reference

	ahead map[string][]*fstypes.Stat // see prefetch
	dirs  map[string]map[string]tree.Entry
	files map[string][]byte
	err   error // the first that was not about what is there
}

// maxDirs bounds how many directories are looked at, each of which is a question
// to BuildKit. Of these, spareDirs are for what an image should be: a mixin is
// looked through for links that lead nowhere, and one with the packages of some
// language has more directories than that is worth.
const (
	maxDirs   = 20_000
	spareDirs = 5_000
)

var _ tree.Bounded = (*view)(nil)

// Spare implements [tree.Bounded].
func (v *view) Spare() int { return max(0, spareDirs-len(v.dirs)) }

// At implements [tree.View].
func (v *view) At(name string) (tree.Entry, bool) {
	if name = path.Clean("/" + name); name == "/" {
		return tree.Entry{Kind: tree.Dir, Mode: 0o755}, true
	}
	e, ok := v.dir(path.Dir(name))[path.Base(name)]
	return e, ok
}

// Names implements [tree.View].
func (v *view) Names(dir string) []string {
	var names []string
	for n := range v.dir(path.Clean("/" + dir)) {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Read implements [tree.View].
func (v *view) Read(name string) ([]byte, bool) {
	if e, ok := v.At(name); !ok || e.Kind != tree.File {
		return nil, false
	}
	if b, ok := v.files[name]; ok {
		return b, true
	}
	e, _ := v.At(name)
	if e.Size > maxFile {
		v.fail(fmt.Errorf("%s has more than 8 MiB", name))
		return nil, false
	}
	b, err := v.ref.ReadFile(v.ctx, client.ReadRequest{Filename: name})
	if err != nil {
		v.fail(fmt.Errorf("%s: %w", name, err))
		return nil, false
	}
	if v.files == nil {
		v.files = map[string][]byte{}
	}
	v.files[name] = b
	return b, true
}

// usual are the directories that a workload is looked at in.
var usual = []string{"/usr", "/usr/bin", "/etc", "/etc/ssl", "/etc/ssl/certs", "/var", "/var/lib", "/var/lib/dpkg"}

// prefetch asks for directories at once that will be asked for one by one. Those
// that are not there, or are links, nobody asks for then.
func (v *view) prefetch(dirs ...string) {
	var mu sync.Mutex
	var g errgroup.Group
	v.ahead = map[string][]*fstypes.Stat{}
	for _, dir := range dirs {
		g.Go(func() error {
			if stats, err := v.ref.ReadDir(v.ctx, client.ReadDirRequest{Path: dir}); err == nil {
				mu.Lock()
				v.ahead[dir] = stats
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait()
}

func (v *view) fail(err error) {
	if v.err == nil {
		v.err = err
	}
}

// dir returns the entries of a directory. One that is none, or not there, has
// none. BuildKit follows symlinks on the way to it, which a caller does not give.
func (v *view) dir(name string) map[string]tree.Entry {
	if d, ok := v.dirs[name]; ok || v.ref == nil || v.err != nil {
		return d
	}
	if name != "/" {
		if e, ok := v.At(name); !ok || e.Kind != tree.Dir {
			return nil
		}
	}
	if len(v.dirs) == maxDirs {
		v.fail(fmt.Errorf("it holds more than %d directories", maxDirs))
		return nil
	}
	stats, known := v.ahead[name]
	if !known {
		var err error
		if stats, err = v.ref.ReadDir(v.ctx, client.ReadDirRequest{Path: name}); err != nil {
			v.fail(fmt.Errorf("%s: %w", name, err))
			return nil
		}
	}
	d := make(map[string]tree.Entry, len(stats))
	for _, st := range stats {
		mode := os.FileMode(st.Mode)
		e := tree.Entry{Kind: tree.Other, Stated: true, Mode: uint32(mode.Perm()), UID: int(st.Uid), GID: int(st.Gid), Size: st.Size}
		switch {
		case mode.IsRegular():
			e.Kind = tree.File
		case mode.IsDir():
			e.Kind = tree.Dir
		case mode&os.ModeSymlink != 0:
			e.Kind, e.Link = tree.Symlink, st.Linkname
		}
		d[path.Base(strings.TrimSuffix(st.Path, "/"))] = e
	}
	if v.dirs == nil {
		v.dirs = map[string]map[string]tree.Entry{}
	}
	v.dirs[name] = d
	return d
}
