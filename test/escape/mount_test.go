package escape

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// privately runs f on a thread with a mount namespace of its own.
func privately(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("a mount namespace: %w", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			done <- fmt.Errorf("a private root: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// place for mounts, which exists everywhere.
const mountpoint = "/tmp"

// mounts are attempts with file systems. In the plain sandbox there must be no
// mount at all; in the strong one, none that leads out.
func mounts() []attempt {
	try := func(in place, name, tries string, f func(w *world) error) attempt {
		return attempt{name: "mount-" + name, tries: tries, in: in, at: host, attack: f, control: func(w *world) error {
			return privately(func() error { return f(w) })
		}}
	}
	strongly := func(name, tries string, f func(w *world) error) attempt {
		a := try(strong, name, tries, f)
		a.attack = a.control
		return a
	}
	mounted := func(kind, data string, then func() error) func(w *world) error {
		return func(*world) error {
			if err := unix.Mount("none", mountpoint, kind, 0, data); err != nil {
				if errors.Is(err, unix.ENODEV) {
					return fmt.Errorf("%w: %w", errMissing, err)
				}
				return err
			}
			if then == nil {
				return nil
			}
			return then()
		}
	}
	return []attempt{
		try(plain, "tmpfs", "a file system of one's own", mounted("tmpfs", "", nil)),
		try(plain, "proc", "a fresh /proc", mounted("proc", "", nil)),
		try(plain, "bind", "a directory at another place", func(*world) error {
			return unix.Mount("/etc", mountpoint, "", unix.MS_BIND, "")
		}),
		try(plain, "new-api", "a file system by the newer calls", func(*world) error {
			fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}),
		try(plain, "open-tree", "a copy of the tree of mounts", func(*world) error {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}),
		try(plain, "unmask", "taking away what hides a file of the kernel's", func(*world) error {
			if err := unix.Mount("none", mountpoint, "tmpfs", 0, ""); err != nil && outdoors() {
				return broken(err)
			}
			return anyOf(unix.Unmount("/proc/kcore", 0), unix.Unmount("/proc/sys", 0), unix.Unmount(mountpoint, 0))
		}),
		try(plain, "remount", "writing to what is read-only", func(*world) error {
			if outdoors() {
				if err := unix.Mount("none", mountpoint, "tmpfs", unix.MS_RDONLY, ""); err != nil {
					return broken(err)
				}
				return unix.Mount("", mountpoint, "", unix.MS_REMOUNT, "")
			}
			return anyOf(unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""), unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		}),
		try(plain, "device", "a device file for a disk", func(*world) error {
			const path = "/tmp/escape-device"
			defer os.Remove(path)
			if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
				return err
			}
			err := opened(path, unix.O_RDONLY)
			if outdoors() && errors.Is(err, unix.EPERM) {
				return fmt.Errorf("%w: %w", errMissing, err)
			}
			return err
		}),
		try(plain, "leave-the-root", "leaving the root directory by a second one", leaveRoot),
		strongly("core-pattern-by-fresh-proc", "the kernel's program for crashes, by a /proc of one's own", mounted("proc", "", func() error {
			return writable(mountpoint + "/sys/kernel/core_pattern")
		})),
		strongly("sysrq-by-fresh-proc", "the keys that stop a machine, by a /proc of one's own", mounted("proc", "", func() error {
			return writable(mountpoint + "/sysrq-trigger")
		})),
		strongly("kcore-by-fresh-proc", "the kernel's memory, by a /proc of one's own", mounted("proc", "", func() error {
			return opened(mountpoint+"/kcore", unix.O_RDONLY)
		})),
		strongly("keeper-by-fresh-proc", "the keeper, by a /proc of one's own", func(w *world) error {
			return mounted("proc", "", func() error {
				_, err := os.Stat(fmt.Sprintf("%s/%d/mem", mountpoint, w.Keeper))
				return err
			})(w)
		}),
		strongly("uevent-by-fresh-sys", "a switch of the whole machine, by a /sys of one's own", mounted("sysfs", "", func() error {
			return anyOf(writable(mountpoint+"/kernel/uevent_seqnum"), writable(mountpoint+"/kernel/mm/transparent_hugepage/enabled"), writable(mountpoint+"/power/state"))
		})),
		strongly("release-agent", "a cgroup hierarchy whose program the kernel starts", func(w *world) error {
			return mounted("cgroup", "none,name=kitbox-escape", func() error {
				defer func() { _ = unix.Unmount(mountpoint, 0) }()
				return writable(mountpoint + "/release_agent")
			})(w)
		}),
		strongly("debugfs", "the kernel's debugging files", mounted("debugfs", "", nil)),
		strongly("tracefs", "the kernel's tracing files", mounted("tracefs", "", nil)),
		strongly("securityfs", "the kernel's security files", mounted("securityfs", "", nil)),
		strongly("devtmpfs", "the host's devices", mounted("devtmpfs", "", nil)),
		strongly("disk", "a disk with a file system", func(*world) error {
			// A loop device that has no file behind it: what counts is
			// whether the kernel looks at it.
			err := unix.Mount("/dev/loop0", mountpoint, "ext4", unix.MS_RDONLY, "")
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO) {
				return nil
			}
			if outdoors() && err != nil {
				return fmt.Errorf("%w: %w", errMissing, err)
			}
			return err
		}),
		strongly("by-handle", "the host's root by its number in the file system", func(*world) error {
			fd, err := unix.Open(mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return broken(err)
			}
			defer unix.Close(fd)
			h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
			if outdoors() && err == nil {
				fd, err = unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					return broken(err)
				}
				defer unix.Close(fd)
			} else {
				ino := make([]byte, 8)
				binary.NativeEndian.PutUint32(ino, 2)
				h = unix.NewFileHandle(1, ino)
			}
			got, err := unix.OpenByHandleAt(fd, h, unix.O_RDONLY)
			if err != nil {
				return err
			}
			return unix.Close(got)
		}),
		strongly("leave-the-root-strong", "leaving the root directory by a second one", leaveRoot),
	}
}

