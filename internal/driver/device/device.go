// Package device takes character devices of the host for machines, as mounts that
// are attached nowhere.
//
// A machine gets a node that is its own where this process may make one: with the
// number of the host's and open to everybody in the machine, since on the host it
// often belongs to a group that the machine has not. Otherwise, as for an ordinary
// user, it gets the host's node, with the permissions that it has there. Neither
// can be changed from inside.
package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Node is a device as it is now.
type Node struct {
	plan.Device
	Major, Minor uint32
	Mount        *os.File // of the node, attached nowhere
}

// Close closes the mounts of ns. It does no harm to close them twice.
func Close(ns []Node) {
	for _, n := range ns {
		if n.Mount != nil {
			n.Mount.Close()
		}
	}
}

// Usable reports why nobody in a machine of this process's could use the node at
// path, which the error names; nil: it can be used.
func Usable(path string) error {
	_, err := look(path)
	return err
}

// makes reports whether this process may make nodes. Only the system's root can.
func makes() bool { return os.Geteuid() == 0 && userns.Initial() }

func look(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return st, &fs.PathError{Op: "looking for the device", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return st, fmt.Errorf("%s is no character device: %w", path, kiterr.ErrRefused)
	}
	if !makes() && !open(st, true) {
		return st, fmt.Errorf("%s is there, but neither everybody nor you alone may use it: give it mode 0666 by a udev rule, or run kitbox as root: %w", path, kiterr.ErrUnavailable)
	}
	return st, nil
}

// open reports whether whoever works in a machine may use the host's own node st. A
// machine does not have the groups of the user who runs kitbox; with ours, that user
// is one of its own, as for an ordinary user.
func open(st unix.Stat_t, ours bool) bool {
	return st.Mode&0o006 == 0o006 || ours && st.Uid == uint32(os.Geteuid()) && st.Mode&0o600 == 0o600
}

// Take takes ds. unenforced has a line for each optional one that cannot be had,
// which is left out, and for each that can be written to although it should not.
// The caller closes what is returned.
func Take(ds []plan.Device) (ns []Node, unenforced []string, err error) {
	defer func() {
		if err != nil {
			Close(ns)
			ns = nil
		}
	}()
	for _, d := range ds {
		st, err := look(d.Source)
		if err != nil && d.Optional {
			unenforced = append(unenforced, fmt.Sprintf("device %s: %v", d.Path, err))
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("device %s: %w; 'kitbox recreate' plans with what this machine has now", d.Path, err)
		}
		ns = append(ns, Node{Device: d, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)})
	}
	if len(ns) == 0 {
		return nil, unenforced, nil
	}
	if makes() {
		err := ownthread.Run(func() error { return makeNodes(ns) })
		if err == nil || !errors.Is(err, unix.EPERM) {
			return ns, unenforced, err
		}
		// A container around this process may lack CAP_MKNOD.
		Close(ns)
	}
	for i := range ns {
		n := &ns[i]
		var st unix.Stat_t
		if err := unix.Stat(n.Source, &st); err != nil || !open(st, !makes()) {
			return ns, nil, fmt.Errorf("device %s: %s is not open to everybody, and no node of the machine's own can be made: give it mode 0666 by a udev rule: %w", n.Path, n.Source, kiterr.ErrUnavailable)
		}
		if n.Mount, err = idmap.Detached(n.Source, unix.MountAttr{Attr_set: attributes}); err != nil {
			return ns, nil, fmt.Errorf("device %s: %w", n.Path, err)
		}
		if n.ReadOnly {
			unenforced = append(unenforced, fmt.Sprintf("device %s: it can be written to, since it is the host's node", n.Path))
		}
	}
	return ns, unenforced, nil
}

// attributes keep a node from being changed; they do not keep a device from being
// written to. Programs map devices to be executed, so that is not forbidden.
const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID

// stage is laid over by the thread that makes nodes. Every system that could have a
// machine has it.
const stage = "/proc"

// makeNodes makes nodes for ns in a filesystem of their own. No mount of it is ever
// seen but by this thread, which ends with it.
func makeNodes(ns []Node) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("devices", stage, "tmpfs", unix.MS_NOSUID, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mounting a place for devices: %w", err)
	}
	for i := range ns {
		n := &ns[i]
		p := stage + "/" + strconv.Itoa(i)
		mode := uint32(0o666)
		if n.ReadOnly {
			mode = 0o444
		}
		if err := unix.Mknod(p, unix.S_IFCHR|mode, int(unix.Mkdev(n.Major, n.Minor))); err != nil {
			return fmt.Errorf("making the node of %s: %w", n.Path, err)
		}
		if err := unix.Chmod(p, mode); err != nil { // whatever the umask is
			return fmt.Errorf("making the node of %s: %w", n.Path, err)
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("taking the node of %s: %w", n.Path, err)
		}
		if n.Mount, err = idmap.With(os.NewFile(uintptr(fd), n.Source), unix.MountAttr{Attr_set: attributes}); err != nil {
			return err
		}
	}
	return nil
}
