package durable

import (
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoveTree deletes path and all below it. A path that is not there is no
// error. Symbolic links are deleted and never followed.
//
// Sandboxes make the trees that are deleted with it, and a sandbox can make one
// that is deeper than a path may be long or than a process may have files open.
// So directories are not descended into: what is in one is moved up to path,
// and however deep the tree is, three descriptors are open. A kill in between
// leaves a tree that the next RemoveTree deletes.
func RemoveTree(path string) error {
	if gone(unix.AT_FDCWD, path) {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.EACCES && unix.Chmod(path, 0o700) == nil {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	top := os.NewFile(uintptr(fd), path)
	defer top.Close()
	up := 0
	for {
		empty, err := each(top, func(name string) error { return flatten(top, name, &up) })
		if errors.Is(err, unix.ENOENT) && gone(unix.AT_FDCWD, path) {
			return nil // by another process that sweeps
		}
		if err != nil {
			return &os.PathError{Op: "remove", Path: path, Err: err}
		}
		if empty {
			break
		}
	}
	if err := unix.Rmdir(path); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// flatten deletes name in top, a directory after its own directories have been
// moved to top. up counts those.
func flatten(top *os.File, name string, up *int) error {
	if gone(int(top.Fd()), name) {
		return nil
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(top.Fd()), name, flags, 0)
	if err == unix.EACCES && unix.Fchmodat(int(top.Fd()), name, 0o700, 0) == nil {
		fd, err = unix.Openat(int(top.Fd()), name, flags, 0)
	}
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		empty, err := each(dir, func(child string) error {
			if gone(fd, child) {
				return nil
			}
			for {
				*up++
				err := unix.Renameat2(fd, child, int(top.Fd()), ".up-"+strconv.Itoa(*up), unix.RENAME_NOREPLACE)
				if err == unix.EACCES && unix.Fchmodat(fd, child, 0o700, 0) == nil {
					// Moving a directory writes its "..".
					err = unix.Renameat2(fd, child, int(top.Fd()), ".up-"+strconv.Itoa(*up), unix.RENAME_NOREPLACE)
				}
				switch err {
				case unix.EEXIST:
					continue
				case unix.ENOENT:
					return nil
				}
				return err
			}
		})
		if err != nil {
			return err
		}
		if empty {
			break
		}
	}
	if err := unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// each calls f with every name that is in dir now, from its beginning, and
// reports whether there was none.
func each(dir *os.File, f func(name string) error) (empty bool, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	for empty = true; ; {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			empty = false
			if err := f(name); err != nil {
				return false, err
			}
		}
		if errors.Is(err, io.EOF) {
			return empty, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// gone deletes name in dir if that takes one step, and reports whether nothing
// is there now.
func gone(dir int, name string) bool {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	return err == nil || err == unix.ENOENT
}
