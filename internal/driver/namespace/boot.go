package namespace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/namespace/cgroup"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// limitsOf returns the cgroup limits of p, and which of those that p asks for
// cannot hold here.
func limitsOf(p plan.Machine) (l cgroup.Limits, unenforced []string) {
	l = cgroup.Limits{CPUMillis: p.Limits.CPUMillis, MemoryBytes: p.Limits.MemoryBytes, Pids: p.Limits.Pids}
	unenforced = cgroup.System{}.Check(l)
	if l.Pids == 0 {
		l.Pids = defaultPids
	}
	if p.Limits.DiskBytes > 0 {
		unenforced = append(unenforced, "disk: this driver cannot bound the writable layer")
	}
	return l, unenforced
}

// A LimitError refuses a machine whose limits must be enforced and cannot be.
// It is [kiterr.ErrRefused], and [kiterr.ErrUnsupported] since another backend
// might.
type LimitError struct {
	ID         string
	Unenforced []string // as in [driver.Machine]
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("machine %s: limits cannot be enforced here: %s", e.ID, strings.Join(e.Unenforced, "; "))
}

// Is makes the two families match.
func (e *LimitError) Is(target error) bool {
	return target == kiterr.ErrRefused || target == kiterr.ErrUnsupported
}

// defaultPids bounds the tasks of a machine that asks for no bound: enough for
// any build, too few to fill the host's table.
const defaultPids = 4096

// boot starts the guest and returns when it serves. On error the caller ends
// what is recorded in m.run.
func (d *Driver) boot(ctx context.Context, m *machine) error {
	p, err := m.plan()
	if err != nil {
		return err
	}
	limits, unenforced := limitsOf(p)
	if len(unenforced) > 0 && p.Limits.Enforce {
		return &LimitError{m.id, unenforced}
	}
	guest, err := d.guest()
	if err != nil {
		return err
	}
	defer guest.Close()
	ln, err := m.listen()
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

	cmd, err := m.command(p, guest, theirs, ln)
	if err != nil {
		return err
	}
	err = cmd.Start()
	cmd.Stderr.(*os.File).Close()
	if err != nil {
		return fmt.Errorf("making namespaces: %w", noNamespaces(err))
	}
	d.adopt(m.id, cmd.Wait)
	theirs.Close() // so that the guest's end shows here, and ours there

	// Until it hears from us the guest does nothing, and it ends when we do.
	r := &run{PID: cmd.Process.Pid, Boot: bootID()}
	if r.Start, err = startTicks(r.PID); err != nil {
		return fmt.Errorf("the guest ended at once: %w", err)
	}
	if err := m.writeRun(r); err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	dirs, notes, err := cgroup.System{}.Make(m.cgroupName(), limits, r.PID)
	r.Cgroups = dirs
	m.run = r
	if err != nil {
		return fmt.Errorf("putting the machine into cgroups: %w", err)
	}
	unenforced = asked(unenforced, notes, p.Limits)
	if len(unenforced) > 0 && p.Limits.Enforce {
		return &LimitError{m.id, unenforced}
	}

	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", r.PID))
	if err != nil {
		return fmt.Errorf("opening the machine's user namespace: %w", err)
	}
	defer ns.Close()
	mp := mapping{ids: p.IDMap, machine: ns, guest: guest.Name()}
	c, files, more, err := describe(p, filepath.Join(m.path, writableDir), mp)
	if err != nil {
		return err
	}
	defer func() { closeAll(files) }()
	c.OneID = oneID(p.IDMap)
	c.Cgroup2 = cgroup.System{}.Unified()
	r.Unenforced = append(unenforced, more...)
	// The record is complete before the guest can go on without us.
	if err := m.writeRun(r); err != nil {
		return err
	}

	stop := context.AfterFunc(ctx, func() { ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err = inside.Send(ours, c, files); err == nil {
		err = inside.Await(ours)
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the guest: %w", ctx.Err())
		}
		return m.blame(err)
	}
	return nil
}

// asked adds notes to unenforced, without those about limits that are only the
// driver's own default and without saying anything twice.
func asked(unenforced, notes []string, l plan.Limits) []string {
	for _, n := range notes {
		if l.Pids == 0 && strings.HasPrefix(n, "pids:") || slices.Contains(unenforced, n) {
			continue
		}
		unenforced = append(unenforced, n)
	}
	return unenforced
}

// cgroupName is unique on this system; the id is so in its directory only.
func (m *machine) cgroupName() string {
	sum := sha256.Sum256([]byte(filepath.Dir(m.path)))
	return fmt.Sprintf("%s-%x", m.id, sum[:4])
}

// oneID reports whether machines with map m have only root.
func oneID(m plan.IDMap) bool {
	uids, _, err := idMaps(m)
	return err == nil && len(uids) == 1 && uids[0].Size == 1
}

// blame adds what the guest said when it broke.
func (m *machine) blame(err error) error {
	b, rerr := os.ReadFile(filepath.Join(m.path, logFile))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 300 {
		b = b[:300]
	}
	return fmt.Errorf("%w (the guest said %q)", err, b)
}

// listen makes the socket on which the guest will answer, long after this
// process.
func (m *machine) listen() (*os.File, error) {
	if err := os.Remove(filepath.Join(m.path, socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, explain(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socketFile)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: m.socketPath()}); err != nil {
		f.Close()
		return nil, explain(os.NewSyscallError("bind", err))
	}
	if err := unix.Listen(fd, 128); err != nil {
		f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

// command is the guest's process in its new namespaces.
func (m *machine) command(p plan.Machine, guest, control, ln *os.File) (*exec.Cmd, error) {
	uids, gids, err := idMaps(p.IDMap)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(m.path, logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, explain(err)
	}
	one := oneID(p.IDMap)
	return &exec.Cmd{
		// Through a descriptor: the path to the program may lead through
		// directories that the machine's root cannot enter.
		Path:       "/proc/self/fd/5",
		Args:       []string{"kit-guest", "init"},
		Env:        []string{}, // /proc/1/environ is for all to read
		Dir:        "/",
		Stderr:     log,
		ExtraFiles: []*os.File{control, ln, guest},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
				syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
			UidMappings:                uids,
			GidMappings:                gids,
			GidMappingsEnableSetgroups: !one,
			Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: one},
		},
	}, nil
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
func (d *Driver) kill(m *machine) error {
	if p, err := m.process(); err == nil {
		defer p.close()
		// The end of the first process is the end of all in its PID namespace.
		if err := p.kill(); err != nil {
			return fmt.Errorf("killing machine %s: %w", m.id, err)
		}
		// Not the caller's context: half a kill is worse than a late one.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if p.wait(ctx) != nil {
			return fmt.Errorf("killing machine %s: %w", m.id, errWouldNotDie)
		}
	}
	d.reaped(m.id)
	return d.clear(m)
}

// clear removes what an ended machine left outside its directory, and the
// record of it.
func (d *Driver) clear(m *machine) error {
	if m.run != nil && m.run.Boot == bootID() {
		if err := (cgroup.System{}).Remove(m.cgroupName(), m.run.Cgroups); err != nil {
			return fmt.Errorf("machine %s: %w", m.id, err)
		}
	}
	for _, name := range []string{runFile, runFile + ".tmp", socketFile} {
		if err := os.Remove(filepath.Join(m.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return explain(err)
		}
	}
	m.run = nil
	return nil
}
