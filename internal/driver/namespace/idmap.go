package namespace

import (
	"fmt"
	"os"
	"slices"
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
		own  func() ([]userns.Range, error)
		ms   *[]syscall.SysProcIDMap
		swap uint32
	}{{userns.UIDs, &uids, m.Swap.UID}, {userns.GIDs, &gids, m.Swap.GID}} {
		own, err := l.own()
		if err != nil {
			return nil, nil, err
		}
		for _, o := range own {
			// The ids this process has, each as itself. Neighbours stay apart:
			// the kernel takes no range that spans two of the namespace above.
			*l.ms = append(*l.ms, swapped(o, l.swap)...)
		}
	}
	return uids, gids, nil
}

// swapped maps the ids of o to themselves, but 0 and swap to each other.
func swapped(o userns.Range, swap uint32) (ms []syscall.SysProcIDMap) {
	add := func(machine, own, size uint32) {
		if size > 0 {
			ms = append(ms, syscall.SysProcIDMap{ContainerID: int(machine), HostID: int(own), Size: int(size)})
		}
	}
	first, end := o.Inside, o.Inside+o.Size
	if swap != 0 && first == 0 && end > 0 {
		add(swap, 0, 1)
		first++
	}
	if swap != 0 && first <= swap && swap < end {
		add(first, first, swap-first)
		add(0, swap, 1)
		first = swap + 1
	}
	add(first, first, end-first)
	return ms
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
		return checkSwap(m.Swap)
	}
	if m.Base == 0 || uint64(m.Base)+uint64(m.Size) > 1<<32-1 {
		return fmt.Errorf("id range %d+%d is not one of the host's: %w", m.Base, m.Size, kiterr.ErrUnsupported)
	}
	if !userns.Initial() {
		return fmt.Errorf("shifting ids needs the system's root; a machine of an ordinary user has the identity map: %w", kiterr.ErrUnsupported)
	}
	return nil
}

// checkSwap says whether this process has the ids that are to be exchanged.
func checkSwap(s plan.Swap) error {
	for _, l := range []struct {
		own func() ([]userns.Range, error)
		id  uint32
	}{{userns.UIDs, s.UID}, {userns.GIDs, s.GID}} {
		own, err := l.own()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(own, func(o userns.Range) bool { return o.Inside <= l.id && l.id-o.Inside < o.Size }) {
			return fmt.Errorf("id %d is not one of this user's; give him a range that holds it in /etc/subuid and /etc/subgid: %w", l.id, kiterr.ErrUnavailable)
		}
	}
	return nil
}
