package namespace

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/driver/namespace/userns"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// idMaps returns the maps of a machine's user namespace.
func idMaps(m plan.IDMap) (uids, gids []syscall.SysProcIDMap, err error) {
	if !m.IsIdentity() {
		one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(m.Base), Size: int(m.Size)}}
		return one, one, nil
	}
	for _, l := range []struct {
		own func() ([]userns.Range, error)
		ms  *[]syscall.SysProcIDMap
	}{{userns.UIDs, &uids}, {userns.GIDs, &gids}} {
		own, err := l.own()
		if err != nil {
			return nil, nil, err
		}
		for _, o := range own {
			// The ids this process has, each as itself. Neighbours stay apart:
			// the kernel takes no range that spans two of the namespace above.
			*l.ms = append(*l.ms, syscall.SysProcIDMap{ContainerID: int(o.Inside), HostID: int(o.Inside), Size: int(o.Size)})
		}
	}
	return uids, gids, nil
}

// checkIDMap says whether this process can make machines with map m.
func checkIDMap(m plan.IDMap) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("machines need root, or the user namespace that kitbox enters by itself: %w", kiterr.ErrUnavailable)
	}
	if m.IsIdentity() {
		if userns.Initial() {
			return fmt.Errorf("a machine whose root is the host's root is refused: give it an id range: %w", kiterr.ErrUnsupported)
		}
		return nil
	}
	if m.Base == 0 || uint64(m.Base)+uint64(m.Size) > 1<<32-1 {
		return fmt.Errorf("id range %d+%d is not one of the host's: %w", m.Base, m.Size, kiterr.ErrUnsupported)
	}
	if !userns.Initial() {
		return fmt.Errorf("shifting ids needs the system's root; a machine of an ordinary user has the identity map: %w", kiterr.ErrUnsupported)
	}
	return nil
}

// ownerNamespace returns a user namespace that maps host ids to the machine's
// as o says and nothing else. It exists as long as the returned file.
func ownerNamespace(guest string, o *plan.OwnerMap, base uint32) (*os.File, error) {
	// A namespace needs a process to be made with; this one waits for the end
	// of its stdin, which is the end of this function.
	cmd := exec.Command(guest, "hold")
	cmd.Env = []string{}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: int(o.HostUID), HostID: int(base + o.MachineUID), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: int(o.HostGID), HostID: int(base + o.MachineGID), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		in.Close()
		return nil, fmt.Errorf("making a user namespace for an owner map: %w", userns.Explain(err))
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	in.Close()
	_ = cmd.Wait()
	return ns, err
}
