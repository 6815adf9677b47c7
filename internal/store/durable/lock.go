package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Lock is held until Unlock or the end of the process, whichever is first.
// Its file is never deleted: deleting would let two processes hold "the" lock.
type Lock struct{ f *os.File }

// A LockMode says who else may hold the lock.
type LockMode int

const (
	Exclusive LockMode = iota
	Shared
)

// A BusyError means somebody else held the lock for as long as the caller was
// willing to wait. It unwraps to the context's error.
type BusyError struct {
	Path   string
	Holder string // what the holder said of itself, e.g. "pid 17 (kitbox create)"; may be empty
	cause  error
}

func (b *BusyError) Error() string {
	if b.Holder == "" {
		return fmt.Sprintf("%s is locked by another process", b.Path)
	}
	return fmt.Sprintf("%s is locked by %s", b.Path, b.Holder)
}

func (b *BusyError) Unwrap() error { return b.cause }

// AcquireLock takes the flock of the file at path, which it creates with mode
// 0600, waiting until ctx is done; then it returns a [BusyError]. Between
// threads of one process it excludes as between processes.
func AcquireLock(ctx context.Context, path string, mode LockMode) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, Explain(path, err)
	}
	how := unix.LOCK_EX | unix.LOCK_NB
	if mode == Shared {
		how = unix.LOCK_SH | unix.LOCK_NB
	}
	err = poll(ctx, func() error { return unix.Flock(int(f.Fd()), how) })
	if err != nil {
		defer f.Close()
		if ctx.Err() != nil {
			return nil, &BusyError{Path: path, Holder: holder(f), cause: ctx.Err()}
		}
		return nil, Explain(path, err)
	}
	return &Lock{f: f}, nil
}

// AcquireSlot is AcquireLock for one of very many locks kept in one file: slot
// numbers below 1<<62 exclude each other independently, and no file is left
// behind for each. It does not meet a flock on the same file.
func AcquireSlot(ctx context.Context, path string, slot uint64, mode LockMode) (*Lock, error) {
	return AcquireSlots(ctx, path, []uint64{slot}, mode)
}

// AcquireSlots takes several slots as one lock, in the order given. Whoever
// takes several must take them [Shared], and hold none while taking them: then
// nobody waits in a circle.
func AcquireSlots(ctx context.Context, path string, slots []uint64, mode LockMode) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, Explain(path, err)
	}
	for _, slot := range slots {
		fl := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(slot & (1<<62 - 1)), Len: 1}
		if mode == Shared {
			fl.Type = unix.F_RDLCK
		}
		err = poll(ctx, func() error {
			err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &fl)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
				return unix.EWOULDBLOCK
			}
			return err
		})
		if err != nil {
			f.Close()
			if ctx.Err() != nil {
				return nil, &BusyError{Path: path, cause: ctx.Err()}
			}
			return nil, Explain(path, err)
		}
	}
	return &Lock{f: f}, nil
}

// Unlock gives the lock back. Calling it twice does nothing more.
func (l *Lock) Unlock() { l.f.Close() }

// Guards reports whether path still is the locked file: a directory that was
// removed and made again has another file of the same name.
func (l *Lock) Guards(path string) bool {
	a, err := l.f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// Sign writes who holds the lock into its file, for the message others get.
// Failure does not matter: the lock holds without a name.
func (l *Lock) Sign(what string) {
	_ = l.f.Truncate(0)
	_, _ = l.f.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), what), 0)
}

// holder reads what Sign wrote, if its author still lives.
func holder(f *os.File) string {
	var buf [256]byte
	n, _ := f.ReadAt(buf[:], 0)
	pid, what, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
	id, err := strconv.Atoi(pid)
	if err != nil || id <= 0 || errors.Is(unix.Kill(id, 0), unix.ESRCH) {
		return ""
	}
	if what == "" {
		return "pid " + pid
	}
	return fmt.Sprintf("pid %s (%s)", pid, what)
}

// poll tries until try does not answer EWOULDBLOCK, or ctx is done. A blocking
// flock could not be given up again without leaking its thread. The pauses
// grow to 20 ms, which nobody notices behind work that takes a lock.
func poll(ctx context.Context, try func() error) error {
	pause := time.Millisecond
	for {
		err := try()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}
