// Package durable is how kitbox writes to its home directory: whole files that
// a kill or a power cut leaves either old or new, journals whose lines are
// never torn for a reader, locks that end with the process that holds them, and
// one-line errors for a disk that is full or not writable.
//
// It knows nothing of what it writes. What a sandbox's files mean is in
// internal/store/state; images and layers are in layout and layer.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// TempPrefix starts the name of every unfinished file or directory. A reader
// of a directory skips such names; whoever sweeps it deletes old ones.
const TempPrefix = ".tmp-"

// WriteFile replaces the file at path by data: a temporary file beside it,
// fsync, rename, fsync of the directory. Whoever reads path sees the old
// content or the new, at any instant and after any crash. On error path is
// untouched; at worst a file starting with [TempPrefix] is left after a kill.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	if err := Replace(path, data, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Replace is WriteFile for a caller that syncs the directory itself, because it
// has more to change there. Until then a power cut may bring back the old
// content, whole.
func Replace(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, true)
}

// ReplaceAlone is Replace for a caller that holds a lock which everybody who
// writes path holds: its temporary file has one name, so that the next write
// takes away what a kill has left.
func ReplaceAlone(path string, data []byte, mode fs.FileMode) error {
	return replaceAlone(path, data, mode, true)
}

// WriteCacheAlone is [WriteCache] for such a caller.
func WriteCacheAlone(path string, data []byte) error { return replaceAlone(path, data, 0o600, false) }

func replaceAlone(path string, data []byte, mode fs.FileMode, sync bool) error {
	dir, base := filepath.Split(path)
	f, err := os.OpenFile(filepath.Join(dir, TempPrefix+base), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return Explain(path, err)
	}
	return finish(f, path, data, mode, sync)
}

// WriteCache is WriteFile for what can be made again: it is as atomic towards
// other processes and kills, and does not wait for the disk. After a power cut
// the file can be old, empty or torn, and its reader must notice.
func WriteCache(path string, data []byte) error { return replace(path, data, 0o600, false) }

func replace(path string, data []byte, mode fs.FileMode, sync bool) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, TempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return Explain(path, err)
	}
	return finish(f, path, data, mode, sync)
}

// finish fills f and gives it the name path. On error f is removed.
func finish(f *os.File, path string, data []byte, mode fs.FileMode, sync bool) (err error) {
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return Explain(path, err)
	}
	if err := f.Chmod(mode); err != nil {
		return Explain(path, err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			return Explain(path, err)
		}
	}
	if err := f.Close(); err != nil {
		return Explain(path, err)
	}
	return Explain(path, os.Rename(f.Name(), path))
}

// SyncDir makes renames, creations and removals in dir survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return Explain(dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return Explain(dir, err)
	}
	return nil
}

// AppendLine adds line and a newline to the journal at path, creating it with
// mode 0600, and returns when it is on disk. The line must not hold a newline.
// Several processes may append at once. A torn line that a crash left at the
// end is cut off first, so that it never ends up glued to the next.
func AppendLine(path string, line []byte) error {
	if bytes.IndexByte(line, '\n') >= 0 {
		return fmt.Errorf("journal %s: a line must not hold a newline", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Explain(path, err)
	}
	defer f.Close()
	// The lock is held for one write; the kernel drops it with the process.
	if err := retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
		return Explain(path, err)
	}
	if err := cutTorn(f); err != nil {
		return Explain(path, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Explain(path, err)
	}
	if _, err := f.Write(append(bytes.Clone(line), '\n')); err != nil {
		// A full disk can take half a line; a reader must not see it.
		_ = f.Truncate(size)
		return Explain(path, err)
	}
	if err := f.Sync(); err != nil {
		return Explain(path, err)
	}
	return nil
}

// cutTorn removes what follows the last newline of f.
func cutTorn(f *os.File) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return err
	}
	var buf [4096]byte
	for at := end; at > 0; {
		n := min(int64(len(buf)), at)
		if _, err := f.ReadAt(buf[:n], at-n); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			if keep := at - n + int64(i) + 1; keep != end {
				return f.Truncate(keep)
			}
			return nil
		}
		at -= n
	}
	return f.Truncate(0)
}

// Lines returns the whole lines of the journal at path, without newlines. A
// missing journal has none; a torn last line is left out.
func Lines(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(path, err)
	}
	var lines [][]byte
	for {
		line, rest, ok := bytes.Cut(data, []byte{'\n'})
		if !ok {
			return lines, nil
		}
		lines, data = append(lines, line), rest
	}
}

// MkdirAll makes dir and its parents with mode, private when mode says so.
// A dir that exists keeps its mode.
func MkdirAll(dir string, mode fs.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return Explain(dir, err)
	}
	return nil
}

// Explain turns an error of the file system at path into one line that names
// path and the next step, in the family [kiterr.ErrUnavailable] when this
// machine is the cause. Other errors get path in front unless they have it.
// Nil stays nil, and the cause stays reachable for [errors.Is].
func Explain(path string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, kiterr.ErrUnavailable) {
		return err // already explained further down
	}
	advice := ""
	switch {
	case Full(err):
		advice = "free space there, or set KITBOX_HOME to a directory on another disk"
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		advice = "make it writable for you, or set KITBOX_HOME to a directory that is"
	case errors.Is(err, unix.ENOTDIR):
		advice = "move that file away, or set KITBOX_HOME to another directory"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		advice = "raise the limit of open files (ulimit -n)"
	}
	// The syscall's own text is enough; the name of a temporary file is noise.
	cause := err
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		cause = pe.Err
	} else if le := (*os.LinkError)(nil); errors.As(err, &le) {
		cause = le.Err
	}
	switch {
	case advice != "":
		return &unavailable{path: path, advice: advice, cause: cause}
	case strings.Contains(err.Error(), path):
		return err
	default:
		return fmt.Errorf("%s: %w", path, cause)
	}
}

// Full reports whether err says that a disk, or somebody's share of it, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// unavailable is a file system that cannot be used as it is.
type unavailable struct {
	path, advice string
	cause        error
}

func (u *unavailable) Error() string   { return fmt.Sprintf("%s: %v: %s", u.path, u.cause, u.advice) }
func (u *unavailable) Unwrap() []error { return []error{kiterr.ErrUnavailable, u.cause} }

// retry repeats f while a signal interrupts it.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
