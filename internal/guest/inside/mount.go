package inside

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Build makes the machine's filesystem around this process. fds are those of
// the Config's comment; Build closes them. On error the process is of no
// further use.
func Build(c *Config, fds []int) error {
	if len(fds) != c.files() || c.Layers < 1 {
		return fmt.Errorf("%d descriptors for %d layers and %d mounts", len(fds), c.Layers, len(c.Mounts))
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// These three need the host's view once more: the kernel gives a user
	// namespace a new procfs or sysfs only beside one that is fully visible.
	proc, err := filesystem("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("making /proc: the container around this program hides parts of its own /proc, so no new one is allowed: %w", err)
	}
	if err != nil {
		return fmt.Errorf("making /proc: %w", err)
	}
	// Read-only: most of it is the host's.
	sys, sysErr := filesystem("sysfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_RDONLY)
	nodes, err := cloneNodes()
	if err != nil {
		return err
	}

	program, err := Program(c.Files)
	if err != nil {
		return err
	}
	if err := root(fds[:c.Layers], fds[c.Layers], c.Volatile); err != nil {
		return err
	}
	// From here on every path is the machine's own. Whatever its links say,
	// nothing of the host can be named any more.
	if err := WriteFiles(c.Files, program); err != nil {
		return err
	}
	if err := attach(proc, "/proc"); err != nil {
		return err
	}
	// A kernel that refuses sysfs (it can, under another container's masks)
	// leaves the machine without one.
	if sysErr == nil {
		if err := attach(sys, "/sys"); err != nil {
			return err
		}
		if c.Cgroup2 || c.Groups {
			// Without one, programs do not know their limits; no more.
			attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
			if !c.Groups {
				attrs |= unix.MOUNT_ATTR_RDONLY
			}
			if fd, err := filesystem("cgroup2", attrs); err == nil {
				_ = over(fd, "/sys/fs/cgroup")
				unix.Close(fd)
			}
		}
	}
	if err := devices(nodes, c.OneID); err != nil {
		return err
	}
	if err := ensureDir("/tmp", 0o1777); err != nil {
		return err
	}
	sysctls(c.OneID)
	rest := fds[c.Layers+1:]
	for _, m := range c.Mounts {
		fd := -1
		if m.Bind {
			fd, rest = rest[0], rest[1:]
		}
		if err := mount(m, fd); err != nil {
			return fmt.Errorf("mounting %s: %w", m.Path, err)
		}
	}
	if err := covers(c, rest); err != nil {
		return err
	}
	if err := lock(c); err != nil {
		return err
	}
	return mask(c.Locked)
}

// root makes the layers and the writable directory the root and lets go of the
// host's.
func root(layers []int, writable int, volatile bool) error {
	// The stage hides a directory of the host from this process only.
	stage := ""
	for _, dir := range []string{"/tmp", "/run", "/var", "/mnt", "/proc"} {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			stage = dir
			break
		}
	}
	if err := unix.Mount("stage", stage, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a stage: %w", err)
	}
	if err := unix.Chdir(stage); err != nil {
		return fmt.Errorf("entering the stage: %w", err)
	}
	// Short relative names: the kernel takes one page of options.
	lower := make([]string, len(layers))
	for i, fd := range layers {
		name := strconv.Itoa(i)
		if err := attachAt(fd, name); err != nil {
			return fmt.Errorf("attaching layer %d: %w", i, err)
		}
		lower[len(layers)-1-i] = name // overlay wants the highest first
	}
	if err := attachAt(writable, "rw"); err != nil {
		return fmt.Errorf("attaching the writable layer: %w", err)
	}
	if err := os.Mkdir("root", 0o755); err != nil {
		return err
	}
	opts := "userxattr,lowerdir=" + strings.Join(lower, ":") + ",upperdir=rw/upper,workdir=rw/work"
	err := error(unix.EINVAL)
	if volatile {
		// Without it the end of the mount writes out all that the whole file
		// system below has to write, anybody's. Kernels before 5.10 do not
		// know the word.
		err = unix.Mount("overlay", "root", "overlay", 0, opts+",volatile")
	}
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", "root", "overlay", 0, opts)
	}
	if err != nil {
		return fmt.Errorf("mounting the root overlay of %d layers: %w", len(layers), err)
	}
	if err := unix.Chdir("root"); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	// The old root lies on top of the new one now.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("letting go of the host's root: %w", err)
	}
	return unix.Chdir("/")
}

// filesystem makes a mount that is attached nowhere. Options are name, value
// pairs.
func filesystem(kind string, attrs int, options ...string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for i := 0; i+1 < len(options); i += 2 {
		if options[i+1] == "" {
			err = unix.FsconfigSetFlag(fs, options[i])
		} else {
			err = unix.FsconfigSetString(fs, options[i], options[i+1])
		}
		if err != nil {
			return -1, fmt.Errorf("option %s: %w", options[i], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

// attachAt attaches a mount and closes its descriptor.
func attachAt(fd int, name string) error {
	defer unix.Close(fd)
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// attach attaches a mount over a directory, made if need be, and closes its
// descriptor.
func attach(fd int, dir string) error {
	defer unix.Close(fd)
	if err := ensureDir(dir, 0o755); err != nil {
		return err
	}
	return over(fd, dir)
}

func over(fd int, p string) error {
	// Not through a link at the end of p: whoever makes one, an image or a
	// former run, would choose what is mounted over.
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		if st, lerr := os.Lstat(p); lerr == nil && st.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("mounting %s: it is a symbolic link in the image, and has to be a directory", p)
		}
		return fmt.Errorf("mounting %s: %w", p, err)
	}
	return nil
}

// ensureDir makes dir with mode if nothing is there.
func ensureDir(dir string, mode uint32) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return fmt.Errorf("%s is no directory in the image", dir)
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return unix.Chmod(dir, mode)
}

// mount lays one requested mount. fd is that of a bind.
func mount(m Mount, fd int) error {
	if m.Bind {
		defer unix.Close(fd)
		if !m.File {
			if err := ensureDir(m.Path, 0o755); err != nil {
				return err
			}
			return over(fd, m.Path)
		}
		if err := ensureFile(m.Path); err != nil {
			return err
		}
		return over(fd, m.Path)
	}
	mode := m.Mode
	if mode == 0 {
		mode = 0o755
	}
	options := []string{"mode", strconv.FormatUint(uint64(mode), 8),
		"uid", strconv.FormatUint(uint64(m.UID), 10), "gid", strconv.FormatUint(uint64(m.GID), 10)}
	if m.Size > 0 {
		options = append(options, "size", strconv.FormatInt(m.Size, 10))
	}
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if m.ReadOnly {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	fd, err := filesystem("tmpfs", attrs, options...)
	if err != nil {
		return err
	}
	return attach(fd, m.Path)
}

// ensureFile makes an empty file to mount over if nothing is there.
func ensureFile(p string) error {
	if _, err := os.Stat(p); err == nil {
		return nil
	}
	if err := os.MkdirAll(path.Dir(p), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(p, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// Finish does what is left to do in a machine that somebody else built: it locks its
// mounts and writes its files. A file that lies in a mount is left alone: that is not
// the machine's own, and hides the file. program is as for [WriteFiles].
func Finish(c *Config, program *os.File) error {
	if err := lock(c); err != nil {
		return err
	}
	var own []File
	for _, f := range c.Files {
		hidden := false
		if !f.Java { // a pattern, whose stores are judged one by one
			var err error
			if hidden, err = inMount(f); err != nil {
				return fmt.Errorf("writing %s: %w", f.Path, err)
			}
		}
		if !hidden {
			own = append(own, f)
		}
	}
	return WriteFiles(own, program)
}

// inMount reports whether writing f would change something that is mounted below the
// root.
func inMount(f File) (bool, error) {
	p := f.Path
	if at, err := filepath.EvalSymlinks(p); err == nil && (f.Append || f.Optional) {
		p = at
	}
	var root unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_MNT_ID, &root); err != nil {
		return false, err
	}
	// The file itself, through no link, and else the first directory on the way
	// to it that is there.
	for flags := unix.AT_SYMLINK_NOFOLLOW; ; flags = 0 {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, p, flags, unix.STATX_MNT_ID, &st)
		if err == nil && (st.Mnt_id != root.Mnt_id || flags == 0) {
			return st.Mnt_id != root.Mnt_id, nil
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, err
		}
		p = path.Dir(p)
	}
}
