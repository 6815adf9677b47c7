package idmap

import (
	"reflect"
	"syscall"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Every id of the machine has one outside, and no two have the same: the kernel takes
// no other map, and a file whose owner has none cannot be made.
func TestAllIDsOfAMachineHaveOneOutside(t *testing.T) {
	m := plan.IDMap{Base: 100, Size: 10}
	one := func(fs, vfs, n int) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: fs, HostID: vfs, Size: n}
	}
	for name, c := range map[string]struct {
		host, id uint32
		want     []syscall.SysProcIDMap
	}{
		"a user":                      {7, 5, []syscall.SysProcIDMap{one(7, 105, 1), one(100, 100, 5), one(106, 106, 4)}},
		"root":                        {7, 0, []syscall.SysProcIDMap{one(7, 100, 1), one(101, 101, 9)}},
		"the last":                    {7, 9, []syscall.SysProcIDMap{one(7, 109, 1), one(100, 100, 9)}},
		"an owner above":              {200, 5, []syscall.SysProcIDMap{one(200, 105, 1), one(100, 100, 5), one(106, 106, 4)}},
		"just above":                  {110, 5, []syscall.SysProcIDMap{one(110, 105, 1), one(100, 100, 5), one(106, 106, 4)}},
		"an owner of the machine's":   {103, 5, []syscall.SysProcIDMap{one(103, 105, 1), one(100, 100, 3), one(104, 104, 1), one(106, 106, 4)}},
		"the very same":               {105, 5, []syscall.SysProcIDMap{one(105, 105, 1), one(100, 100, 5), one(106, 106, 4)}},
		"a user beyond the machine's": {7, 12, []syscall.SysProcIDMap{one(7, 112, 1), one(100, 100, 10)}},
	} {
		got := tied(c.host, c.id, m)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		fs, vfs := map[int]bool{}, map[int]bool{}
		for _, r := range got {
			for i := range r.Size {
				if fs[r.ContainerID+i] || vfs[r.HostID+i] {
					t.Errorf("%s: %v maps an id twice", name, got)
				}
				fs[r.ContainerID+i], vfs[r.HostID+i] = true, true
			}
		}
	}
}
