package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// stageDirs are directories to lay a stage over: a place that the machine's
// ids may enter, which a directory of machines is not.
var stageDirs = []string{"/mnt", "/media", "/srv", "/opt"}

// A stage is what a machine is made of, as mounts that are attached nowhere
// but in the mount namespace of the runtime's process.
type stage struct {
	path     string     // where it will be
	layers   []*os.File // lowest first
	writable *os.File
	binds    []*os.File // one per mount of the plan; nil for others
	files    []bool     // which binds are of a file
	guest    *os.File
	devices  []device.Node // of whoever boots the machine
}

// gather takes the mounts of p.
func gather(p plan.Machine, writable func() (*os.File, error), guest string) (_ *stage, err error) {
	st := new(stage)
	for _, dir := range stageDirs {
		if i, err := os.Stat(dir); err == nil && i.IsDir() {
			st.path = dir
			break
		}
	}
	if st.path == "" {
		return nil, fmt.Errorf("none of %v is there to mount on", stageDirs)
	}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	ns, err := idmap.Shift(guest, p.IDMap)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	shift := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	for _, l := range p.Layers {
		attr := shift
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		f, err := idmap.Detached(l, attr)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l, err)
		}
		st.layers = append(st.layers, f)
	}
	if st.writable, err = writable(); err != nil {
		return nil, err
	}
	if st.guest, err = idmap.Detached(guest, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return nil, err
	}
	for _, m := range p.Mounts {
		f, isFile, err := gatherBind(m, shift, p.IDMap, guest)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Path, err)
		}
		st.binds = append(st.binds, f)
		st.files = append(st.files, isFile)
	}
	return st, nil
}

func gatherBind(m plan.Mount, attr unix.MountAttr, ids plan.IDMap, guest string) (f *os.File, isFile bool, err error) {
	if m.Kind == plan.MountImage {
		if f, err = loopfs.Mount(m.Source); err != nil {
			return nil, false, err
		}
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
		if m.ReadOnly {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		f, err = idmap.With(f, attr)
		return f, false, err
	}
	if m.Kind != plan.MountBind {
		return nil, false, nil
	}
	i, err := os.Stat(m.Source)
	if err != nil {
		return nil, false, fmt.Errorf("source %s: %w", m.Source, err)
	}
	attr.Attr_set |= unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if m.Owner != nil {
		ns, err := idmap.Owner(guest, m.Owner, ids)
		if err != nil {
			return nil, false, err
		}
		defer ns.Close()
		attr.Userns_fd = uint64(ns.Fd())
		f, err = idmap.Straight(m.Source, attr)
		return f, !i.IsDir(), err
	}
	f, err = idmap.Detached(m.Source, attr)
	return f, !i.IsDir(), err
}

func (st *stage) close() {
	for _, f := range append(append([]*os.File{st.writable, st.guest}, st.layers...), st.binds...) {
		if f != nil {
			f.Close()
		}
	}
}

// The places of a stage.
func (st *stage) root() string      { return filepath.Join(st.path, "root") }
func (st *stage) bind(i int) string { return filepath.Join(st.path, "b"+strconv.Itoa(i)) }
func (st *stage) node(i int) string { return filepath.Join(st.path, "d"+strconv.Itoa(i)) }

// build mounts everything in the mount namespace of this thread.
func (st *stage) build() error {
	if err := unix.Mount("stage", st.path, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mounting a stage on %s: %w", st.path, err)
	}
	attach := func(f *os.File, p string, file bool) error {
		var err error
		if file {
			err = os.WriteFile(p, nil, 0o644)
		} else {
			err = os.Mkdir(p, 0o755)
		}
		if err != nil {
			return err
		}
		if err := unix.MoveMount(int(f.Fd()), "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("attaching %s: %w", f.Name(), err)
		}
		return nil
	}
	lower := make([]string, len(st.layers))
	for i, f := range st.layers {
		name := strconv.Itoa(i)
		if err := attach(f, filepath.Join(st.path, name), false); err != nil {
			return err
		}
		lower[len(lower)-1-i] = name
	}
	if err := attach(st.writable, filepath.Join(st.path, "rw"), false); err != nil {
		return err
	}
	for i, f := range st.binds {
		if f == nil {
			continue
		}
		if err := attach(f, st.bind(i), st.files[i]); err != nil {
			return err
		}
	}
	for i, d := range st.devices {
		if err := attach(d.Mount, st.node(i), true); err != nil {
			return err
		}
	}
	if err := os.Mkdir(st.root(), 0o755); err != nil {
		return err
	}
	// Relative names, for the kernel takes one page of options. This thread
	// has a working directory of its own.
	if err := unix.Chdir(st.path); err != nil {
		return err
	}
	opts := "userxattr,lowerdir=" + strings.Join(lower, ":") + ",upperdir=rw/upper,workdir=rw/work"
	if err := unix.Mount("overlay", "root", "overlay", 0, opts); err != nil {
		return fmt.Errorf("mounting the root overlay of %d layers: %w", len(lower), err)
	}
	return nil
}

// privately runs f, which starts processes, in a mount namespace that holds
// st, if it is not nil, and that ends with those processes. No other thread of
// this program is in it.
func privately(st *stage, f func() error) error {
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("making a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("making mounts private: %w", err)
		}
		hideUnified()
		if st != nil {
			if err := st.build(); err != nil {
				return err
			}
		}
		return f()
	})
}

// hideUnified unmounts the unified tree of a system whose controllers are in
// v1 trees. crun refuses to work when it finds both.
func hideUnified() {
	const hybrid = "/sys/fs/cgroup/unified"
	var st unix.Statfs_t
	if unix.Statfs(hybrid, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		_ = unix.Unmount(hybrid, unix.MNT_DETACH)
	}
}
