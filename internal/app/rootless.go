package app

import (
	"os"
	"strings"
)

// rootless reports whether this process is in a user namespace of its own, as
// opposed to the system's, the only one that maps every id to itself.
func rootless() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	f := strings.Fields(string(b))
	return !(len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295")
}
