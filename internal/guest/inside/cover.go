package inside

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The kinds of covers, as in internal/plan.
const (
	CoverHide = "hide" // an empty file or directory in its place
	CoverKeep = "keep" // read-only, and not to be moved
	CoverPin  = "pin"  // not to be moved
)

// A Cover is laid over one path below a mount.
type Cover struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Dir  bool   `json:"dir,omitempty"`
}

// An Empty returns a detached mount of an empty directory or file.
type Empty func(dir bool) (int, error)

// Lay lays covers below root, a descriptor of a directory, in the mount namespace
// of the calling thread. A mount point can be neither moved nor removed, and it
// takes a privilege that the machine does not have to change one. What has gone
// is left out; what is covered already stays as it is, so that laying twice does
// nothing.
func Lay(root int, cs []Cover, empty Empty) error {
	for _, c := range cs {
		if err := lay(root, c, empty); err != nil {
			return fmt.Errorf("covering %s: %w", c.Path, err)
		}
	}
	return nil
}

func lay(root int, c Cover, empty Empty) error {
	// Through no link: whoever can write here could have made one since.
	at, err := unix.Openat2(root, c.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Statx_t
	if err := unix.Statx(at, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_INO, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	var fd int
	if c.Kind == CoverHide {
		if fd, err = empty(st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
			return err
		}
		defer unix.Close(fd)
		var over unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &over); err != nil {
			return err
		}
		if mounted && over.Ino == st.Ino && over.Dev_major == st.Dev_major && over.Dev_minor == st.Dev_minor {
			return nil
		}
	} else {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(at, &fs); err != nil {
			return err
		}
		if mounted && (c.Kind == CoverPin || fs.Flags&unix.ST_RDONLY != 0) {
			return nil
		}
		if fd, err = unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE); err != nil {
			return err
		}
		defer unix.Close(fd)
		if c.Kind == CoverKeep {
			if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
				return err
			}
		}
	}
	err = unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed this instant
	}
	return err
}

// The places of the empties while a machine is built.
const (
	emptyFile = "/dev/.kitbox-empty"
	emptyDir  = "/dev/.kitbox-empty.d"
)

// covers lays what c asks for over its mounts. fds are the empty file and the
// empty directory, if anything is hidden.
func covers(c *Config, fds []int) (err error) {
	if len(fds) == 2 {
		if err := ensureFile(emptyFile); err != nil {
			return err
		}
		if err := errors.Join(over(fds[0], emptyFile), attach(fds[1], emptyDir)); err != nil {
			return err
		}
		unix.Close(fds[0])
		defer func() {
			err = errors.Join(err, unix.Unmount(emptyFile, unix.MNT_DETACH), unix.Unmount(emptyDir, unix.MNT_DETACH),
				os.Remove(emptyFile), os.Remove(emptyDir))
		}()
	}
	empty := func(dir bool) (int, error) {
		p := emptyFile
		if dir {
			p = emptyDir
		}
		return unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	}
	for _, m := range c.Mounts {
		if len(m.Covers) == 0 {
			continue
		}
		root, err := unix.Open(m.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening %s: %w", m.Path, err)
		}
		err = Lay(root, m.Covers, empty)
		unix.Close(root)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
	}
	return nil
}
