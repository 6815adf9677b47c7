// Package rootfs is the view of an image's root file system that can be had
// before there is a machine: the unpacked layers, read on the host as overlayfs
// would show them in the sandbox.
//
// It makes no directories; package assemble and the store do.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A View is a stack of layer directories, lowest first, read as overlayfs
// would show them, so that a question about the image can be answered before
// there is a machine. Symbolic links are followed inside the stack only.
type View []string

// maxLinks is the kernel's bound on links in one look-up.
const maxLinks = 40

// Find returns the host path of what name leads to.
func (r View) Find(name string) (string, fs.FileInfo, error) {
	todo := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	at := "/"
	dirs := slices.Clone([]string(r)) // that make up at
	links := 0
	if len(r) == 0 {
		return "", nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	root := r[len(r)-1]
	rootInfo, err := os.Stat(root)
	if err != nil {
		return "", nil, err
	}
	host, info := root, rootInfo
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if next == "" || next == "." {
			continue
		}
		if next == ".." {
			// Seen from the root again: the layers of the parent may be
			// others than those of the child.
			todo = append(strings.Split(strings.Trim(path.Dir(at), "/"), "/"), todo...)
			at, dirs = "/", slices.Clone([]string(r))
			host, info = root, rootInfo
			continue
		}
		var below []string
		host, info, below = step(dirs, next)
		if info == nil {
			return "", nil, fmt.Errorf("%s: %w", path.Join(at, next), fs.ErrNotExist)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", nil, fmt.Errorf("%s: %w", name, unix.ELOOP)
			}
			target, err := os.Readlink(host)
			if err != nil {
				return "", nil, err
			}
			if path.IsAbs(target) {
				at, dirs = "/", slices.Clone([]string(r))
				host, info = root, rootInfo
			}
			todo = append(strings.Split(target, "/"), todo...)
		case info.IsDir():
			at, dirs = path.Join(at, next), below
		case len(todo) > 0:
			return "", nil, fmt.Errorf("%s: %w", path.Join(at, next), unix.ENOTDIR)
		default:
			return host, info, nil
		}
	}
	return host, info, nil
}

// step looks name up in a directory that is made up of dirs, lowest first.
func step(dirs []string, name string) (host string, info fs.FileInfo, below []string) {
	for _, d := range slices.Backward(dirs) {
		p := filepath.Join(d, name)
		st, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || whiteout(p, st) {
			break
		}
		if info == nil {
			host, info = p, st
		}
		if !st.IsDir() {
			break
		}
		if !info.IsDir() {
			break
		}
		below = append(below, p)
		if opaque(p) {
			break
		}
	}
	slices.Reverse(below)
	return host, info, below
}

func whiteout(p string, st fs.FileInfo) bool {
	if st.Mode()&fs.ModeCharDevice != 0 {
		sys, ok := st.Sys().(*unixStat)
		return ok && sys.Rdev == 0
	}
	return st.Mode().IsRegular() && st.Size() == 0 && hasXattr(p, "trusted.overlay.whiteout", "user.overlay.whiteout")
}

func opaque(dir string) bool { return hasXattr(dir, "trusted.overlay.opaque", "user.overlay.opaque") }

func hasXattr(p string, names ...string) bool {
	var b [1]byte
	for _, n := range names {
		if _, err := unix.Lgetxattr(p, n, b[:]); err == nil || errors.Is(err, unix.ERANGE) {
			return true
		}
	}
	return false
}

// maxAccounts bounds /etc/passwd and /etc/group: larger ones belong to no image.
const maxAccounts = 1 << 20

// Text reads a small file; a missing one is empty.
func (r View) Text(name string) (string, error) {
	host, info, err := r.Find(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("the image's %s is not a file", name)
	}
	f, err := os.Open(host)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if len(b) > maxAccounts {
		return "", fmt.Errorf("the image's %s has more than %d bytes", name, maxAccounts)
	}
	return string(b), err
}

// Executable reports whether id may execute the ordinary file at name.
func (r View) Executable(name string, id plan.Identity) error {
	_, info, err := r.Find(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is missing", name)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not an ordinary file", name)
	}
	sys, ok := info.Sys().(*unixStat)
	if !ok {
		return fmt.Errorf("%s cannot be examined", name)
	}
	bit := fs.FileMode(0o001)
	switch {
	case id.UID == 0:
		bit = 0o111
	case sys.Uid == id.UID:
		bit = 0o100
	case sys.Gid == id.GID || slices.Contains(id.Gids, sys.Gid):
		bit = 0o010
	}
	if info.Mode()&bit == 0 {
		return fmt.Errorf("%s cannot be executed by user %d", name, id.UID)
	}
	return nil
}
