// Package guard keeps the covers of machines up: what there is to hide and to
// protect when a machine starts, and what comes into being while it runs.
//
// Which paths those are is decided in package cover, and how mounts are laid over
// them in internal/guest/inside. Drivers share this for as long as their machines
// are processes with a mount namespace.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cover"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Find returns what is to be laid over mount m when its machine starts, parents
// first.
func Find(m plan.Mount) ([]inside.Cover, error) {
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

// Empties returns detached mounts of an empty file and an empty directory, which
// belong to nobody that the machine whose directory is dir knows. The caller closes
// them.
func Empties(dir string) ([]*os.File, error) {
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

// A Watch is the watches of one machine's binds. [Guards.Keep] takes it over.
type Watch struct {
	mounts  []plan.Mount
	watches []*cover.Watch
	handed  bool // to somebody who closes them
}

// Begin begins to watch the binds of p that have covers, and makes what they say is
// to be there. Call it before [Find], so that nothing comes between.
func Begin(p plan.Machine) (*Watch, error) {
	w := &Watch{}
	for _, m := range p.Mounts {
		if m.Kind != plan.MountBind || len(m.Covers) == 0 {
			continue
		}
		err := cover.Make(m.Source, m.Covers)
		var one *cover.Watch
		if err == nil {
			one, err = cover.NewWatch(m.Source, m.Covers)
		}
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("mount %s: %w", m.Path, err)
		}
		w.mounts, w.watches = append(w.mounts, m), append(w.watches, one)
	}
	return w, nil
}

// Close ends the watches, unless they were handed on.
func (w *Watch) Close() {
	if w.handed {
		return
	}
	for _, one := range w.watches {
		one.Close()
	}
}

// Blind says which binds are not watched entirely, and what that means.
func (w *Watch) Blind() (notes []string) {
	for i, one := range w.watches {
		if one.Blind != nil {
			notes = append(notes, fmt.Sprintf("covers of %s: a file that comes into being while the sandbox runs may show until its next start: %v", w.mounts[i].Path, one.Blind))
		}
	}
	return notes
}

// Guards are the machines whose binds this process watches. Its zero value is ready
// and watches none; its methods can be called concurrently.
type Guards struct {
	mu  sync.Mutex
	pid map[string]int // guarded by mu: of the guest that is watched over, by machine
}

// Keep keeps the covers of a running machine up for as long as it and this process
// live. log is told what goes wrong meanwhile.
func (g *Guards) Keep(m *machinedir.Machine, w *Watch, log *slog.Logger) {
	if len(w.watches) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pid[m.ID] == m.Run.PID {
		return
	}
	if g.pid == nil {
		g.pid = map[string]int{}
	}
	g.pid[m.ID] = m.Run.PID
	w.handed = true
	id, dir, run := m.ID, m.Path, *m.Run
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		// Also when it cannot be waited for: then it is not there.
		_ = machinedir.Wait(ctx, filepath.Dir(dir), id)
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.pid[id] == run.PID {
			delete(g.pid, id)
		}
	}()
	for i, one := range w.watches {
		go func() {
			err := one.Run(ctx, func(found []cover.Found) {
				if err := layLater(dir, run, w.mounts[i], found); err != nil {
					log.Warn("covering what appeared", "machine", id, "mount", w.mounts[i].Path, "err", err)
				}
			})
			if err != nil {
				log.Warn("no longer watching for files to cover", "machine", id, "mount", w.mounts[i].Path, "err", err)
			}
		}()
	}
}

// Again watches over a machine that another process started and no longer watches:
// what appeared since is covered now.
func (g *Guards) Again(m *machinedir.Machine, log *slog.Logger) error {
	p, err := m.Plan()
	if err != nil || m.Run == nil {
		return err
	}
	g.mu.Lock()
	watched := g.pid[m.ID] == m.Run.PID
	g.mu.Unlock()
	if watched {
		return nil
	}
	w, err := Begin(p)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Lay(m); err != nil {
		return err
	}
	g.Keep(m, w, log)
	return nil
}

// Lay lays in a machine that runs whatever is to be covered now.
func (w *Watch) Lay(m *machinedir.Machine) error {
	for _, mt := range w.mounts {
		found, err := cover.Find(mt.Source, mt.Covers)
		if err == nil {
			err = layLater(m.Path, *m.Run, mt, found)
		}
		if err != nil {
			return fmt.Errorf("machine %s: mount %s: %w", m.ID, mt.Path, err)
		}
	}
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
	var want unix.Stat_t
	if err := unix.Stat(m.Source, &want); err != nil {
		return err
	}
	places, err := mountPoints(run.PID)
	if err != nil {
		return err
	}
	// In there, paths of the host cannot be named any more, so another thread
	// takes the mounts that are laid over what is hidden.
	empty := func(isDir bool) (int, error) {
		type taken struct {
			f   *os.File
			err error
		}
		got := make(chan taken)
		go func() {
			f, err := emptyMount(dir, isDir)
			got <- taken{f, err}
		}()
		t := <-got
		if t.err != nil {
			return -1, t.err
		}
		defer t.f.Close()
		return unix.FcntlInt(t.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		// Wherever it is now: directories above a mount can be renamed.
		seen := false
		for _, p := range append([]string{m.Path}, places...) {
			ok, err := layAt(p, want, forGuest(found), empty)
			if err != nil {
				return err
			}
			seen = seen || ok
		}
		if !seen {
			return fmt.Errorf("%s is nowhere in the machine any more", m.Source)
		}
		return nil
	})
}

// layAt lays covers below p, in the mount namespace of this thread, if p is the
// root of a mount of the directory that want describes.
func layAt(p string, want unix.Stat_t, cs []inside.Cover, empty inside.Empty) (bool, error) {
	root, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC})
	if err != nil {
		return false, nil //nolint:nilerr // moved away, or replaced by something else
	}
	defer unix.Close(root)
	var have unix.Stat_t
	if err := unix.Fstat(root, &have); err != nil {
		return false, err
	}
	var x unix.Statx_t
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &x); err != nil {
		return false, err
	}
	if have.Dev != want.Dev || have.Ino != want.Ino || x.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, nil
	}
	return true, inside.Lay(root, cs, empty)
}

// mountPoints lists where process pid has something mounted, as it names it.
func mountPoints(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4]))
		}
	}
	return out, nil
}
