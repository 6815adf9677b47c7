package owners

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func machine(source string) plan.Machine {
	return plan.Machine{IDMap: plan.IDMap{Base: 1000, Size: 100}, Mounts: []plan.Mount{
		{Kind: plan.MountBind, Source: source, Owner: &plan.OwnerMap{HostUID: 7, HostGID: 8}}}}
}

func owned(t *testing.T, name string, uid, gid uint32) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil || st.Uid != uid || st.Gid != gid {
		t.Errorf("%s belongs to %d:%d, want %d:%d (%v)", name, st.Uid, st.Gid, uid, gid, err)
	}
}

func give(t *testing.T, name string, uid, gid int) string {
	t.Helper()
	if err := os.Lchown(name, uid, gid); err != nil {
		t.Fatal(err)
	}
	return name
}

func file(t *testing.T, name string) string {
	t.Helper()
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOnlyWhatIsTheMachinesIsGivenAway(t *testing.T) {
	needs.Root(t, "files of several users")
	dir := t.TempDir()
	first, last := give(t, file(t, dir+"/first"), 1000, 1000), give(t, file(t, dir+"/last"), 1099, 1099)
	below, above := give(t, file(t, dir+"/below"), 999, 999), give(t, file(t, dir+"/above"), 1100, 1100)
	half := give(t, file(t, dir+"/half"), 0, 1050)
	// What a link leads to is not in the directory.
	outside := give(t, file(t, t.TempDir()+"/outside"), 1000, 1000)
	if err := os.Symlink(outside, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	give(t, dir+"/link", 1000, 1000)
	elsewhere := t.TempDir()
	give(t, file(t, elsewhere+"/f"), 1000, 1000)
	if err := os.Symlink(elsewhere, dir+"/linkdir"); err != nil {
		t.Fatal(err)
	}
	ro, none := t.TempDir(), t.TempDir()
	give(t, file(t, ro+"/f"), 1000, 1000)
	give(t, file(t, none+"/f"), 1000, 1000)
	m := machine(dir)
	m.Mounts = append(m.Mounts, plan.Mount{Kind: plan.MountBind, Source: ro, ReadOnly: true, Owner: m.Mounts[0].Owner}, plan.Mount{Kind: plan.MountBind, Source: none})
	if err := Return(t.Context(), m, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	owned(t, first, 7, 8)
	owned(t, last, 7, 8)
	owned(t, below, 999, 999)
	owned(t, above, 1100, 1100)
	owned(t, half, 0, 8)
	owned(t, dir+"/link", 7, 8)
	owned(t, outside, 1000, 1000)
	owned(t, elsewhere+"/f", 1000, 1000)
	owned(t, ro+"/f", 1000, 1000)
	owned(t, none+"/f", 1000, 1000)
}

// Without a shift the ids are those of all that the user runs, so that only what is new
// can be a machine's.
func TestWithoutAShiftOnlyWhatIsNewIsGivenAway(t *testing.T) {
	needs.Root(t, "files of several users")
	dir := t.TempDir()
	old := give(t, file(t, dir+"/old"), 1000, 1000)
	var st syscall.Stat_t
	if err := syscall.Lstat(old, &st); err != nil {
		t.Fatal(err)
	}
	since := time.Unix(st.Ctim.Unix()).Add(1)
	fresh := dir + "/fresh"
	for deadline := time.Now().Add(10 * time.Second); ; { // until the clock of the files has moved on
		give(t, file(t, fresh), 1000, 1000)
		if err := syscall.Lstat(fresh, &st); err != nil || time.Now().After(deadline) {
			t.Fatal("the times of files do not move on", err)
		}
		if !time.Unix(st.Ctim.Unix()).Before(since) {
			break
		}
	}
	root := file(t, dir+"/root")
	m := machine(dir)
	m.IDMap = plan.IDMap{}
	m.Mounts[0].Owner = &plan.OwnerMap{}
	if err := Return(t.Context(), m, since); err != nil {
		t.Fatal(err)
	}
	owned(t, old, 1000, 1000)
	owned(t, fresh, 0, 0)
	owned(t, root, 0, 0)

	give(t, fresh, 1000, 1000)
	m.Mounts[0].Owner = &plan.OwnerMap{HostUID: nobody, HostGID: nobody}
	if err := Return(t.Context(), m, since); err != nil {
		t.Fatal(err)
	}
	owned(t, fresh, 1000, 1000)
}

func TestDirectoriesWithoutEndAreNotFollowedWithoutEnd(t *testing.T) {
	needs.Root(t, "files of several users")
	top := t.TempDir()
	wd, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer wd.Close()
	at := int(wd.Fd())
	var fds []int
	for range maxDepth + 2 {
		if err := syscall.Mkdirat(at, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		fd, err := syscall.Openat(at, "d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds, at = append(fds, fd), fd
	}
	if err := syscall.Fchown(fds[3], 1000, 1000); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		syscall.Close(fd)
	}
	err = Return(t.Context(), machine(top), time.Time{})
	if err == nil || !strings.Contains(err.Error(), "directories deep") {
		t.Errorf("said %v", err)
	}
	owned(t, top+"/d/d/d/d", 7, 8)
	if n := descriptors(t); n > 100 {
		t.Errorf("%d descriptors are left open", n)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

func TestALinkOnTheWayIsNotFollowed(t *testing.T) {
	real := t.TempDir()
	link := t.TempDir() + "/link"
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if err := Return(t.Context(), machine(link), time.Time{}); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("said %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Return(ctx, machine(real), time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
