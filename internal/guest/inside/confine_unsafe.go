package inside

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/seccomp"
)

// agentCapabilities are what the guest itself works with: starting commands as
// any user, ending them, and writing files for them.
var agentCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
}

// Detach gives the machine its name, its loopback and its view of cgroups. The
// driver has put this process where it belongs by now.
func Detach(hostname string) error {
	if hostname != "" {
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("setting the host name %q: %w", hostname, err)
		}
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("bringing loopback up: %w", err)
	}
	return cgroupNamespace()
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// cgroupNamespace makes the cgroup this process is in the root of what the
// machine sees. The kernel keeps the namespace per thread: one thread makes
// it, and then all enter it.
func cgroupNamespace() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the cgroup namespace: %w", err)
	}
	defer unix.Close(fd)
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWCGROUP, 0); errno != 0 {
		return fmt.Errorf("entering the cgroup namespace: %w", errno)
	}
	return nil
}

// A Confinement is what this process will have given up when it is applied.
type Confinement struct {
	keep   uint64 // capabilities of the guest itself
	filter *seccomp.Filter
}

// Prepare takes, on every thread and for good, all capabilities but the given
// ones from what commands can ever have, and new privileges too. What this
// process itself has now stays, so it can still build: this is the part of
// confinement that takes long, one round over all threads per capability.
func Prepare(capabilities []string) (*Confinement, error) {
	bound, err := mask64(capabilities)
	if err != nil {
		return nil, err
	}
	own, err := mask64(agentCapabilities)
	if err != nil {
		return nil, err
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if bound&(1<<c) != 0 {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if errno == unix.EINVAL {
			continue // a capability this kernel does not have
		}
		if errno != 0 {
			return nil, fmt.Errorf("dropping capability %d: %w", c, errno)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return nil, fmt.Errorf("setting no_new_privs: %w", errno)
	}
	filter, err := seccomp.New(capabilities)
	if err != nil {
		return nil, err
	}
	return &Confinement{keep: bound | own, filter: filter}, nil
}

// Apply gives up, on every thread and for good, what building needed. The guest
// keeps what it works with.
func (c *Confinement) Apply() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		half := uint32(c.keep >> (32 * i))
		data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&head)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return fmt.Errorf("setting capabilities: %w", errno)
	}
	// Nobody in the machine may look into the guest, or follow /proc/1/exe and
	// /proc/1/fd out of it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making the guest opaque: %w", err)
	}
	return c.filter.Install()
}
