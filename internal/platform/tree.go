package platform

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// writeTree writes the directory root as a tar, in order of path: owners, modes,
// times, hard links and extended attributes as they are, without sockets and
// without what is in /dev, /proc and /sys. It does not leave root's file system.
func writeTree(ctx context.Context, root string, w io.Writer) error {
	var top unix.Stat_t
	if err := unix.Stat(root, &top); err != nil {
		return durable.Explain(root, err)
	}
	tw := tar.NewWriter(w)
	links := map[uint64]string{} // by inode
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		if st.Dev != top.Dev {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		h, err := header(p, rel, &st, links)
		if err != nil || h == nil {
			return err
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if h.Typeflag == tar.TypeReg {
			if err := copyFile(tw, p, h.Size); err != nil {
				return err
			}
		}
		if d.IsDir() && (rel == "dev" || rel == "proc" || rel == "sys") {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return durable.Explain(root, err)
	}
	return tw.Close()
}

// header describes p, or returns nil for what a tar cannot hold.
func header(p, rel string, st *unix.Stat_t, links map[uint64]string) (*tar.Header, error) {
	h := &tar.Header{Name: "./" + rel, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), Format: tar.FormatPAX}
	h.ModTime = timeOf(st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, "./"
		if rel != "." {
			h.Name = "./" + rel + "/"
		}
	case unix.S_IFLNK:
		to, err := os.Readlink(p)
		if err != nil {
			return nil, err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		if st.Nlink > 1 {
			if first, ok := links[st.Ino]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
				return h, nil
			}
			links[st.Ino] = h.Name
		}
	default:
		return nil, nil
	}
	return h, xattrs(p, h)
}

func xattrs(p string, h *tar.Header) error {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: p, Err: err}
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		v := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(p, name, v)
		if err != nil {
			return &os.PathError{Op: "getxattr", Path: p, Err: err}
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(v[:k])
	}
	return nil
}

func copyFile(w io.Writer, p string, size int64) error {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(w, io.LimitReader(f, size))
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	if n != size {
		return fmt.Errorf("%s became shorter while it was read", p)
	}
	return nil
}

func timeOf(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }
