package inside

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lock makes mounts such that nobody in the machine can change them, a root with
// every capability included: read-only ones stay read-only, and what lies over
// part of another stays there. The kernel locks mounts that are copied into the
// mount namespace of another user namespace, so a process in one of its own copies
// them and hands them back.
func lock(c *Config) error {
	var paths []string
	for _, m := range c.Mounts {
		inner := false
		for _, p := range paths {
			inner = inner || strings.HasPrefix(path.Clean(m.Path)+"/", p+"/") // comes along
		}
		if !inner && (m.ReadOnly || len(m.Covers) > 0) {
			paths = append(paths, path.Clean(m.Path))
		}
	}
	if !c.Locked || len(paths) == 0 {
		return nil
	}
	uids, err := ownIDs("/proc/self/uid_map")
	if err != nil {
		return err
	}
	gids, err := ownIDs("/proc/self/gid_map")
	if err != nil {
		return err
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(p[0]), "lock"), os.NewFile(uintptr(p[1]), "lock")
	defer ours.Close()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{"kit-guest", "lock"}, paths...), Env: []string{}, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: uids, GidMappings: gids}}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return fmt.Errorf("locking mounts: %w", err)
	}
	defer func() { _ = cmd.Wait() }()
	nc, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	defer nc.Close()
	fds, err := receive(nc.(*net.UnixConn), len(paths))
	if err != nil {
		return fmt.Errorf("locking mounts: %w", err)
	}
	for i, at := range paths {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("locking %s: %w", at, err)
		}
		err := over(fds[i], at)
		unix.Close(fds[i])
		if err != nil {
			return err
		}
	}
	return nil
}

// Lock is the process that [lock] starts: it sends mounts of paths on descriptor
// 3.
func Lock(u *net.UnixConn, paths []string) error {
	var files []*os.File
	for _, p := range paths {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("taking %s: %w", p, err)
		}
		files = append(files, os.NewFile(uintptr(fd), p))
	}
	return SendFiles(u, files)
}

// ownIDs maps the ids in file, which are those of this user namespace to themselves.
func ownIDs(file string) ([]syscall.SysProcIDMap, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var ids []syscall.SysProcIDMap
	for line := range strings.Lines(string(b)) {
		var in, out, n int
		if _, err := fmt.Sscan(line, &in, &out, &n); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		ids = append(ids, syscall.SysProcIDMap{ContainerID: in, HostID: in, Size: n})
	}
	return ids, nil
}
