package escape

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outdoors reports whether this is the control's side.
func outdoors() bool { return uplinkInterface() == "lo" }

// reaches returns nil when a system call gets as far as the kernel's own
// judgement of its arguments.
func reaches(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	switch errno {
	case 0:
		if slices.Contains([]uintptr{unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_FANOTIFY_INIT}, nr) {
			unix.Close(int(r))
		}
		return nil
	case unix.EPERM, unix.EACCES, unix.ENOSYS:
		if outdoors() {
			return fmt.Errorf("%w: %w", errMissing, errno)
		}
		return errno
	}
	return nil
}

// call is an attempt with a system call, chosen so that the host's own use of it
// changes nothing.
func call(name, tries string, nr uintptr, args ...uintptr) attempt {
	return attempt{name: "call-" + name, tries: tries, in: plain, at: host, attack: func(*world) error { return reaches(nr, args...) }}
}

func text(s string) uintptr {
	b, _ := unix.BytePtrFromString(s)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(b))
}

var kept []*byte // texts that system calls are given as numbers

var (
	zeros   [256]byte
	ringArg = uintptr(unsafe.Pointer(&zeros[0]))
)

// opened returns nil when path can be opened so.
func opened(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %s: %w", errMissing, path, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
		return fmt.Errorf("%s is hidden", path)
	}
	return nil
}

func writable(path string) error { return opened(path, unix.O_WRONLY) }

