package machinedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

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
	tmp, err := os.MkdirTemp(base, own(newPrefix))
	if err != nil {
		return Explain(err)
	}
	defer func() {
		if err != nil {
			_ = durable.RemoveTree(tmp)
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
	if err := makeWritable(ctx, tmp, p); err != nil {
		return Explain(err)
	}
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	write := writeSynced
	if p.Volatile {
		write = writeNew
	}
	if err := write(filepath.Join(tmp, machineFile), append(b, '\n')); err != nil {
		return Explain(err)
	}
	if !p.Volatile {
		if err := syncDir(tmp); err != nil {
			return Explain(err)
		}
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
	if p.Volatile {
		return nil
	}
	if err := syncDir(base); err != nil {
		_ = durable.RemoveTree(final)
		return Explain(err)
	}
	return nil
}

// Remove deletes the machine, of which nothing runs: first its name, at once.
func (m *Machine) Remove() error {
	base := filepath.Dir(m.Path)
	sweep(base)
	trash, err := os.MkdirTemp(base, own(trashPrefix))
	if err != nil {
		return Explain(err)
	}
	// Over the empty directory, which os.Rename refuses.
	if err := unix.Rename(m.Path, trash); err != nil {
		os.Remove(trash)
		return Explain(err)
	}
	if err := durable.RemoveTree(trash); err != nil {
		return fmt.Errorf("removing machine %s: %w", m.ID, Explain(err))
	}
	return nil
}

// own is a prefix for names of this process's own, by which others see when it
// has ended.
func own(prefix string) string { return prefix + strconv.Itoa(os.Getpid()) + "-" }

// orphaned reports whether name, of something half made or half removed, is of a
// process that has ended. If its number is in use again, age decides.
func orphaned(name string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(name, newPrefix), trashPrefix)
	pid, err := strconv.Atoi(rest[:max(0, strings.IndexByte(rest, '-'))])
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
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
		if orphaned(e.Name()) {
			_ = durable.RemoveTree(p)
			continue
		}
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
			_ = durable.RemoveTree(p)
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = durable.RemoveTree(p)
		}
		f.Close()
	}
}

// writeSynced writes a new file that is on disk when it returns.
func writeSynced(p string, b []byte) error { return writeThen(p, b, (*os.File).Sync) }

// writeNew writes a new file and leaves it to the kernel when it is on disk.
func writeNew(p string, b []byte) error {
	return writeThen(p, b, func(*os.File) error { return nil })
}

func writeThen(p string, b []byte, then func(*os.File) error) error {
	f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = then(f)
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
