package namespace

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

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The files of a machine's directory.
const (
	machineFile = "machine.json" // the plan, written once
	runFile     = "run.json"     // what runs, from before the guest begins
	lockFile    = "lock"         // flocked by whoever changes the machine
	socketFile  = "guest.sock"   // where the guest listens
	logFile     = "guest.log"    // what it says when it breaks
	writableDir = "rw"           // mounted into the machine: upper and work
)

// Directories whose name begins like this are half made or half removed; no
// machine id can.
const (
	newPrefix   = ".new-"
	trashPrefix = ".trash-"
)

// A run is what must be known to end a running machine.
type run struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // of the process, in ticks since boot
	Boot  string `json:"boot"`  // the kernel's boot id

	Cgroups    []string `json:"cgroups"`
	Unenforced []string `json:"unenforced,omitempty"`
}

// A machine is an open machine directory.
type machine struct {
	id   string
	path string
	dir  *os.File // path, opened: sockets below it are reached through this
	flk  *os.File // nil when not locked
	run  *run     // nil when nothing was started
}

// validID keeps ids from leaving the directory or looking like its own names.
func validID(id string) bool {
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

// open opens a machine for looking at it.
func open(base, id string) (*machine, error) {
	if !validID(id) {
		return nil, fmt.Errorf("machine %q: %w", id, kiterr.ErrNotFound)
	}
	p := filepath.Join(base, id)
	dir, err := os.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, explain(err)
	}
	m := &machine{id: id, path: p, dir: dir}
	m.reload()
	return m, nil
}

func (m *machine) close() { m.dir.Close() }

// lock opens a machine and takes its lock.
func lock(ctx context.Context, base, id string) (*machine, error) {
	for {
		m, err := open(base, id)
		if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(m.path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			m.close()
			continue // removed meanwhile
		}
		if err != nil {
			m.close()
			return nil, explain(err)
		}
		if err := flock(ctx, f); err != nil {
			f.Close()
			m.close()
			return nil, fmt.Errorf("waiting for another process that works on machine %s: %w", id, err)
		}
		// Whoever held the lock may have removed the machine, and a third
		// may have made it again.
		var held, now unix.Stat_t
		if unix.Fstat(int(m.dir.Fd()), &held) == nil && unix.Stat(m.path, &now) == nil && held.Ino == now.Ino && held.Dev == now.Dev {
			m.flk = f
			m.reload()
			return m, nil
		}
		f.Close()
		m.close()
	}
}

