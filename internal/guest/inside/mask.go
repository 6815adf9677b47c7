package inside

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// The lists of containerd's and docker's default specifications.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// Masked returns the paths that every machine hides.
func Masked() []string { return slices.Clone(masked) }

// ReadOnly returns the paths that no machine can write. Those of /proc/sys that are not
// of namespaces belong to nobody in a machine; one that makes namespaces of its own
// configures its own there.
func ReadOnly(nests bool) []string {
	return slices.DeleteFunc(slices.Clone(readOnly), func(p string) bool { return nests && p == "/proc/sys" })
}

// mask hides and protects parts of /proc and /sys.
func mask(nests bool) error {
	for _, p := range masked {
		st, err := os.Lstat(p)
		if err != nil {
			continue // not on this kernel
		}
		var fd int
		if st.IsDir() {
			fd, err = filesystem("tmpfs", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
				"size", "4096", "mode", "0555")
		} else {
			fd, err = unix.OpenTree(unix.AT_FDCWD, "/dev/null", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		}
		if err == nil {
			err = over(fd, p)
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("masking %s: %w", p, err)
		}
	}
	for _, p := range ReadOnly(nests) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
			if err == nil {
				err = over(fd, p)
			}
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("protecting %s: %w", p, err)
		}
	}
	return nil
}

// sysctls sets what docker sets for a namespace of its own: low ports and ping
// need no privilege where nobody else's ports are. A kernel without them is fine.
func sysctls(oneID bool) {
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	groups := "0 65535"
	if oneID {
		groups = "0 0"
	}
	_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte(groups), 0)
}
