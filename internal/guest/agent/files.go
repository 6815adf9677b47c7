package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// write replaces a file in one step: two answers, the content between them.
func (a *Agent) write(c *protocol.Conn, r *protocol.Write) {
	var t *temporary
	var kept bool
	err := as(r.UID, r.GID, func() (err error) {
		t, kept, err = begin(r)
		return err
	})
	if err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	if kept {
		_ = a.answer(c, protocol.Answer{Stat: &protocol.FileInfo{}})
		return
	}
	defer t.close()
	if a.answer(c, protocol.Answer{}) != nil {
		return
	}
	if err := receiveContent(c, t.file, r.Size); err != nil {
		if !errors.Is(err, protocol.ErrProtocol) {
			a.fail(c, faultOf(r.Path, err))
		}
		return
	}
	if err := as(r.UID, r.GID, func() error { return t.commit(r) }); err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	_ = a.answer(c, protocol.Answer{})
}

// receiveContent writes exactly size bytes of KindIn to f. A file may be as
// slow as its disk: no credit, no data.
func receiveContent(c *protocol.Conn, f *os.File, size int64) error {
	owed := 0
	for {
		fr, err := c.Read()
		if err != nil {
			return protocol.ErrProtocol
		}
		if fr.Kind != protocol.KindIn {
			return protocol.ErrProtocol
		}
		n := len(fr.Body)
		if n == 0 {
			if size != 0 {
				return protocol.ErrProtocol
			}
			return nil
		}
		if size -= int64(n); size < 0 {
			return protocol.ErrProtocol
		}
		if _, err := f.Write(fr.Body); err != nil {
			return err
		}
		if owed += n; owed >= protocol.Window/4 {
			if c.WriteCredit(protocol.KindIn, owed) != nil {
				return protocol.ErrProtocol
			}
			owed = 0
		}
	}
}

// as runs f with the filesystem rights of uid and gid. The kernel keeps these
// per thread and takes the capabilities that ignore permissions away with them.
func as(uid, gid uint32, f func() error) error {
	if uid == 0 && gid == 0 {
		return f()
	}
	runtime.LockOSThread()
	// These calls do not fail in a way that they tell; what holds is read below.
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	defer func() {
		_, _ = unix.SetfsuidRetUid(0)
		_, _ = unix.SetfsgidRetGid(0)
		// A thread that could not be restored stays locked and ends with
		// its goroutine.
		if fsuid() == 0 && fsgid() == 0 {
			runtime.UnlockOSThread()
		}
	}()
	if fsuid() != int(uid) || fsgid() != int(gid) {
		return syscall.EINVAL // an id that this machine does not have
	}
	return f()
}

// fsuid and fsgid ask by setting an impossible id.
func fsuid() int { n, _ := unix.SetfsuidRetUid(-1); return n }
func fsgid() int { n, _ := unix.SetfsgidRetGid(-1); return n }

// A temporary is a file that is being written beside the one it will replace.
type temporary struct {
	dir  int // of both
	base string
	name string
	file *os.File
	done bool
}

func (t *temporary) close() {
	t.file.Close()
	if !t.done {
		unix.Unlinkat(t.dir, t.name, 0)
	}
	unix.Close(t.dir)
}

// begin opens the place of r.Path. It reports kept when there is something
// that r wants kept.
func begin(r *protocol.Write) (t *temporary, kept bool, err error) {
	if !path.IsAbs(r.Path) || r.Mode&^0o777 != 0 || r.Size < 0 {
		return nil, false, syscall.EINVAL
	}
	dir, base, err := openParent(r.Path, r.UID, r.GID, r.Parents)
	if err != nil {
		return nil, false, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		if r.KeepExisting {
			unix.Close(dir)
			return nil, true, nil
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			unix.Close(dir)
			return nil, false, syscall.EISDIR
		}
	}
	var id [6]byte
	rand.Read(id[:])
	name := ".kitbox-" + hex.EncodeToString(id[:])
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		unix.Close(dir)
		return nil, false, err
	}
	return &temporary{dir: dir, base: base, name: name, file: os.NewFile(uintptr(fd), name)}, false, nil
}

