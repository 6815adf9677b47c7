package machinedir

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Check judges what can be judged of m without changing anything, and reports
// every fault.
func Check(m plan.Machine) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !ValidID(m.ID) {
		bad("machine id %q: want letters, digits, '-', '_' and '.', no '.' or '-' first", m.ID)
	}
	if len(m.Hostname) > 64 {
		bad("hostname %q: more than 64 bytes", m.Hostname)
	}
	if len(m.Layers) == 0 {
		bad("no layers")
	}
	// The kernel's bound on one overlay.
	if len(m.Layers) > 500 {
		bad("%d layers: more than 500", len(m.Layers))
	}
	for _, l := range m.Layers {
		if !path.IsAbs(l) {
			bad("layer %q: not absolute", l)
		} else if st, err := os.Stat(l); err != nil {
			bad("layer %s: %w", l, err)
		} else if !st.IsDir() {
			bad("layer %s: not a directory", l)
		}
	}
	for _, mt := range m.Mounts {
		if !path.IsAbs(mt.Path) || path.Clean(mt.Path) == "/" {
			bad("mount %q: not an absolute path below /", mt.Path)
		}
		switch mt.Kind {
		case plan.MountBind, plan.MountImage:
			if !path.IsAbs(mt.Source) {
				bad("mount %s: source %q is not absolute", mt.Path, mt.Source)
			}
		case plan.MountTmpfs:
			if mt.SizeBytes < 0 {
				bad("mount %s: negative size", mt.Path)
			}
		default:
			bad("mount %s: unknown kind %q", mt.Path, mt.Kind)
		}
	}
	for _, d := range m.Devices {
		switch {
		case !path.IsAbs(d.Source):
			bad("device %s: source %q is not absolute", d.Path, d.Source)
		case path.Clean(d.Path) != d.Path || !strings.HasPrefix(d.Path, "/dev/"):
			bad("device %q: not a clean path below /dev", d.Path)
		case inside.OwnDevice(d.Path):
			bad("device %s: every machine has its own", d.Path)
		}
	}
	for _, f := range m.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) == "/" {
			bad("file %q: not an absolute path", f.Path)
		}
	}
	if err := inside.CheckCapabilities(m.Capabilities); err != nil {
		bad("%w", err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("machine %s: %w", m.ID, errors.Join(errs...))
	}
	return nil
}
