// Package machinedir keeps machines on disk, one directory each, for drivers
// whose machines are processes of this system: what a machine is, what runs of
// it, its lock, its guest's socket and its writable layer.
//
// Whatever instant a process is killed at, what it leaves here is a machine
// that can be started or removed, or something that the next Create sweeps up.
package machinedir

import (
	"context"
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

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The files of a machine's directory. Drivers have more of their own.
const (
	machineFile = "machine.json" // the plan, written once
	runFile     = "run.json"     // what runs, from before the guest begins
	lockFile    = "lock"         // flocked by whoever changes the machine
	socketFile  = "guest.sock"   // where the guest listens
	LogFile     = "guest.log"    // what it says when it breaks
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
	if json.Unmarshal(b, r) == nil && r.Boot != "" {
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
	if m.Run != nil && m.Run.Boot == durable.Boot() {
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
