package app

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

// enter makes this process root of the user's own namespace, by starting it
// again from the beginning inside. Root has nothing to enter.
func enter(home, guest string) error {
	if rootless.Inside() {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	e := rootless.Entry{Dir: filepath.Join(home, "rootless"), GuestPath: guest}
	return e.Enter(append([]string{exe}, os.Args[1:]...))
}

// held is what keeps the user namespace there for a keeper.
func held() (link.Held, error) {
	if !inNamespace() {
		return link.Held{}, nil
	}
	f, err := rootless.Life()
	return link.Held{Variable: rootless.LifeVariable, File: f}, err
}

// inNamespace reports whether this process is in a user namespace of its own, as
// opposed to the system's, the only one that maps every id to itself.
func inNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	f := strings.Fields(string(b))
	return !(len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295")
}
