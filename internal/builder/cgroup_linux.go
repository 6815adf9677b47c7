package builder

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// cgroupParent names the control group that the steps of the builder with this
// root run in. Two builders never share one, so each can clean up its own.
func cgroupParent(root string) string {
	sum := sha256.Sum256([]byte(root))
	return "kitbox-builder-" + hex.EncodeToString(sum[:4])
}

// sweepCgroups removes the groups below parent that a killed builder left in
// any hierarchy. Groups that hold a process stay, as the kernel sees to.
func sweepCgroups(parent string) {
	const mount = "/sys/fs/cgroup"
	tops := []string{filepath.Join(mount, parent)}
	entries, err := os.ReadDir(mount)
	if err != nil {
		return
	}
	for _, e := range entries {
		tops = append(tops, filepath.Join(mount, e.Name(), parent))
	}
	for _, top := range tops {
		var dirs []string
		filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			os.Remove(d)
		}
	}
}