// commit gives the file its owner, mode and name.
func (t *temporary) commit(r *protocol.Write) error {
	fd := int(t.file.Fd())
	// Before the mode: changing the owner clears bits of it.
	if err := unix.Fchown(fd, int(r.UID), int(r.GID)); err != nil {
		return err
	}
	mode := r.Mode
	if mode == 0 {
		mode = 0o644
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	flags := uint(0)
	if r.KeepExisting {
		flags = unix.RENAME_NOREPLACE
	}
	err := unix.Renameat2(t.dir, t.name, t.dir, t.base, flags)
	if err == unix.EEXIST && r.KeepExisting {
		return nil // made meanwhile, and kept
	}
	if err == nil {
		t.done = true
	}
	return err
}

// errForeignLink means that a path leads through a symbolic link that somebody
// else made, who could have pointed it anywhere.
var errForeignLink = errors.New("the path leads through another user's symbolic link")

// openParent opens the directory of p and returns its last element. Symbolic
// links on the way count only if root or uid made them. With create, missing
// directories are made for uid and gid.
func openParent(p string, uid, gid uint32, create bool) (dir int, base string, err error) {
	p = path.Clean(p)
	if p == "/" {
		return -1, "", syscall.EISDIR
	}
	todo := strings.Split(strings.TrimPrefix(p, "/"), "/")
	todo, base = todo[:len(todo)-1], todo[len(todo)-1]

	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err = unix.Open("/", flags|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, "", err
	}
	defer func() {
		if err != nil {
			unix.Close(dir)
		}
	}()
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		next, err := unix.Openat(dir, name, flags, 0)
		if err == unix.ENOENT && create && name != ".." {
			if err := makeDir(dir, name, uid, gid); err != nil {
				return dir, "", err
			}
			next, err = unix.Openat(dir, name, flags, 0)
		}
		if err != nil {
			return dir, "", err
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return dir, "", err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			unix.Close(dir)
			dir = next
		case unix.S_IFLNK:
			target, err := readlink(next)
			unix.Close(next)
			if err != nil {
				return dir, "", err
			}
			if links++; links > 40 {
				return dir, "", syscall.ELOOP
			}
			if st.Uid != 0 && st.Uid != uid {
				return dir, "", errForeignLink
			}
			if path.IsAbs(target) {
				root, err := unix.Open("/", flags|unix.O_DIRECTORY, 0)
				if err != nil {
					return dir, "", err
				}
				unix.Close(dir)
				dir = root
			}
			todo = append(strings.Split(target, "/"), todo...)
		default:
			unix.Close(next)
			return dir, "", syscall.ENOTDIR
		}
	}
	return dir, base, nil
}

// makeDir makes a directory for uid and gid. One that appears meanwhile is as
// good.
func makeDir(dir int, name string, uid, gid uint32) error {
	if err := unix.Mkdirat(dir, name, 0o755); err != nil {
		if err == unix.EEXIST {
			return nil
		}
		return err
	}
	return unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
}

// readlink reads the link that fd is.
func readlink(fd int) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// read sends the content of a regular file.
func (a *Agent) read(c *protocol.Conn, r *protocol.Read) {
	f, st, err := openRegular(r.Path)
	if err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	defer f.Close()
	if st.Size > r.MaxBytes {
		a.fail(c, protocol.Faultf(protocol.FaultTooLarge, "%s has %d bytes, more than %d", r.Path, st.Size, r.MaxBytes))
		return
	}
	if a.answer(c, protocol.Answer{Stat: st}) != nil {
		return
	}
	b := protocol.NewBudget()
	go credit(c, b)
	_ = protocol.Send(c, protocol.KindOut, io.LimitReader(f, r.MaxBytes), b)
}

// credit adds to b what the host gives back, and closes it when c ends or the host
// says anything else.
func credit(c *protocol.Conn, b *protocol.Budget) {
	defer b.Close()
	for {
		f, err := c.Read()
		if err != nil || f.Kind != protocol.KindCredit {
			return
		}
		if _, n, err := protocol.ParseCredit(f.Body); err != nil || b.Add(n) != nil {
			return
		}
	}
}

// openRegular opens p if it is a regular file. It neither waits for the other
// end of a pipe nor wakes a device.
func openRegular(p string) (*os.File, *protocol.FileInfo, error) {
	if !path.IsAbs(p) {
		return nil, nil, syscall.EINVAL
	}
	fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := describe(fd)
	unix.Close(fd)
	if err != nil {
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, errNotRegular
	}
	fd, err = unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	if st, err = describe(fd); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

var errNotRegular = errors.New("not a regular file")

// stat describes what is at a path.
func (a *Agent) stat(c *protocol.Conn, r *protocol.Stat) {
	st, err := statPath(r)
	if err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	_ = a.answer(c, protocol.Answer{Stat: st})
}

func statPath(r *protocol.Stat) (*protocol.FileInfo, error) {
	if !path.IsAbs(r.Path) {
		return nil, syscall.EINVAL
	}
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !r.Follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(r.Path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return describe(fd)
}

func describe(fd int) (*protocol.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	info := &protocol.FileInfo{Size: st.Size, Mode: st.Mode, UID: st.Uid, GID: st.Gid}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readlink(fd)
		if err != nil {
			return nil, err
		}
		info.Link = target
	}
	return info, nil
}

// faultOf names p and what is wrong with it.
func faultOf(p string, err error) *protocol.Fault {
	code := protocol.FaultFailed
	switch {
	case errors.Is(err, os.ErrNotExist):
		code = protocol.FaultNotFound
	case errors.Is(err, syscall.EINVAL):
		code = protocol.FaultInvalid
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return protocol.Faultf(code, "%s: %v", p, err)
}