func (m *machine) unlock() {
	m.flk.Close()
	m.close()
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

// reload reads what runs. A record that cannot be read is one of before a
// crash of the whole system, after which nothing runs.
func (m *machine) reload() {
	m.run = nil
	b, err := os.ReadFile(filepath.Join(m.path, runFile))
	if err != nil {
		return
	}
	r := new(run)
	if json.Unmarshal(b, r) == nil && r.PID > 0 {
		m.run = r
	}
}

// plan reads what the machine is.
func (m *machine) plan() (plan.Machine, error) {
	var p plan.Machine
	b, err := os.ReadFile(filepath.Join(m.path, machineFile))
	if err != nil {
		return p, explain(err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("machine %s: %s cannot be read: %w", m.id, machineFile, err)
	}
	return p, nil
}

// process returns the guest's process; [kiterr.ErrNotRunning] if it has ended.
func (m *machine) process() (*process, error) {
	if m.run != nil && m.run.Boot == bootID() {
		if p, err := findProcess(m.run.PID, m.run.Start); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("machine %s: %w", m.id, kiterr.ErrNotRunning)
}

func (m *machine) running() bool {
	p, err := m.process()
	if err != nil {
		return false
	}
	p.close()
	return true
}

// socketPath names the socket through the open directory: the real path may be
// longer than a socket address.
func (m *machine) socketPath() string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", m.dir.Fd(), socketFile)
}

// dial connects to the guest.
func (m *machine) dial(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", m.socketPath())
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("machine %s: its guest does not answer (%v): %w", m.id, errors.Unwrap(err), kiterr.ErrNotRunning)
	}
	return c, nil
}

// create makes a machine's directory beside its place and renames it there.
func create(ctx context.Context, base string, p plan.Machine) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return explain(err)
	}
	sweep(base)
	final := filepath.Join(base, p.ID)
	if _, err := os.Lstat(final); err == nil {
		return fmt.Errorf("machine %s: %w", p.ID, kiterr.ErrExists)
	}
	tmp, err := os.MkdirTemp(base, newPrefix)
	if err != nil {
		return explain(err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	// Held until the end: a sweep leaves what is locked alone.
	lk, err := os.OpenFile(filepath.Join(tmp, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return explain(err)
	}
	defer lk.Close()
	if err := unix.Flock(int(lk.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another process swept %s away: try again", tmp)
	}
	if err := makeWritable(tmp, p); err != nil {
		return explain(err)
	}
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(tmp, machineFile), append(b, '\n')); err != nil {
		return explain(err)
	}
	if err := syncDir(tmp); err != nil {
		return explain(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE); err != nil {
		if err == unix.EEXIST {
			return fmt.Errorf("machine %s: %w", p.ID, kiterr.ErrExists)
		}
		return explain(err)
	}
	if err := syncDir(base); err != nil {
		os.RemoveAll(final)
		return explain(err)
	}
	return nil
}

// makeWritable makes the writable layer: as the lowest layer's root is, since
// it becomes the root of what the machine sees, and owned by the machine's ids.
func makeWritable(dir string, p plan.Machine) error {
	var st unix.Stat_t
	if err := unix.Stat(p.Layers[0], &st); err != nil {
		return fmt.Errorf("layer %s: %w", p.Layers[0], err)
	}
	rw := filepath.Join(dir, writableDir)
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
		if err := unix.Chown(d.path, int(d.uid), int(d.gid)); err != nil {
			return fmt.Errorf("chown %s: %w", d.path, err)
		}
		if err := unix.Chmod(d.path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the machine, of which nothing runs: first its name, at once.
func (m *machine) remove() error {
	base := filepath.Dir(m.path)
	trash, err := os.MkdirTemp(base, trashPrefix)
	if err != nil {
		return explain(err)
	}
	// Over the empty directory, which os.Rename refuses.
	if err := unix.Rename(m.path, trash); err != nil {
		os.Remove(trash)
		return explain(err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("removing machine %s: %w", m.id, explain(err))
	}
	return nil
}

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
		if err != nil {
			// Without a lock it may be about to get one.
			if st, err := os.Stat(p); err == nil && time.Since(st.ModTime()) > time.Minute {
				os.RemoveAll(p)
			}
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(p)
		}
		f.Close()
	}
}

// list describes all machines without waiting for any.
func list(base string) ([]driver.Machine, error) {
	entries, err := os.ReadDir(base) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err)
	}
	var ms []driver.Machine
	for _, e := range entries {
		if !e.IsDir() || !validID(e.Name()) {
			continue
		}
		m, err := open(base, e.Name())
		if err != nil {
			continue // removed meanwhile
		}
		dm := driver.Machine{ID: m.id}
		if m.run != nil {
			dm.Unenforced = m.run.Unenforced
		}
		if p, err := m.process(); err == nil {
			dm.Running, dm.PID = true, p.pid
			p.close()
		}
		m.close()
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

// writeRun records what runs. It is not synced: it means nothing after a crash
// of the whole system.
func (m *machine) writeRun(r *run) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(m.path, runFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return explain(err)
	}
	if err := os.Rename(tmp, filepath.Join(m.path, runFile)); err != nil {
		return explain(err)
	}
	m.run = r
	return nil
}

// explain gives errors of the disk a family and a next step.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk is full: %w: %w", err, kiterr.ErrUnavailable)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; choose another KITBOX_HOME or fix its owner: %w", err, kiterr.ErrUnavailable)
	}
	return err
}
