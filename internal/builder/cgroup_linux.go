package builder

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupParent names the control group that the steps of the builder with this
// root run in. Two builders never share one, so each can clean up its own.
func cgroupParent(root string) string {
	sum := sha256.Sum256([]byte(root))
	return "kitbox-builder-" + hex.EncodeToString(sum[:4])
}

// sweepCgroups removes the groups below parent that a killed builder left in
// any hierarchy. A group whose processes are still dying cannot be removed: it
// gets a moment. One that holds a live process stays.
func sweepCgroups(parent string) {
	const mount = "/sys/fs/cgroup"
	tops := []string{filepath.Join(mount, parent)} // version 2
	entries, err := os.ReadDir(mount)
	if err != nil {
		return
	}
	for _, e := range entries {
		tops = append(tops, filepath.Join(mount, e.Name(), parent))
	}
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		busy := false
		for _, top := range tops {
			busy = !removeTree(top) || busy
		}
		if !busy {
			return
		}
		time.Sleep(wait)
	}
}

// removeTree removes a group and those below it, and reports whether it is gone.
func removeTree(top string) bool {
	var dirs []string
	_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	gone := true
	for _, d := range slices.Backward(dirs) {
		// Not os.Remove, which tries to unlink first.
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			gone = false
		}
	}
	return gone
}