// leaveRoot is the classic: a root below, and a directory above it held open.
func leaveRoot(w *world) error {
	base := mountpoint + "/escape-root-" + strconv.Itoa(os.Getpid())
	if err := os.MkdirAll(base, 0o700); err != nil {
		return broken(err)
	}
	defer os.RemoveAll(base)
	top, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return broken(err)
	}
	defer unix.Close(top)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // its root is another now
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- err
			return
		}
		if err := unix.Chroot(base); err != nil {
			done <- err
			return
		}
		if err := unix.Fchdir(top); err != nil {
			done <- err
			return
		}
		for range 64 {
			if err := unix.Chdir(".."); err != nil {
				done <- err
				return
			}
		}
		fd, err := unix.Open(strings.TrimPrefix(w.Canary, "/"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		done <- err
	}()
	return <-done
}

// interfaces are attempts to learn what the kernel says of others.
func interfaces() []attempt {
	says := func(name, tries string, f func(w *world) error) attempt {
		return attempt{name: "tells-" + name, tries: tries, in: plain, at: host, attack: f}
	}
	within := func(text func(w *world) string, patterns ...string) func(w *world) error {
		return func(w *world) error {
			for _, p := range patterns {
				paths, _ := filepath.Glob(p)
				for _, path := range paths {
					if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), text(w)) {
						return nil
					}
				}
			}
			return fmt.Errorf("no %v says %q", patterns, text(w))
		}
	}
	// It listens; attempts that go on beside this one only connect to it.
	port := fmt.Sprintf(":%04X 00000000:0000 0A", loopPort)
	return []attempt{
		says("sockets", "what listens on the host, in /proc", within(func(*world) string { return port }, "/proc/net/tcp", "/proc/[0-9]*/net/tcp")),
		says("sockets-by-netlink", "what listens on the host, by netlink", func(*world) error { return diagnosed(loopPort) }),
		says("abstract-names", "the host's abstract sockets, in /proc", within(func(w *world) string { return w.Abstract }, "/proc/net/unix", "/proc/[0-9]*/net/unix")),
		says("paths", "paths of the host, in the list of mounts", within(func(*world) string { return "/kitbox-" }, "/proc/self/mountinfo", "/proc/[0-9]*/mountinfo", "/proc/mounts")),
		says("keepers", "the keeper's command line", within(func(w *world) string { return w.Home }, "/proc/[0-9]*/cmdline")),
		says("addresses-of-the-kernel", "where the kernel's functions are", func(*world) error {
			b, err := os.ReadFile("/proc/kallsyms")
			if err != nil {
				return err
			}
			for line := range splitLines(b) {
				if at, _, _ := strings.Cut(line, " "); strings.Trim(at, "0") != "" {
					return nil
				}
			}
			if outdoors() {
				return fmt.Errorf("%w: this kernel shows nobody", errMissing)
			}
			return errors.New("all are zero")
		}),
		says("other-interfaces", "the host's own address, among those of the interfaces", within(func(*world) string { return uplink }, "/proc/net/fib_trie", "/proc/[0-9]*/net/fib_trie")),
		{name: "parent-namespace", tries: "the user namespace above its own", in: strong, at: host, attack: func(*world) error {
			f, err := os.Open("/proc/self/ns/user")
			if err != nil {
				return broken(err)
			}
			defer f.Close()
			const getParent, getOwner = 0xb702, 0xb701 // NS_GET_PARENT, NS_GET_USERNS
			fd, err := unix.IoctlRetInt(int(f.Fd()), getParent)
			if err == nil {
				return unix.Close(fd)
			}
			return err
		}, control: func(*world) error {
			// The first namespace has none above; a child of ours does.
			f, err := os.Open("/proc/self/ns/net")
			if err != nil {
				return broken(err)
			}
			defer f.Close()
			fd, err := unix.IoctlRetInt(int(f.Fd()), 0xb701)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
	}
}

// diagnosed returns nil when the kernel tells by netlink of a listener on port.
func diagnosed(port uint16) error {
	c, err := netlink.Dial(unix.NETLINK_INET_DIAG, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	req := make([]byte, 56) // struct inet_diag_req_v2
	req[0], req[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(req[4:], ^uint32(0)) // every state
	const byFamily = 20                                // SOCK_DIAG_BY_FAMILY
	ms, err := c.Execute(netlink.Message{Header: netlink.Header{Type: byFamily, Flags: netlink.Request | netlink.Dump}, Data: req})
	if err != nil {
		return err
	}
	for _, m := range ms {
		if len(m.Data) > 6 && binary.BigEndian.Uint16(m.Data[4:]) == port {
			return nil
		}
	}
	return fmt.Errorf("none of %d sockets is at port %d", len(ms), port)
}
