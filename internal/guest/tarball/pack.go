// Package tarball turns trees of files into tar streams and back, on either side
// of a sandbox's boundary: the host trusts no stream that a guest made, and the
// guest unpacks with the rights of one user.
package tarball

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// PackOptions say how a tree is packed.
type PackOptions struct {
	// Name is what the top is called in the stream; "." packs what is in a
	// directory and not the directory. Empty means its own name.
	Name string

	// Follow packs what the top leads to when it is a symbolic link. Links
	// below it are packed as links.
	Follow bool

	// Left is told of what is neither a file nor a directory nor a link, which
	// is then not packed. Nil packs it by its kind, but for sockets.
	Left func(what string)
}

// maxHardLinks bounds how many files with several names are recognized as one; the
// names of more are packed as files of their own.
const maxHardLinks = 100_000

// Pack writes what is at p to w. Sockets are left out; everything else that is not
// a file, a directory or a link is packed by its kind. A file that shrinks while
// it is read ends the packing.
func Pack(w io.Writer, p string, o PackOptions) error {
	stat := os.Lstat
	if o.Follow {
		stat = os.Stat
	}
	st, err := stat(p)
	if err != nil {
		return err
	}
	if o.Name == "" {
		o.Name = path.Base(path.Clean(p))
	}
	t := &packer{w: tar.NewWriter(w), left: o.Left, seen: map[[2]uint64]string{}}
	switch {
	case st.IsDir():
		if t.root, err = os.OpenRoot(p); err != nil {
			return err
		}
		defer t.root.Close()
		err = t.dir(".", o.Name, st)
	case o.Name == ".":
		return fmt.Errorf("%s is not a directory", p)
	default:
		if o.Follow {
			if p, err = filepath.EvalSymlinks(p); err != nil {
				return err
			}
		}
		if t.root, err = os.OpenRoot(filepath.Dir(p)); err != nil {
			return err
		}
		defer t.root.Close()
		err = t.entry(filepath.Base(p), o.Name, st)
	}
	if err != nil {
		return err
	}
	return t.w.Close()
}

type packer struct {
	w    *tar.Writer
	root *os.Root
	seen map[[2]uint64]string
	left func(what string) // may be nil
}

// dir packs the directory rel as name, and all below it.
func (t *packer) dir(rel, name string, st fs.FileInfo) error {
	if err := t.header(st, name+"/", ""); err != nil {
		return err
	}
	d, err := t.root.Open(rel)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(256)
		for _, e := range entries {
			if err := t.entry(path.Join(rel, e.Name()), path.Join(name, e.Name()), nil); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// entry packs what is at rel as name. What has gone since it was listed is left
// out.
func (t *packer) entry(rel, name string, st fs.FileInfo) (err error) {
	if st == nil {
		if st, err = t.root.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	switch {
	case st.IsDir():
		return t.dir(rel, name, st)
	case t.left != nil && st.Mode()&(fs.ModeType&^fs.ModeSymlink) != 0:
		t.left(name + " is a device, a pipe or something else that is no file")
		return nil
	case st.Mode()&fs.ModeSocket != 0:
		return nil
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := t.root.Readlink(rel)
		if err != nil {
			return err
		}
		return t.header(st, name, target)
	case !st.Mode().IsRegular():
		return t.header(st, name, "")
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink > 1 {
		id := [2]uint64{sys.Dev, sys.Ino}
		if first, ok := t.seen[id]; ok {
			return t.w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: first, Mode: int64(st.Mode().Perm()), ModTime: st.ModTime()})
		}
		if len(t.seen) < maxHardLinks {
			t.seen[id] = name
		}
	}
	f, err := t.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err = f.Stat(); err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no ordinary file any more", name)
	}
	if err := t.header(st, name, ""); err != nil {
		return err
	}
	if _, err := io.CopyN(t.w, f, st.Size()); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s became shorter while it was read", name)
	} else if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (t *packer) header(st fs.FileInfo, name, link string) error {
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if name == "./" && !strings.HasSuffix(h.Name, "/") {
		h.Name = "./"
	}
	h.Format = tar.FormatPAX
	return t.w.WriteHeader(h)
}
