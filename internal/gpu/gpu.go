// Package gpu finds the GPUs of this machine and chooses among them.
//
// What the operator has described by the Container Device Interface (CDI) is taken
// as it is described; where no specification names a GPU, GPUs are told by their
// device nodes. It reads the host and changes nothing, and it runs nothing: hooks
// of specifications are reported and left out, since no program of the host runs
// because a Kit asks for something.
package gpu

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Host says where to look. Its zero value is this machine.
type Host struct {
	// SpecDirs are the directories of CDI specifications, the more important
	// ones last. Nil means /etc/cdi and /var/run/cdi.
	SpecDirs []string

	// Root is the directory that stands for /, in which device nodes are
	// looked for. Empty means /. What specifications name is not below it.
	Root string

	// Usable reports why a sandbox cannot use the node at a path; nil: it can
	// use all.
	Usable func(path string) error

	// Mountable reports why no sandbox is given the file or directory at a path, as
	// with one that commands the host; nil: it is given whatever is described.
	Mountable func(path string) error
}

// A GPU is what a sandbox gets to use one.
type GPU struct {
	Name    string   // its CDI name, such as nvidia.com/gpu=0, or that of its node, such as nvidia0
	Aliases []string // other names of the same
	Devices []plan.Device
	Mounts  []plan.Mount // read-only binds
	Env     []string     // NAME=value
	Notes   []string     // what of its specification is left out, and why
	Fault   error        // why it cannot be had; nil: it can

	several bool // it stands for all of its kind together
}

// A Found is the GPUs of a machine, in the order in which they are counted.
type Found struct {
	GPUs   []GPU
	Looked string  // where, for people
	Faults []error // of specifications that could not be read
}

// Find looks for the GPUs of the machine. The result says what was in the way.
func (h Host) Find() Found {
	dirs := h.SpecDirs
	if dirs == nil {
		dirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	f := Found{Looked: "CDI specifications of a class gpu in " + strings.Join(dirs, " and ") + ", and " + nodesLookedFor}
	if err := readable(dirs); err != nil {
		// Not by their nodes instead: the operator has described something.
		f.Faults = []error{err}
		return f
	}
	f.GPUs, f.Faults = h.described(dirs)
	if len(f.GPUs) == 0 {
		f.GPUs = h.nodes()
	}
	return f
}

// none is why there is nothing to choose from.
func (f Found) none() error {
	said := ""
	for _, err := range f.Faults {
		said += fmt.Sprintf("; %v", err)
	}
	return fmt.Errorf("this machine has none (looked for %s)%s; install its driver, and for NVIDIA run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'", f.Looked, said)
}

func (g *GPU) fault(format string, args ...any) {
	if g.Fault == nil {
		g.Fault = fmt.Errorf(format, args...)
	}
}

func (g *GPU) answersTo(name string) bool {
	if g.Name == name {
		return true
	}
	for _, a := range g.Aliases {
		if a == name {
			return true
		}
	}
	return false
}
