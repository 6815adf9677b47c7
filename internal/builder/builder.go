// Package builder builds Kits with a private BuildKit that comes up on demand.
//
// BuildKit is linked as a library and runs in a child process of its own
// ([Serve]), because a fault of it must not be a fault of kitbox, and because
// its state can be open in one process only while several kitbox commands build
// at once. The child lives in its own PID and mount namespaces, so that killing
// it takes every step and mount along, and ends when nobody has needed it for a
// while. [Build] finds or starts it and builds one Kit into an OCI layout.
//
// What a Kit build does is in internal/frontend; this package never looks
// inside a descriptor. Package cmd/kit-builder is the program; kitbox runs that
// program and does not link this package.
package builder

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// LocalDomain is the registry name of images that exist only in the local
// store. It is never looked up on a network.
const LocalDomain = "kitbox.local"

// The defaults of a private builder.
const (
	// DefaultIdle is how long the builder stays after its last client left.
	DefaultIdle = 5 * time.Minute

	// DefaultCacheBytes bounds the build cache. Steps in use are never
	// dropped, so that one build may pass it while it runs.
	DefaultCacheBytes = 10 << 30
)

// Names inside the builder's directory.
const (
	socketName = "builder.sock"
	lockName   = "lock"       // held while a client connects or starts a builder
	stateLock  = "state.lock" // held by a builder for as long as it lives
	logName    = "builder.log"
	rootName   = "buildkit"
)

// Dir returns the builder's directory below a KITBOX_HOME, making it if need be.
// It belongs to its owner alone: whoever can write to the socket in it can run
// commands as the builder.
func Dir(home string) (string, error) {
	if home == "" {
		return "", fmt.Errorf("the kitbox home is not set; give --home or set KITBOX_HOME")
	}
	dir, err := filepath.Abs(filepath.Join(home, "builder"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the builder's directory: %w; set KITBOX_HOME to a directory you can write to", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}
