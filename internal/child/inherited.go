package child

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// CloseInherited closes the descriptors from first on that whoever started this
// program left open for it, but for those in keep. A process that lives on would
// hold its starter's locks, pipes and file systems for as long as it lives. What this
// program opens is closed on exec, which tells the two apart: call it before anything
// is opened that is not, and after a descriptor was taken over.
func CloseInherited(first int, keep ...int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("closing what was inherited: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return fmt.Errorf("closing what was inherited: %w", err)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < first || slices.Contains(keep, fd) {
			continue
		}
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
			_ = syscall.Close(fd)
		}
	}
	return nil
}
