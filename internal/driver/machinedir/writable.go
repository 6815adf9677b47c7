package machinedir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The writable layer, upper and work, is in one of these.
const (
	writableDir   = "rw"      // a directory
	writableImage = "rw.ext4" // a file with a filesystem, which bounds it
)

// Limits returns what control groups shall hold of l, and a line for each limit
// that was asked for and cannot hold here.
func Limits(l plan.Limits) (groups cgroup.Limits, unenforced []string) {
	groups, unenforced = cgroup.Of(l)
	if l.DiskBytes > 0 {
		if err := loopfs.Unusable(); err != nil {
			unenforced = append(unenforced, "disk: "+strings.TrimSuffix(err.Error(), ": "+kiterr.ErrUnsupported.Error()))
		}
	}
	return groups, unenforced
}

// makeWritable makes the writable layer in dir, as tightly as p asks and this
// host can.
func makeWritable(ctx context.Context, dir string, p plan.Machine) error {
	if p.Limits.DiskBytes == 0 || loopfs.Unusable() != nil {
		rw := filepath.Join(dir, writableDir)
		if err := os.Mkdir(rw, 0o700); err != nil {
			return err
		}
		return layOut(rw, p)
	}
	file := filepath.Join(dir, writableImage)
	if err := loopfs.Make(ctx, file, p.Limits.DiskBytes, loopfs.Root{Mode: 0o755}); err != nil {
		return err
	}
	m, err := loopfs.Mount(file)
	if err != nil {
		return err
	}
	defer m.Close()
	return layOut(fmt.Sprintf("/proc/self/fd/%d", m.Fd()), p)
}

// layOut makes upper and work in rw: the former as the lowest layer's root is,
// since it becomes the root of what the machine sees, and both owned by the
// machine's ids.
func layOut(rw string, p plan.Machine) error {
	var st unix.Stat_t
	if err := unix.Stat(p.Layers[0], &st); err != nil {
		return fmt.Errorf("layer %s: %w", p.Layers[0], err)
	}
	rootUID, rootGID := p.IDMap.Stored(0, 0)
	for _, d := range []struct {
		path     string
		uid, gid uint32
		mode     uint32
	}{
		{rw, rootUID, rootGID, 0o755},
		{filepath.Join(rw, "upper"), st.Uid, st.Gid, st.Mode & 0o7777},
		{filepath.Join(rw, "work"), rootUID, rootGID, 0o700},
	} {
		if d.path != rw {
			if err := os.Mkdir(d.path, 0o700); err != nil {
				return err
			}
		}
		if !p.IDMap.IsIdentity() {
			d.uid += p.IDMap.Base
			d.gid += p.IDMap.Base
		}
		// An owner that this user namespace does not have stays ours.
		if err := unix.Chown(d.path, int(d.uid), int(d.gid)); err != nil && !(err == unix.EINVAL && p.IDMap.IsIdentity()) {
			return fmt.Errorf("chown %s: %w", d.path, err)
		}
		if err := unix.Chmod(d.path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// Writable returns a mount of the writable layer that is attached nowhere.
func (m *Machine) Writable() (*os.File, error) {
	f, err := m.writable()
	if err != nil {
		return nil, fmt.Errorf("writable layer: %w", err)
	}
	return f, nil
}

func (m *Machine) writable() (*os.File, error) {
	file := filepath.Join(m.Path, writableImage)
	if _, err := os.Lstat(file); err == nil {
		return loopfs.Mount(file)
	}
	// Never shifted: the overlay writes to it as the machine's own root, to
	// whom it belongs. With a shift the kernel mounts it read-only, silently.
	return idmap.Detached(filepath.Join(m.Path, writableDir), unix.MountAttr{})
}