// any returns nil when one of the errors is.
func anyOf(errs ...error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// file is an attempt to open one file of the kernel's; patterns may match more.
func file(name, tries string, flags int, patterns ...string) attempt {
	return attempt{name: "file-" + name, tries: tries, in: plain, at: host, attack: func(*world) error {
		errs := []error{fmt.Errorf("%w: nothing is called %v", errMissing, patterns)}
		for _, p := range patterns {
			paths, _ := filepath.Glob(p)
			for _, path := range paths {
				errs = append(errs, opened(path, flags))
			}
		}
		return anyOf(errs...)
	}}
}

// kernel are attempts with what every kernel has.
func kernel() []attempt {
	const nowhere = "/nonexistent"
	return []attempt{
		call("init-module", "loading a module", unix.SYS_INIT_MODULE, ringArg, 0, text("")),
		call("finit-module", "loading a module from a file", unix.SYS_FINIT_MODULE, ^uintptr(0), text(""), 0),
		call("delete-module", "unloading a module", unix.SYS_DELETE_MODULE, text("nonexistent"), 0),
		call("kexec", "loading another kernel", unix.SYS_KEXEC_LOAD, 0, 17, 0, 0),
		call("reboot", "ending the machine", unix.SYS_REBOOT, 1, 2, 3),
		call("swapon", "memory on a disk", unix.SYS_SWAPON, text(nowhere), 0),
		call("settimeofday", "the clock", unix.SYS_SETTIMEOFDAY, 0, 0),
		call("acct", "a record of every process", unix.SYS_ACCT, text(nowhere)),
		call("bpf", "a program in the kernel", unix.SYS_BPF, 5, ringArg, 48),
		call("perf", "counters of the whole machine", unix.SYS_PERF_EVENT_OPEN, ringArg, ^uintptr(0), 0, ^uintptr(0), 0),
		call("userfaultfd", "holding the kernel up at a page fault", unix.SYS_USERFAULTFD, unix.O_CLOEXEC),
		call("io-uring", "a queue of operations that no filter sees", unix.SYS_IO_URING_SETUP, 1, ringArg),
		call("add-key", "the kernel's keys", unix.SYS_ADD_KEY, text("user"), text("escape"), text("x"), 1, ^uintptr(0)),
		call("keyctl", "the keys of a session", unix.SYS_KEYCTL, 0, ^uintptr(2), 0),
		call("clone3", "namespaces in arguments that no filter can read", unix.SYS_CLONE3, 0, 0),
		call("open-by-handle", "a file by its number, past every directory", unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0), 0, 0),
		call("iopl", "the machine's ports", unix.SYS_IOPL, 0),
		call("syslog", "the kernel's log", unix.SYS_SYSLOG, 10, 0, 0),
		call("quotactl", "quotas of file systems", unix.SYS_QUOTACTL, ^uintptr(0), 0, 0, 0),
		call("fanotify", "every file that is opened", unix.SYS_FANOTIFY_INIT, 0, 0),
		call("kcmp", "what two processes share in the kernel", unix.SYS_KCMP, 1, 1, 99, 0, 0),
		call("setns", "another namespace", unix.SYS_SETNS, ^uintptr(0), 0),
		call("domain-name", "the machine's domain name", unix.SYS_SETDOMAINNAME, 0, 65),
		{name: "new-user-namespace", tries: "a user namespace, whose root may do more", in: plain, at: host, attack: cloned(unix.CLONE_NEWUSER)},
		{name: "new-mount-namespace", tries: "a mount namespace", in: plain, at: host, attack: cloned(unix.CLONE_NEWNS)},
		{name: "new-net-namespace", tries: "a network namespace", in: plain, at: host, attack: cloned(unix.CLONE_NEWNET)},
		{name: "new-pid-namespace", tries: "a PID namespace", in: plain, at: host, attack: cloned(unix.CLONE_NEWPID)},
		file("kcore", "the kernel's memory", unix.O_RDONLY, "/proc/kcore"),
		file("mem", "the machine's memory", unix.O_RDONLY, "/dev/mem", "/dev/port", "/dev/kmem"),
		file("kmsg", "the kernel's log", unix.O_RDONLY, "/dev/kmsg", "/proc/kmsg"),
		file("disk", "a disk", unix.O_RDONLY, "/dev/[svx]d[a-z]*", "/dev/nvme*n*", "/dev/loop0"),
		file("kvm", "the hypervisor and the devices of hosts", unix.O_RDWR, "/dev/kvm", "/dev/fuse", "/dev/vhost-*", "/dev/uinput", "/dev/dri/*"),
		file("sysrq", "the keys that stop a machine", unix.O_WRONLY, "/proc/sysrq-trigger"),
		file("core-pattern", "a program that the kernel starts when one crashes", unix.O_WRONLY, "/proc/sys/kernel/core_pattern"),
		file("modprobe", "a program that the kernel starts for a module", unix.O_WRONLY, "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug"),
		file("uevent-helper", "a program that the kernel starts for a device", unix.O_WRONLY, "/sys/kernel/uevent_helper"),
		file("release-agent", "a program that the kernel starts for a cgroup", unix.O_WRONLY, "/sys/fs/cgroup/*/release_agent", "/sys/fs/cgroup/release_agent"),
		file("binfmt", "a program that the kernel starts for a kind of file", unix.O_WRONLY, "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/binfmt_misc/status"),
		file("sysctl", "settings of the whole machine", unix.O_WRONLY, "/proc/sys/vm/*", "/proc/sys/fs/*", "/proc/sys/kernel/*"),
		file("sysctl-net", "settings of the network that are the whole machine's", unix.O_WRONLY, "/proc/sys/net/core/*", "/proc/sys/net/ipv4/ip_forward"),
		file("cgroup-limits", "the limits of its own cgroup", unix.O_WRONLY, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/*/cgroup.clone_children"),
		file("sysfs", "switches of devices", unix.O_WRONLY, "/sys/kernel/mm/*/*", "/sys/module/*/parameters/*", "/sys/power/*", "/sys/bus/*/drivers_probe"),
		file("debug", "the kernel's debugging files", unix.O_RDONLY, "/sys/kernel/debug/*", "/sys/kernel/tracing/*", "/proc/timer_list", "/proc/sched_debug"),
		file("firmware", "what the firmware says of the machine", unix.O_RDONLY, "/sys/firmware/*/*", "/proc/acpi/*"),
		{name: "shared-memory", tries: "a segment of memory that the host shares", in: plain, at: host, attack: func(w *world) error {
			b, err := unix.SysvShmAttach(w.Segment, 0, unix.SHM_RDONLY)
			if err != nil {
				return err
			}
			return unix.SysvShmDetach(b)
		}},
	}
}

// cloned makes a process in new namespaces.
func cloned(flags uintptr) func(*world) error {
	return func(*world) error {
		c := exec.Command("/bin/true")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		return c.Run()
	}
}

// child runs f with the id of a process that is ours to look into, on the host,
// and with that of the sandbox's first process inside.
func child(f func(w *world, pid int) error) (attack, control func(w *world) error) {
	attack = func(w *world) error { return f(w, 1) }
	control = func(w *world) error {
		c := exec.Command("/bin/sleep", "60")
		c.Env = []string{"IS=" + w.Mark}
		if err := c.Start(); err != nil {
			return broken(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
		for { // until it is what it is to be
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Process.Pid))
			if err != nil {
				return broken(err)
			}
			if strings.Contains(string(b), "sleep") {
				break
			}
		}
		return f(w, c.Process.Pid)
	}
	return attack, control
}
