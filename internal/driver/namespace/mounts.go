package namespace

import (
	"errors"
	"fmt"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// check judges what can be judged without touching the host.
func check(m plan.Machine) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !validID(m.ID) {
		bad("machine id %q: want letters, digits, '-', '_' and '.', no '.' or '-' first", m.ID)
	}
	if len(m.Hostname) > 64 {
		bad("hostname %q: more than 64 bytes", m.Hostname)
	}
	if len(m.Layers) == 0 {
		bad("no layers")
	}
	// The kernel's bound on one overlay.
	if len(m.Layers) > 500 {
		bad("%d layers: more than 500", len(m.Layers))
	}
	for _, l := range m.Layers {
		if !path.IsAbs(l) {
			bad("layer %q: not absolute", l)
		} else if st, err := os.Stat(l); err != nil {
			bad("layer %s: %w", l, err)
		} else if !st.IsDir() {
			bad("layer %s: not a directory", l)
		}
	}
	for _, mt := range m.Mounts {
		if !path.IsAbs(mt.Path) || path.Clean(mt.Path) == "/" {
			bad("mount %q: not an absolute path below /", mt.Path)
		}
		switch mt.Kind {
		case plan.MountBind:
			if !path.IsAbs(mt.Source) {
				bad("mount %s: source %q is not absolute", mt.Path, mt.Source)
			}
		case plan.MountTmpfs:
			if mt.SizeBytes < 0 {
				bad("mount %s: negative size", mt.Path)
			}
		default:
			bad("mount %s: unknown kind %q", mt.Path, mt.Kind)
		}
	}
	for _, f := range m.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) == "/" {
			bad("file %q: not an absolute path", f.Path)
		}
	}
	if err := inside.CheckCapabilities(m.Capabilities); err != nil {
		bad("%w", err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("machine %s: %w", m.ID, errors.Join(errs...))
	}
	return nil
}

// mapping is how mounts of a machine translate ids.
type mapping struct {
	ids     plan.IDMap
	machine *os.File // the machine's user namespace
	guest   string   // path of the guest's program, for owner maps
}

// describe turns a plan into what the guest is told, and the mounts that go
// with it. The caller closes the files.
func describe(p plan.Machine, writable string, mp mapping) (c *inside.Config, files []*os.File, unenforced []string, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	caps := p.Capabilities
	if len(caps) == 0 {
		caps = inside.DefaultCapabilities()
	}
	c = &inside.Config{Hostname: p.Hostname, Layers: len(p.Layers), Capabilities: caps}
	add := func(source string, attr unix.MountAttr) error {
		f, err := detached(source, attr)
		if err == nil {
			files = append(files, f)
		}
		return err
	}
	shift := unix.MountAttr{}
	if !p.IDMap.IsIdentity() {
		shift = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(mp.machine.Fd())}
	}
	for _, l := range p.Layers {
		attr := shift
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		if err := add(l, attr); err != nil {
			return nil, files, nil, fmt.Errorf("layer %s: %w", l, err)
		}
	}
	// Never shifted: the overlay writes to it as the machine's own root, to
	// whom it belongs. With a shift the kernel mounts it read-only, silently.
	if err := add(writable, unix.MountAttr{}); err != nil {
		return nil, files, nil, fmt.Errorf("writable layer: %w", err)
	}
	for _, m := range p.Mounts {
		im := inside.Mount{Path: m.Path, ReadOnly: m.ReadOnly, Size: m.SizeBytes, Mode: m.Mode, UID: m.UID, GID: m.GID}
		if m.Kind == plan.MountBind {
			st, err := os.Stat(m.Source)
			if err != nil {
				return nil, files, nil, fmt.Errorf("mount %s: source %s: %w", m.Path, m.Source, err)
			}
			im.Bind, im.File = true, !st.IsDir()
			attr := shift
			attr.Attr_set |= unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
			if m.ReadOnly {
				attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
			}
			note, err := addBind(m, attr, p.IDMap, mp, add)
			if err != nil {
				return nil, files, nil, fmt.Errorf("mount %s: %w", m.Path, err)
			}
			if note != "" {
				unenforced = append(unenforced, note)
			}
		}
		if m.Kind == plan.MountTmpfs && im.Size == 0 && p.Limits.MemoryBytes > 0 {
			im.Size = p.Limits.MemoryBytes / 2
		}
		c.Mounts = append(c.Mounts, im)
	}
	for _, f := range p.Files {
		c.Files = append(c.Files, inside.File(f))
	}
	return c, files, unenforced, nil
}

// addBind adds a bind with the ownership its plan asks for. note says what of
// it does not hold.
func addBind(m plan.Mount, attr unix.MountAttr, ids plan.IDMap, mp mapping, add func(string, unix.MountAttr) error) (note string, err error) {
	o := m.Owner
	if o == nil {
		return "", add(m.Source, attr)
	}
	if ids.IsIdentity() {
		if o.HostUID != o.MachineUID || o.HostGID != o.MachineGID {
			note = fmt.Sprintf("owner of %s: files of user %d stay theirs inside, since only the system's root can translate owners of a mount", m.Path, o.HostUID)
		}
		return note, add(m.Source, attr)
	}
	ns, err := ownerNamespace(mp.guest, o, ids.Base)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	attr.Userns_fd = uint64(ns.Fd())
	return "", add(m.Source, attr)
}

// detached returns a mount of source, and all below it, that is attached
// nowhere.
func detached(source string, attr unix.MountAttr) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		if err == unix.ENOSYS {
			return nil, fmt.Errorf("this kernel is too old, 5.12 is needed: %w", kiterr.ErrUnavailable)
		}
		return nil, fmt.Errorf("taking a mount of %s: %w", source, err)
	}
	f := os.NewFile(uintptr(fd), source)
	if attr.Attr_set == 0 {
		return f, nil
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		f.Close()
		if err == unix.EINVAL && attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 {
			return nil, fmt.Errorf("the filesystem of %s, or one mounted below it, cannot shift ids; use ext4, xfs, btrfs or tmpfs: %w", source, kiterr.ErrUnavailable)
		}
		return nil, fmt.Errorf("setting attributes of a mount of %s: %w", source, err)
	}
	return f, nil
}

func closeAll(fs []*os.File) {
	for _, f := range fs {
		f.Close()
	}
}

func isErrno(err error, e syscall.Errno) bool { return errors.Is(err, e) }
