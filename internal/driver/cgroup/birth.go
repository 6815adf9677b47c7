package cgroup

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/ownthread"
)

// A group is one directory of a machine's.
type group struct {
	hierarchy
	dir  string
	want []string // controllers
	has  bool     // the machine's first process
}

// bear calls start so that the process it starts is in as many of the groups as
// the kernel allows, and marks those.
func bear(groups []*group, start func(*os.File) (int, error)) (pid int, err error) {
	err = ownthread.Run(func() error {
		for _, g := range groups {
			// 0 is the thread that writes it: the one case in which the kernel
			// has nobody to wait for.
			if !g.unified && write(g.dir, "tasks", "0") == nil {
				g.has = true
				// Back before the thread ends: whoever ends all that is in
				// the group must not find us there.
				defer func() { _ = write(g.own, "tasks", "0") }()
			}
		}
		for _, g := range groups {
			if !g.unified {
				continue
			}
			dir, err := os.Open(g.dir)
			if err != nil {
				continue
			}
			defer dir.Close()
			if pid, err = start(dir); err == nil {
				g.has = true
				return nil
			}
			if !refusedPlace(err) {
				return err
			}
		}
		var err error
		pid, err = start(nil)
		return err
	})
	return pid, err
}

// refusedPlace reports whether err, of starting a process in a group of the
// unified tree, may be about the group. Old kernels do not know how; a group can
// be one that takes no processes, or not ours to put any in.
func refusedPlace(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.EINVAL, unix.EPERM, unix.EACCES, unix.EBUSY, unix.EOPNOTSUPP, unix.EBADF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
