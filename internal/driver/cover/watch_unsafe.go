package cover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Watch tells what comes into being below a root that rules are about. A file
// that the host replaces is a new one: whatever was mounted over the old one is
// gone with it.
type Watch struct {
	f     *os.File // inotify
	fd    int      // of f, which [os.File.Fd] would make blocking
	s     *search
	names map[int]string // of watched directories, by watch descriptor

	// Blind is the first reason why some directory is not watched.
	Blind error
}

// interest is what can bring a path into being. What a machine does to files that
// are covered does not come here: it cannot.
const interest = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK | unix.IN_DONT_FOLLOW

// NewWatch begins to watch root, so that nothing is missed between this and a
// [Find] that comes after it. The caller runs or closes it.
func NewWatch(root string, cs []plan.Cover) (*Watch, error) {
	// What is there of rules that hold once stays under watch by its path.
	there, err := Find(root, cs)
	if err != nil {
		return nil, err
	}
	s, err := newSearch(root, cs)
	if err != nil {
		return nil, err
	}
	var rs []rule
	for _, r := range s.rules {
		if !r.once {
			rs = append(rs, r)
			continue
		}
		for _, f := range there {
			if r.matches(f.Path, f.Dir) {
				rs = append(rs, rule{kind: r.kind, elements: literal(f.Path)})
			}
		}
	}
	s.rules = rs
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.root.Close()
		return nil, fmt.Errorf("watching %s: %w; raise the sysctl fs.inotify.max_user_instances", root, err)
	}
	w := &Watch{f: os.NewFile(uintptr(fd), "inotify"), fd: fd, s: s, names: map[int]string{}}
	s.enter = w.add
	if err := s.walk("."); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// literal is the pattern of one path.
func literal(p string) []string {
	return strings.Split(strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(p), "/")
}

// Close ends the watch.
func (w *Watch) Close() {
	w.f.Close()
	w.s.root.Close()
}

// add watches one directory. The kernel knows it by its inode: one that was moved
// keeps its number and gets its new name.
func (w *Watch) add(dir string) {
	d, err := w.s.root.Open(dir)
	if err != nil {
		return // gone, or not to be read
	}
	defer d.Close()
	c, err := d.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), interest&^unix.IN_DONT_FOLLOW)
		if err == nil {
			w.names[wd] = dir
		} else if w.Blind == nil && !errors.Is(err, fs.ErrNotExist) {
			w.Blind = fmt.Errorf("%s: %w", dir, err)
			if errors.Is(err, unix.ENOSPC) {
				w.Blind = errors.New("there are more directories than the kernel watches for one user; raise the sysctl fs.inotify.max_user_watches")
			}
		}
	})
}

// Run calls cover with what appeared and is to be covered, and deletes files that
// are forbidden, until ctx is done. It closes the watch. Its error is nil when ctx
// ended it.
func (w *Watch) Run(ctx context.Context, cover func([]Found)) error {
	defer w.Close()
	stop := context.AfterFunc(ctx, func() { w.f.Close() })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching %s: %w", w.s.root.Name(), err)
		}
		w.s.found, w.s.links = map[string]Found{}, map[inode]int{}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ev := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			end := unix.SizeofInotifyEvent + int(ev.Len)
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
			if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
				err = errors.Join(err, w.s.walk("."))
				continue
			}
			if ev.Mask&unix.IN_IGNORED != 0 {
				delete(w.names, int(ev.Wd))
				continue
			}
			dir, ok := w.names[int(ev.Wd)]
			if !ok || name == "" {
				continue
			}
			err = errors.Join(err, w.appeared(path.Join(dir, name), ev.Mask&unix.IN_ISDIR != 0))
		}
		if oerr := w.s.otherNames(); err == nil {
			err = oerr
		}
		w.s.enter = w.add
		if err != nil {
			return err
		}
		if fs := w.s.result(); len(fs) > 0 {
			cover(fs)
		}
	}
}

// appeared judges a new path and, of a directory, all below it.
func (w *Watch) appeared(rel string, dir bool) error {
	if !dir && slices.ContainsFunc(w.s.rules, func(r rule) bool { return r.kind == plan.CoverForbid && r.matches(rel, dir) }) {
		if err := w.s.root.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", rel, err)
		}
		return nil
	}
	covered, err := w.s.look(rel, dir)
	if err != nil || !dir || covered || bulk(rel) || !w.s.into(rel) {
		return err
	}
	return w.s.walk(rel)
}
