package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what a machine makes of a group that is its own. Each takes memory of the
// kernel.
const (
	maxGroups = 1024
	maxDepth  = 32
)

// Delegate gives the unified one of the groups that Make made to root of the user
// namespace that process pid is in, who makes groups of their own in it, as a
// container engine does for its containers. The limits of the group stay the system's
// and hold for all below. It reports whether there is one to give; to give a part of
// it is an error.
func Delegate(dirs []string, pid int) (bool, error) {
	i := slices.IndexFunc(dirs, func(dir string) bool { return exists(dir, "cgroup.max.descendants") })
	if i < 0 {
		return false, nil // no tree that is made for it
	}
	dir := dirs[i]
	uid, uerr := rootOf(pid, "uid_map")
	gid, gerr := rootOf(pid, "gid_map")
	if uerr == nil && uid == os.Getuid() {
		return false, nil // who has the limits too
	}
	err := errors.Join(uerr, gerr, write(dir, "cgroup.max.descendants", strconv.Itoa(maxGroups)), write(dir, "cgroup.max.depth", strconv.Itoa(maxDepth)))
	// What may be another's: see "Delegation" in the kernel's cgroup-v2.
	for _, name := range []string{"cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "."} {
		if err == nil {
			err = os.Lchown(filepath.Join(dir, name), uid, gid)
		}
	}
	return err == nil, err
}

// rootOf returns who is id 0 in the user namespace of process pid.
func rootOf(pid int, file string) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("process %d: nobody is root in its user namespace", pid)
}
