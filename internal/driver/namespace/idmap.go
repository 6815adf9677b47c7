package namespace

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// ownMap reads the id map of this process's user namespace.
func ownMap(name string) ([]syscall.SysProcIDMap, error) {
	f, err := os.Open("/proc/self/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ms []syscall.SysProcIDMap
	for s := bufio.NewScanner(f); s.Scan(); {
		var in, out, n uint32
		if _, err := fmt.Sscan(s.Text(), &in, &out, &n); err != nil {
			return nil, err
		}
		ms = append(ms, syscall.SysProcIDMap{ContainerID: int(in), HostID: int(out), Size: int(n)})
	}
	return ms, nil
}

// initial reports whether this process is in the user namespace of the system
// itself, the only one that maps every id to itself.
func initial() bool {
	ms, err := ownMap("uid_map")
	return err == nil && len(ms) == 1 && ms[0].ContainerID == 0 && ms[0].HostID == 0 && ms[0].Size == 1<<32-1
}

// idMaps returns the maps of a machine's user namespace.
func idMaps(m plan.IDMap) (uids, gids []syscall.SysProcIDMap, err error) {
	if !m.IsIdentity() {
		one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(m.Base), Size: int(m.Size)}}
		return one, one, nil
	}
	for _, l := range []struct {
		name string
		ms   *[]syscall.SysProcIDMap
	}{{"uid_map", &uids}, {"gid_map", &gids}} {
		own, err := ownMap(l.name)
		if err != nil {
			return nil, nil, err
		}
		for _, o := range own {
			// The ids this process has, each as itself; neighbours as one.
			if last := len(*l.ms) - 1; last >= 0 && (*l.ms)[last].ContainerID+(*l.ms)[last].Size == o.ContainerID {
				(*l.ms)[last].Size += o.Size
				continue
			}
			*l.ms = append(*l.ms, syscall.SysProcIDMap{ContainerID: o.ContainerID, HostID: o.ContainerID, Size: o.Size})
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
		if initial() {
			return fmt.Errorf("a machine whose root is the host's root is refused: give it an id range: %w", kiterr.ErrUnsupported)
		}
		return nil
	}
	if m.Base == 0 || uint64(m.Base)+uint64(m.Size) > 1<<32-1 {
		return fmt.Errorf("id range %d+%d is not one of the host's: %w", m.Base, m.Size, kiterr.ErrUnsupported)
	}
	if !initial() {
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
		return nil, fmt.Errorf("making a user namespace for an owner map: %w", noNamespaces(err))
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	in.Close()
	_ = cmd.Wait()
	return ns, err
}

// noNamespaces explains a clone that was not permitted.
func noNamespaces(err error) error {
	for _, s := range []struct{ file, bad, advice string }{
		{"/proc/sys/user/max_user_namespaces", "0", "user namespaces are turned off: set sysctl user.max_user_namespaces to 15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are turned off for users: set sysctl kernel.unprivileged_userns_clone to 1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor keeps users from user namespaces: set sysctl kernel.apparmor_restrict_unprivileged_userns to 0, or give kitbox a profile with the userns permission"},
	} {
		if b, rerr := os.ReadFile(s.file); rerr == nil && strings.TrimSpace(string(b)) == s.bad {
			return fmt.Errorf("%s (%w): %w", s.advice, err, kiterr.ErrUnavailable)
		}
	}
	switch {
	case isErrno(err, syscall.ENOSPC):
		return fmt.Errorf("no more namespaces are allowed: raise the sysctls below user.max_*_namespaces (%w): %w", err, kiterr.ErrUnavailable)
	case isErrno(err, syscall.EPERM), isErrno(err, syscall.EINVAL):
		return fmt.Errorf("this kernel or container does not allow user namespaces (%w): %w", err, kiterr.ErrUnavailable)
	}
	return err
}
