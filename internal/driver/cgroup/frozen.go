package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Frozen reports whether the kernel holds process pid because a group that it is
// in is frozen. What cannot be read is not frozen.
func (s System) Frozen(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	hs, err := s.hierarchies()
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, h := range hs {
			dir := filepath.Join(h.mount, f[2])
			switch {
			case h.unified && f[1] == "":
				w := words(dir, "cgroup.events")
				if i := slices.Index(w, "frozen"); i >= 0 && i+1 < len(w) && w[i+1] == "1" {
					return true
				}
			case slices.Contains(strings.Split(f[1], ","), "freezer") && slices.Contains(h.controllers, "freezer"):
				if w := words(dir, "freezer.state"); len(w) > 0 && w[0] != "THAWED" {
					return true
				}
			}
		}
	}
	return false
}
