package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// Swapped returns a copy of dir, which is an unpacked layer or a skeleton of this
// store, in which owners uid and 0, and groups gid and 0, are exchanged. It is made
// once; begin is called when it has to be. Where mounts cannot translate owners,
// this takes their place: it costs a copy, on file systems that can share content
// only one of the names.
func (s *Store) Swapped(ctx context.Context, dir string, uid, gid uint32, begin func()) (string, error) {
	from := filepath.Base(filepath.Dir(dir))
	if filepath.Join(s.dir, from, "fs") != dir {
		return "", fmt.Errorf("%s is no layer of %s", dir, s.dir)
	}
	name := fmt.Sprintf("%s-%d-%d", from, uid, gid)
	out := filepath.Join(s.dir, name, "fs")
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(name), durable.Exclusive)
	if err != nil {
		return "", err
	}
	defer l.Unlock()
	if s.whole(name) {
		return out, nil
	}
	if err := s.discard(name); err != nil {
		return "", err
	}
	begin()
	return out, s.publish(name, func(tmp string) error {
		c := copier{from: dir, to: filepath.Join(tmp, "fs"), uid: uid, gid: gid, seen: map[uint64]string{}}
		if err := c.tree(ctx); err != nil {
			return explain(s.dir, err)
		}
		return nil
	})
}

// A copier copies a tree that nobody writes to.
type copier struct {
	from, to string
	uid, gid uint32
	seen     map[uint64]string // copies of files with several names, by inode
}

func (c *copier) tree(ctx context.Context) error {
	type made struct {
		path string
		st   unix.Stat_t
	}
	var dirs []made
	err := filepath.WalkDir(c.from, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.from, p)
		if err != nil {
			return err
		}
		to := filepath.Join(c.to, rel)
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if rel != "." {
				if err := os.Mkdir(to, 0o700); err != nil {
					return err
				}
			}
			dirs = append(dirs, made{to, st})
			return copyXattrs(p, to)
		}
		if err := c.entry(p, to, &st); err != nil {
			return err
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		err = c.attributes(dirs[i].path, &dirs[i].st)
	}
	return err
}

// entry copies something that is no directory.
func (c *copier) entry(from, to string, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		if first, ok := c.seen[st.Ino]; ok {
			return os.Link(first, to)
		}
		c.seen[st.Ino] = to
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := copyFile(from, to); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
	case unix.S_IFIFO, unix.S_IFCHR: // the only devices in a layer are whiteouts
		if err := unix.Mknod(to, st.Mode&(unix.S_IFMT|0o777), int(st.Rdev)); err != nil {
			return &os.PathError{Op: "mknod", Path: to, Err: err}
		}
	default:
		return fmt.Errorf("%s is of a kind that no layer has", from)
	}
	if err := c.attributes(to, st); err != nil {
		return err
	}
	return copyXattrs(from, to)
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(w.Fd()), int(r.Fd())) != nil {
		_, err = io.Copy(w, r)
	}
	return errors.Join(err, w.Close())
}

// attributes gives p the owner that st's is exchanged for, and the rest of st.
func (c *copier) attributes(p string, st *unix.Stat_t) error {
	if err := unix.Lchown(p, int(exchange(st.Uid, c.uid)), int(exchange(st.Gid, c.gid))); err != nil {
		return &os.PathError{Op: "chown", Path: p, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(p, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: p, Err: err}
		}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: p, Err: err}
	}
	return nil
}

func exchange(id, with uint32) uint32 {
	switch id {
	case 0:
		return with
	case with:
		return 0
	}
	return id
}

// copyXattrs copies what overlayfs reads, and capabilities of programs: those are
// of the user namespace that they were set in.
func copyXattrs(from, to string) error {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(from, buf)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: from, Err: err}
	}
	v := make([]byte, 64<<10)
	start := 0
	for i, b := range buf[:n] {
		if b != 0 {
			continue
		}
		name := string(buf[start:i])
		start = i + 1
		k, err := unix.Lgetxattr(from, name, v)
		if err == nil {
			err = unix.Lsetxattr(to, name, v[:k], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !(errors.Is(err, unix.EPERM) && name != "security.capability") {
			return &os.PathError{Op: "setxattr " + name, Path: to, Err: err}
		}
	}
	return nil
}
