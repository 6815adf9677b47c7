// Package machinedir keeps machines on disk, one directory each, for drivers
// whose machines are processes of this system: what a machine is, what runs of
// it, its lock, its guest's socket and its writable layer.
//
// Whatever instant a process is killed at, what it leaves here is a machine
// that can be started or removed, or something that the next Create sweeps up.
package machinedir

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The files of a machine's directory. Drivers have more of their own.
const (
	machineFile = "machine.json" // the plan, written once
	runFile     = "run.json"     // what runs, from before the guest begins
	lockFile    = "lock"         // flocked by whoever changes the machine
	socketFile  = "guest.sock"   // where the guest listens
	LogFile     = "guest.log"    // what it says when it breaks
	WritableDir = "rw"           // mounted into the machine: upper and work
)

// Directories whose name begins like this are half made or half removed; no
// machine id can.
const (
	newPrefix   = ".new-"
	trashPrefix = ".trash-"
)

// A Run is what must be known to end a running machine.
type Run struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // of the process, in ticks since boot
	Boot  string `json:"boot"`  // the kernel's boot id

	Cgroups    []string `json:"cgroups"`
	Unenforced []string `json:"unenforced,omitempty"`
}

// A Machine is an open machine directory. Its methods are not safe for concurrent use.
type Machine struct {
	ID   string
	Path string
	Run  *Run // what was started and not cleared; nil when nothing was

	dir *os.File // Path, opened: sockets below it are reached through this
	flk *os.File // nil when not locked
}

// ValidID keeps ids from leaving the directory or looking like its own names.
func ValidID(id string) bool {
	if id == "" || len(id) > 200 || id[0] == '.' || id[0] == '-' {
		return false
	}
	for _, r := range id {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)) {
			return false
		}
	}
	return true
}

// Open opens a machine for looking at it.
func Open(base, id string) (*Machine, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("machine %q: %w", id, kiterr.ErrNotFound)
	}
	p := filepath.Join(base, id)
	dir, err := os.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, Explain(err)
	}
	m := &Machine{ID: id, Path: p, dir: dir}
	m.Reload()
	return m, nil
}

// Close ends looking at the machine; a locked one needs Unlock instead.
func (m *Machine) Close() { m.dir.Close() }

// Lock opens a machine and takes its lock.
func Lock(ctx context.Context, base, id string) (*Machine, error) {
	for {
		m, err := Open(base, id)
		if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(m.Path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			m.Close()
			continue // removed meanwhile
		}
		if err != nil {
			m.Close()
			return nil, Explain(err)
		}
		if err := flock(ctx, f); err != nil {
			f.Close()
			m.Close()
			return nil, fmt.Errorf("waiting for another process that works on machine %s: %w", id, err)
		}
		// Whoever held the lock may have removed the machine, and a third
		// may have made it again.
		var held, now unix.Stat_t
		if unix.Fstat(int(m.dir.Fd()), &held) == nil && unix.Stat(m.Path, &now) == nil && held.Ino == now.Ino && held.Dev == now.Dev {
			m.flk = f
			m.Reload()
			return m, nil
		}
		f.Close()
		m.Close()
	}
}

// Unlock lets others change the machine and closes it.
func (m *Machine) Unlock() {
	m.flk.Close()
	m.Close()
}

