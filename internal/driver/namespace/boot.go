package namespace

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/child"
	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/driver/guard"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// boot starts the guest and returns when it serves. On error the caller ends
// what is recorded in m.run.
func (d *Driver) boot(ctx context.Context, m *machinedir.Machine) error {
	p, err := m.Plan()
	if err != nil {
		return err
	}
	limits, unenforced := machinedir.Limits(p.Limits)
	if len(unenforced) > 0 && p.Limits.Enforce {
		return &cgroup.LimitError{ID: m.ID, Unenforced: unenforced}
	}
	// Before the look at what there is, so that nothing comes between.
	g, err := guard.Begin(p)
	if err != nil {
		return err
	}
	defer g.Close()
	devices, missing, err := device.Take(p.Devices)
	if err != nil {
		return err
	}
	defer device.Close(devices)
	c, err := describe(p, devices)
	if err != nil {
		return err
	}
	guest, err := machinedir.OpenGuest(d.GuestPath)
	if err != nil {
		return err
	}
	defer guest.Close()
	program, err := readOnly(guest)
	if err != nil {
		return err
	}
	defer program.Close()
	ln, err := m.Listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	defer ours.Close()
	defer theirs.Close()

	log, err := m.OpenLog()
	if err != nil {
		return err
	}
	defer log.Close()
	// Groups are found by the record, and there are some before there is a
	// process.
	r := &machinedir.Run{Boot: durable.Boot()}
	if err := m.WriteRun(r); err != nil {
		return err
	}
	var proc *child.Process
	dirs, notes, err := cgroup.System{}.Make(m.CgroupName(), limits, func(unified *os.File) (int, error) {
		var err error
		if proc, err = start(p, log, program, theirs, ln, unified); err != nil {
			return 0, err
		}
		return proc.PID, nil
	})
	r.Cgroups = dirs
	m.Run = r
	if proc == nil {
		return err
	}
	d.children.Adopt(m.ID, proc.Wait, func(err error) {
		d.log().Debug("guest ended", "machine", m.ID, "err", err)
	})
	theirs.Close() // so that the guest's end shows here, and ours there

	// Until it has its mounts the guest only prepares, and it ends when we do.
	r.PID = proc.PID
	if err != nil {
		return m.Blame(fmt.Errorf("putting the machine into cgroups: %w", err))
	}
	if r.Start, err = machinedir.StartTicks(r.PID); err != nil {
		return m.Blame(fmt.Errorf("the guest ended at once: %w", err))
	}
	machinedir.FirstToGo(r.PID)
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if c.Locked {
		if c.Groups, err = cgroup.Delegate(dirs, r.PID); err != nil {
			d.log().Info("the machine makes no control groups of its own", "machine", m.ID, "err", err)
		}
	}
	if err := inside.SendConfig(ours, c); err != nil {
		return m.Blame(err)
	}
	unenforced = cgroup.Asked(unenforced, notes, p.Limits)
	if len(unenforced) > 0 && p.Limits.Enforce {
		return &cgroup.LimitError{ID: m.ID, Unenforced: unenforced}
	}

	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", r.PID))
	if err != nil {
		return fmt.Errorf("opening the machine's user namespace: %w", err)
	}
	defer ns.Close()
	mp := mapping{ids: p.IDMap, machine: ns, guest: guest.Name()}
	files, more, err := gather(p, devices, m.Writable, mp)
	if err != nil {
		return err
	}
	defer func() { closeAll(files) }()
	if c.Hides {
		empty, err := guard.Empties(m.Path)
		if err != nil {
			return err
		}
		files = append(files, empty...)
	}
	r.Unenforced = slices.Concat(unenforced, missing, more, g.Blind())
	if c.OneID {
		r.Unenforced = append(r.Unenforced, "users: only root exists in the machine; install newuidmap (package uidmap) and give this user a range in /etc/subuid and /etc/subgid")
	}
	// The record is complete before the guest can go on without us.
	if err := m.WriteRun(r); err != nil {
		return err
	}

	if err = inside.SendFiles(ours, files); err == nil {
		err = inside.Await(ours)
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the guest: %w", ctx.Err())
		}
		if b, rerr := os.ReadFile("/proc/filesystems"); rerr == nil && !hasOverlay(b) {
			return fmt.Errorf("this kernel has no overlay filesystem; load its module, modprobe overlay (%w): %w", err, kiterr.ErrUnavailable)
		}
		return m.Blame(err)
	}
	d.guards.Keep(m, g, d.log())
	return nil
}

// hasOverlay reports whether a list of /proc/filesystems has the one that roots
// are made of.
func hasOverlay(filesystems []byte) bool {
	for line := range strings.Lines(string(filesystems)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == "overlay" {
			return true
		}
	}
	return false
}

// oneID reports whether machines with map m have only root.
func oneID(m plan.IDMap) bool {
	uids, _, err := idMaps(m)
	return err == nil && len(uids) == 1 && uids[0].Size == 1
}

// start starts the guest's process in its new namespaces, and in the control
// group whose directory group is unless it is nil.
func start(p plan.Machine, log, guest, control, ln, group *os.File) (*child.Process, error) {
	uids, gids, err := idMaps(p.IDMap)
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	life, err := rootless.Life()
	if err != nil {
		return nil, err
	}
	defer life.Close()
	one := oneID(p.IDMap)
	sys := &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		UidMappings:                uids,
		GidMappings:                gids,
		GidMappingsEnableSetgroups: !one,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: one},
	}
	if group != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(group.Fd())
	}
	proc, err := child.Start(
		// Through a descriptor: the path to the program may lead through
		// directories that the machine's root cannot enter.
		"/proc/self/fd/6", []string{"kit-guest", "init"},
		nil, // /proc/1/environ is for all to read
		"/", []*os.File{null, null, log, control, ln, life, guest}, sys)
	if err != nil {
		return nil, fmt.Errorf("making namespaces: %w", userns.Explain(err))
	}
	return proc, nil
}

// readOnly returns the program f for execution from a mount that nobody can write
// to. A machine sees what its first process runs as /proc/1/exe; where the
// machine's root is the user who owns the file, as without root, it could change
// it there, and the next machine of the host would run that.
func readOnly(f *os.File) (*os.File, error) {
	return idmap.Detached(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
}

// socketpair returns a connection and the file of its other end.
func socketpair() (*net.UnixConn, *os.File, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(p[0]), "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		unix.Close(p[1])
		return nil, nil, err
	}
	return c.(*net.UnixConn), os.NewFile(uintptr(p[1]), "control"), nil
}

// kill ends the machine at once and clears what it leaves. It returns when no
// process of it exists.
func (d *Driver) kill(m *machinedir.Machine) error {
	if err := m.Kill(); err != nil {
		return err
	}
	d.children.Reaped(m.ID)
	return d.clear(m)
}

// clear removes what an ended machine left outside its directory, and the
// record of it.
func (d *Driver) clear(m *machinedir.Machine) error {
	if m.Run != nil && m.Run.Boot == durable.Boot() {
		if err := (cgroup.System{}).Remove(m.CgroupName(), m.Run.Cgroups); err != nil {
			return fmt.Errorf("machine %s: %w", m.ID, err)
		}
	}
	return m.ClearRun()
}
