package durable

import (
	"os"
	"strings"
	"sync"
)

// Boot identifies this run of the kernel, "unknown" where it cannot be read. What
// was written under another one without waiting for the disk may be old, empty
// or torn.
var Boot = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
})