// flock waits for an exclusive lock until ctx is done.
func flock(ctx context.Context, f *os.File) error {
	pause := time.Millisecond
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// Reload reads what runs. A record that cannot be read is one of before a
// crash of the whole system, after which nothing runs.
func (m *Machine) Reload() {
	m.Run = nil
	b, err := os.ReadFile(filepath.Join(m.Path, runFile))
	if err != nil {
		return
	}
	r := new(Run)
	if json.Unmarshal(b, r) == nil && r.PID > 0 {
		m.Run = r
	}
}

// Plan reads what the machine is.
func (m *Machine) Plan() (plan.Machine, error) {
	var p plan.Machine
	b, err := os.ReadFile(filepath.Join(m.Path, machineFile))
	if err != nil {
		return p, Explain(err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("machine %s: %s cannot be read: %w", m.ID, machineFile, err)
	}
	return p, nil
}

// Process returns the guest's process; [kiterr.ErrNotRunning] if it has ended.
func (m *Machine) Process() (*Process, error) {
	if m.Run != nil && m.Run.Boot == BootID() {
		if p, err := FindProcess(m.Run.PID, m.Run.Start); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("machine %s: %w", m.ID, kiterr.ErrNotRunning)
}

// Running reports whether the guest's process exists.
func (m *Machine) Running() bool {
	p, err := m.Process()
	if err != nil {
		return false
	}
	p.Close()
	return true
}

// socketPath names the socket through the open directory: the real path may be
// longer than a socket address.
func (m *Machine) socketPath() string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", m.dir.Fd(), socketFile)
}

// Dial connects to the guest.
func (m *Machine) Dial(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", m.socketPath())
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("machine %s: its guest does not answer (%v): %w", m.ID, errors.Unwrap(err), kiterr.ErrNotRunning)
	}
	return c, nil
}

// Create makes a machine's directory beside its place and renames it there.
func Create(ctx context.Context, base string, p plan.Machine) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return Explain(err)
	}
	sweep(base)
	final := filepath.Join(base, p.ID)
	if _, err := os.Lstat(final); err == nil {
		return fmt.Errorf("machine %s: %w", p.ID, kiterr.ErrExists)
	}
	tmp, err := os.MkdirTemp(base, newPrefix)
	if err != nil {
		return Explain(err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	// Held until the end: a sweep leaves what is locked alone.
	lk, err := os.OpenFile(filepath.Join(tmp, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return Explain(err)
	}
	defer lk.Close()
	if err := unix.Flock(int(lk.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another process swept %s away: try again", tmp)
	}
	if err := MakeWritable(tmp, p); err != nil {
		return Explain(err)
	}
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(tmp, machineFile), append(b, '\n')); err != nil {
		return Explain(err)
	}
	if err := syncDir(tmp); err != nil {
		return Explain(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE); err != nil {
		if err == unix.EEXIST {
			return fmt.Errorf("machine %s: %w", p.ID, kiterr.ErrExists)
		}
		return Explain(err)
	}
	if err := syncDir(base); err != nil {
		os.RemoveAll(final)
		return Explain(err)
	}
	return nil
}

// MakeWritable makes the writable layer: as the lowest layer's root is, since
// it becomes the root of what the machine sees, and owned by the machine's ids.
func MakeWritable(dir string, p plan.Machine) error {
	var st unix.Stat_t
	if err := unix.Stat(p.Layers[0], &st); err != nil {
		return fmt.Errorf("layer %s: %w", p.Layers[0], err)
	}
	rw := filepath.Join(dir, WritableDir)
	for _, d := range []struct {
		path     string
		uid, gid uint32
		mode     uint32
	}{
		{rw, 0, 0, 0o755},
		{filepath.Join(rw, "upper"), st.Uid, st.Gid, st.Mode & 0o7777},
		{filepath.Join(rw, "work"), 0, 0, 0o700},
	} {
		if err := os.Mkdir(d.path, 0o700); err != nil {
			return err
		}
		if !p.IDMap.IsIdentity() {
			d.uid += p.IDMap.Base
			d.gid += p.IDMap.Base
		}
		// An owner that this user namespace does not have stays ours.
		if err := unix.Chown(d.path, int(d.uid), int(d.gid)); err != nil && !(err == unix.EINVAL && p.IDMap.IsIdentity()) {
			return fmt.Errorf("chown %s: %w", d.path, err)
		}
		if err := unix.Chmod(d.path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes the machine, of which nothing runs: first its name, at once.
func (m *Machine) Remove() error {
	base := filepath.Dir(m.Path)
	trash, err := os.MkdirTemp(base, trashPrefix)
	if err != nil {
		return Explain(err)
	}
	// Over the empty directory, which os.Rename refuses.
	if err := unix.Rename(m.Path, trash); err != nil {
		os.Remove(trash)
		return Explain(err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("removing machine %s: %w", m.ID, Explain(err))
	}
	return nil
}

// sweepAge is how old something without a lock must be to be nobody's: the time
// between two system calls, with much room for a busy system.
const sweepAge = time.Minute

// sweep deletes what killed processes left half made or half removed. What is
// locked is somebody's; errors are left to the next sweep.
func sweep(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newPrefix) && !strings.HasPrefix(e.Name(), trashPrefix) {
			continue
		}
		p := filepath.Join(base, e.Name())
		f, err := os.OpenFile(filepath.Join(p, lockFile), os.O_RDWR, 0)
		// A new one is not locked from its first instant on, and trash is not
		// trash before it has the machine's lock.
		if err != nil || strings.HasPrefix(e.Name(), newPrefix) {
			if st, serr := os.Stat(p); serr != nil || time.Since(st.ModTime()) < sweepAge {
				f.Close() // nil when err is not
				continue
			}
		}
		if err != nil {
			os.RemoveAll(p)
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(p)
		}
		f.Close()
	}
}

// List describes all machines without waiting for any.
func List(base string) ([]driver.Machine, error) {
	entries, err := os.ReadDir(base) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(err)
	}
	var ms []driver.Machine
	for _, e := range entries {
		if !e.IsDir() || !ValidID(e.Name()) {
			continue
		}
		m, err := Open(base, e.Name())
		if err != nil {
			continue // removed meanwhile
		}
		dm := driver.Machine{ID: m.ID}
		if m.Run != nil {
			dm.Unenforced = m.Run.Unenforced
		}
		if p, err := m.Process(); err == nil {
			dm.Running, dm.PID = true, p.PID
			p.Close()
		}
		m.Close()
		ms = append(ms, dm)
	}
	return ms, nil
}

// writeSynced writes a new file that is on disk when it returns.
func writeSynced(p string, b []byte) error {
	f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(p string) error {
	d, err := os.Open(p)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// WriteRun records what runs. It is not synced: it means nothing after a crash
// of the whole system.
func (m *Machine) WriteRun(r *Run) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(m.Path, runFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return Explain(err)
	}
	if err := os.Rename(tmp, filepath.Join(m.Path, runFile)); err != nil {
		return Explain(err)
	}
	m.Run = r
	return nil
}

// Explain gives errors of the disk a family and a next step.
func Explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk is full: %w: %w", err, kiterr.ErrUnavailable)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; choose another KITBOX_HOME or fix its owner: %w", err, kiterr.ErrUnavailable)
	}
	return err
}

// Listen makes the socket on which the guest will answer, long after this
// process.
func (m *Machine) Listen() (*os.File, error) {
	if err := os.Remove(filepath.Join(m.Path, socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, Explain(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socketFile)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: m.socketPath()}); err != nil {
		f.Close()
		return nil, Explain(os.NewSyscallError("bind", err))
	}
	if err := unix.Listen(fd, 128); err != nil {
		f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

// Blame adds to err what the guest said when it broke.
func (m *Machine) Blame(err error) error {
	b, rerr := os.ReadFile(filepath.Join(m.Path, LogFile))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 300 {
		b = b[:300]
	}
	return fmt.Errorf("%w (the guest said %q)", err, b)
}

// OpenLog empties the file for what the guest says when it breaks.
func (m *Machine) OpenLog() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(m.Path, LogFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, Explain(err)
	}
	return f, nil
}

// ClearRun forgets what ran. Nothing does any more.
func (m *Machine) ClearRun() error {
	for _, name := range []string{runFile, runFile + ".tmp", socketFile} {
		if err := os.Remove(filepath.Join(m.Path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return Explain(err)
		}
	}
	m.Run = nil
	return nil
}

// Kill ends the process of a running machine and returns when it has ended:
// the first process of a PID namespace, and with it all others there.
func (m *Machine) Kill() error {
	p, err := m.Process()
	if err != nil {
		return nil // it does not run
	}
	defer p.Close()
	if err := p.Kill(); err != nil {
		return fmt.Errorf("killing machine %s: %w", m.ID, err)
	}
	// Not the caller's context: half a kill is worse than a late one.
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if p.Wait(ctx) != nil {
		return fmt.Errorf("killing machine %s: its guest does not end even when killed; it waits in the kernel", m.ID)
	}
	return nil
}

// killTimeout bounds the wait for a killed process.
const killTimeout = 20 * time.Second

// CgroupName names the machine's control groups. It is unique on this system;
// the id is so in its directory only.
func (m *Machine) CgroupName() string {
	sum := sha256.Sum256([]byte(filepath.Dir(m.Path)))
	return fmt.Sprintf("%s-%x", m.ID, sum[:4])
}

// Stop asks the guest to end its processes within grace. What it answers is
// for a log: the caller kills the machine afterwards in any case.
func (m *Machine) Stop(ctx context.Context, grace time.Duration) error {
	if grace <= 0 || !m.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grace+2*time.Second)
	defer cancel()
	return (&client.Client{Dial: m.Dial}).Shutdown(ctx, grace)
}

// Wait returns when machine id of base does not run, or ctx's error.
func Wait(ctx context.Context, base, id string) error {
	m, err := Open(base, id)
	if err != nil {
		return err
	}
	p, err := m.Process()
	m.Close()
	if errors.Is(err, kiterr.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Wait(ctx)
}

// Dial connects to the guest of machine id of base.
func Dial(ctx context.Context, base, id string) (net.Conn, error) {
	m, err := Open(base, id)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if !m.Running() {
		return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	return m.Dial(ctx)
}

// NetNS opens the network namespace of machine id of base.
func NetNS(base, id string) (*os.File, error) {
	m, err := Open(base, id)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	p, err := m.Process()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.PID))
	if err == nil && p.Ended() {
		ns.Close() // perhaps a later process's
		err = fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	return ns, nil
}

// Base returns dir, or where machines are by default: "machines" in
// KITBOX_HOME, or in $XDG_STATE_HOME/kitbox.
func Base(dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	if home := os.Getenv("KITBOX_HOME"); home != "" {
		return filepath.Abs(filepath.Join(home, "machines"))
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for machines: set KITBOX_HOME: %w", kiterr.ErrUnavailable)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "kitbox", "machines"), nil
}

// OpenGuest opens the guest's program: p, or by default kit-guest in
// KITBOX_LIBEXEC or beside this program.
func OpenGuest(p string) (*os.File, error) {
	if p == "" {
		dir := os.Getenv("KITBOX_LIBEXEC")
		if dir == "" {
			exe, err := os.Executable()
			if err != nil {
				return nil, err
			}
			dir = filepath.Dir(exe)
		}
		p = filepath.Join(dir, "kit-guest")
	}
	f, err := os.Open(p)
	if err != nil {
		return nil, fmt.Errorf("the guest program %s cannot be opened; reinstall kitbox or set KITBOX_LIBEXEC: %w", p, kiterr.ErrUnavailable)
	}
	return f, nil
}

// Answers reports whether the machine runs and its guest answers. A machine
// whose starter was killed may be running towards its end: that is waited for,
// and then it does not run. A guest that neither answers nor ends is an error.
func (m *Machine) Answers(ctx context.Context) (bool, error) {
	p, err := m.Process()
	if err != nil {
		return false, nil
	}
	defer p.Close()
	_, err = (&client.Client{Dial: m.Dial}).Info(ctx)
	if err == nil {
		return true, nil
	}
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if p.Wait(wait) == nil {
		return false, nil
	}
	return false, fmt.Errorf("machine %s runs and its guest does not answer; stop it first: %w", m.ID, err)
}
