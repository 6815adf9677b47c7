package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cover"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// coversOf is what the guest is to lay over mount m.
func coversOf(m plan.Mount) ([]inside.Cover, error) {
	if len(m.Covers) == 0 {
		return nil, nil
	}
	found, err := cover.Find(m.Source, m.Covers)
	return forGuest(found), err
}

func forGuest(found []cover.Found) []inside.Cover {
	var cs []inside.Cover
	for _, f := range found {
		cs = append(cs, inside.Cover{Path: f.Path, Kind: string(f.Kind), Dir: f.Dir})
	}
	return cs
}

// The empty file and directory of a machine, which lie over what it must not see.
const (
	emptyFile = "empty"
	emptyDir  = "empty.d"
)

// empties returns detached mounts of an empty file and an empty directory, which
// belong to nobody that the machine knows.
func empties(dir string) ([]*os.File, error) {
	f, err := emptyMount(dir, false)
	if err != nil {
		return nil, err
	}
	d, err := emptyMount(dir, true)
	if err != nil {
		f.Close()
		return nil, err
	}
	return []*os.File{f, d}, nil
}

func emptyMount(dir string, isDir bool) (*os.File, error) {
	p := filepath.Join(dir, emptyFile)
	var err error
	if isDir {
		p = filepath.Join(dir, emptyDir)
		if err = os.Mkdir(p, 0o555); errors.Is(err, os.ErrExist) {
			err = nil
		}
	} else {
		var f *os.File
		if f, err = os.OpenFile(p, os.O_CREATE|os.O_RDONLY, 0o444); err == nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	return idmap.Detached(p, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC})
}

// A guarded is the watches of one machine's binds.
type guarded struct {
	mounts  []plan.Mount
	watches []*cover.Watch
	handed  bool // to somebody who closes them
}

func (g *guarded) close() {
	if g.handed {
		return
	}
	for _, w := range g.watches {
		w.Close()
	}
}

// blind says which binds are not watched entirely, and what that means.
func (g *guarded) blind() (notes []string) {
	for i, w := range g.watches {
		if w.Blind != nil {
			notes = append(notes, fmt.Sprintf("covers of %s: a file that comes into being while the sandbox runs may show until its next start: %v", g.mounts[i].Path, w.Blind))
		}
	}
	return notes
}

// watch begins to watch the binds of p that have covers.
func (d *Driver) watch(p plan.Machine) (*guarded, error) {
	g := &guarded{}
	for _, m := range p.Mounts {
		if m.Kind != plan.MountBind || len(m.Covers) == 0 {
			continue
		}
		err := cover.Make(m.Source, m.Covers)
		var w *cover.Watch
		if err == nil {
			w, err = cover.NewWatch(m.Source, m.Covers)
		}
		if err != nil {
			g.close()
			return nil, fmt.Errorf("mount %s: %w", m.Path, err)
		}
		g.mounts, g.watches = append(g.mounts, m), append(g.watches, w)
	}
	return g, nil
}

// guards are the machines whose binds this process watches.
type guards struct {
	mu  sync.Mutex
	pid map[string]int // guarded by mu: of the guest that is watched over, by machine
}

// guard keeps the covers of a running machine up for as long as it and this
// process live.
func (d *Driver) guard(m *machinedir.Machine, g *guarded) {
	if len(g.watches) == 0 {
		return
	}
	d.guards.mu.Lock()
	defer d.guards.mu.Unlock()
	if d.guards.pid[m.ID] == m.Run.PID {
		return
	}
	if d.guards.pid == nil {
		d.guards.pid = map[string]int{}
	}
	d.guards.pid[m.ID] = m.Run.PID
	g.handed = true
	id, dir, run := m.ID, m.Path, *m.Run
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		// Also when it cannot be waited for: then it is not there.
		_ = machinedir.Wait(ctx, filepath.Dir(dir), id)
		cancel()
		d.guards.mu.Lock()
		defer d.guards.mu.Unlock()
		if d.guards.pid[id] == run.PID {
			delete(d.guards.pid, id)
		}
	}()
	for i, w := range g.watches {
		go func() {
			err := w.Run(ctx, func(found []cover.Found) {
				if err := layLater(dir, run, g.mounts[i], found); err != nil {
					d.log().Warn("covering what appeared", "machine", id, "mount", g.mounts[i].Path, "err", err)
				}
			})
			if err != nil {
				d.log().Warn("no longer watching for files to cover", "machine", id, "mount", g.mounts[i].Path, "err", err)
			}
		}()
	}
}

// guardAgain watches over a machine that another process started and no longer
// watches: what appeared since is covered now.
func (d *Driver) guardAgain(m *machinedir.Machine) error {
	p, err := m.Plan()
	if err != nil || m.Run == nil {
		return err
	}
	d.guards.mu.Lock()
	watched := d.guards.pid[m.ID] == m.Run.PID
	d.guards.mu.Unlock()
	if watched {
		return nil
	}
	g, err := d.watch(p)
	if err != nil {
		return err
	}
	defer g.close()
	for _, mt := range g.mounts {
		found, err := cover.Find(mt.Source, mt.Covers)
		if err == nil {
			err = layLater(m.Path, *m.Run, mt, found)
		}
		if err != nil {
			return fmt.Errorf("machine %s: mount %s: %w", m.ID, mt.Path, err)
		}
	}
	d.guard(m, g)
	return nil
}

// layLater lays covers in a running machine, from a thread of this process that
// enters its mount namespace and then ends.
func layLater(dir string, run machinedir.Run, m plan.Mount, found []cover.Found) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", run.PID))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	defer ns.Close()
	// Looked at after the namespace was opened: it is that of the guest then.
	if start, err := machinedir.StartTicks(run.PID); err != nil || start != run.Start {
		return nil
	}
	var want, have unix.Stat_t
	if err := unix.Stat(m.Source, &want); err != nil {
		return err
	}
	// In there, paths of the host cannot be named any more.
	var ready [2][]*os.File
	defer func() { closeAll(ready[0]); closeAll(ready[1]) }()
	for _, f := range found {
		if f.Kind == plan.CoverHide {
			e, err := emptyMount(dir, f.Dir)
			if err != nil {
				return err
			}
			ready[kind(f.Dir)] = append(ready[kind(f.Dir)], e)
		}
	}
	empty := func(dir bool) (int, error) {
		list := ready[kind(dir)]
		if len(list) == 0 {
			return -1, unix.ENOENT // a file has become a directory since; the next event is about that
		}
		ready[kind(dir)] = list[1:]
		defer list[0].Close()
		return unix.FcntlInt(list[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return os.NewSyscallError("unshare", err)
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return os.NewSyscallError("setns", err)
			}
			root, err := unix.Open(m.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(root)
			if err := unix.Fstat(root, &have); err != nil {
				return err
			}
			if have.Dev != want.Dev || have.Ino != want.Ino {
				return fmt.Errorf("%s is another directory in the machine now", m.Path)
			}
			return inside.Lay(root, forGuest(found), empty)
		}()
	}()
	return <-done
}

func kind(dir bool) int {
	if dir {
		return 1
	}
	return 0
}
