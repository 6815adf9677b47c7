package frontend

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A view shows the files of a reference to a judge. It asks BuildKit directory
// by directory, for those that are looked at. It is not safe for concurrent use.
type view struct {
	ctx context.Context //nolint:containedctx // the judge's interface has none, and a view lives for one judgement
	ref client.Reference

	dirs  map[string]map[string]tree.Entry
	files map[string][]byte
	err   error // the first that was not about what is there
}

// maxDirs bounds how many directories are looked at. A file system with more is
// a whole distribution's, of which the judge asks for a few.
const maxDirs = 20_000

var _ tree.View = (*view)(nil)

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
	b, err := readFile(v.ctx, v.ref, name)
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
	stats, err := v.ref.ReadDir(v.ctx, client.ReadDirRequest{Path: name})
	if err != nil {
		v.fail(fmt.Errorf("%s: %w", name, err))
		return nil
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
