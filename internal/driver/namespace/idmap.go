package namespace

import (
	"fmt"
	"os"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/driver/userns"
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
