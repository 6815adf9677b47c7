// Package idmap makes mounts that translate owners, attached nowhere: a
// descriptor is all there is of them, so nothing has to be cleaned up.
package idmap

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Shift returns a user namespace with the map m, which is not the identity.
// guest is the path of kit-guest. The namespace exists as long as the file.
func Shift(guest string, m plan.IDMap) (*os.File, error) {
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(m.Base), Size: int(m.Size)}}
	return hold(guest, one, one)
}

// Owner returns a user namespace that maps the host's user and group of o to
// those of the machine, whose ids are m. The machine's other ids stay what they are
// outside, where nobody else has them: without that, a file that one of them makes
// would have no owner, and making it fails with EOVERFLOW. No two ids of a machine can be one
// of the host: the kernel wants maps that can be read both ways. Whoever owns the
// directory gets such files from internal/driver/owners.
func Owner(guest string, o *plan.OwnerMap, m plan.IDMap) (*os.File, error) {
	return hold(guest, tied(o.HostUID, o.MachineUID, m), tied(o.HostGID, o.MachineGID, m))
}

// tied maps host to the machine's id, and to themselves the machine's other ids as the
// host has them, but for host, should it be one of them.
func tied(host, id uint32, m plan.IDMap) []syscall.SysProcIDMap {
	maps := []syscall.SysProcIDMap{{ContainerID: int(host), HostID: int(m.Base + id), Size: 1}}
	from, end := int(m.Base), int(m.Base)+int(m.Size)
	for _, hole := range []int{min(int(host), int(m.Base+id)), max(int(host), int(m.Base+id)), end} {
		if hole < from || hole > end {
			continue
		}
		if hole > from {
			maps = append(maps, syscall.SysProcIDMap{ContainerID: from, HostID: from, Size: hole - from})
		}
		from = hole + 1
	}
	return maps
}

// hold makes a user namespace. It takes a process to make one with; this one
// waits for the end of its stdin, and nobody waits for it: it is ended with this function.
func hold(guest string, uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	cmd := exec.Command(guest, "hold")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: uids,
		GidMappings: gids,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		in.Close()
		return nil, fmt.Errorf("making a user namespace for an id map: %w", userns.Explain(err))
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	in.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return ns, err
}

// Straight is Detached of a directory that people name, such as a workspace:
// source has to be what it was when it was recorded, without a symbolic link
// anywhere in it. What a sandbox may write to, it could have made into a link to
// anywhere since.
func Straight(source string, attr unix.MountAttr) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == unix.ELOOP {
		return nil, fmt.Errorf("%s leads through a symbolic link now, which it did not when the sandbox was made: %w", source, kiterr.ErrRefused)
	}
	if err != nil {
		return nil, fmt.Errorf("taking a mount of %s: %w", source, err)
	}
	f := os.NewFile(uintptr(fd), source)
	defer f.Close()
	return Detached(fmt.Sprintf("/proc/self/fd/%d", fd), attr)
}

// Detached returns a mount of source, and of all that is mounted below it, with
// attributes attr, that is attached nowhere.
func Detached(source string, attr unix.MountAttr) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		if err == unix.ENOSYS {
			return nil, fmt.Errorf("this kernel is too old, 5.12 is needed: %w", kiterr.ErrUnavailable)
		}
		return nil, fmt.Errorf("taking a mount of %s: %w", source, err)
	}
	return With(os.NewFile(uintptr(fd), source), attr)
}

// With gives f, a mount that is attached nowhere and has the name of its source,
// the attributes attr. On error f is closed.
func With(f *os.File, attr unix.MountAttr) (*os.File, error) {
	if attr.Attr_set == 0 {
		return f, nil
	}
	source := f.Name()
	if err := unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		f.Close()
		if err == unix.EINVAL && attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 {
			return nil, fmt.Errorf("the filesystem of %s, or one mounted below it, cannot shift ids; use ext4, xfs, btrfs or tmpfs: %w", source, kiterr.ErrUnavailable)
		}
		return nil, fmt.Errorf("setting attributes of a mount of %s: %w", source, err)
	}
	return f, nil
}
