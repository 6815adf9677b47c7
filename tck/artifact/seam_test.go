package artifact

import "time"

// SetStallLimit shortens how long a registry may send nothing, and returns what
// it was.
func SetStallLimit(d time.Duration) time.Duration {
	old := stallLimit
	stallLimit = d
	return old
}
