package namespace

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/driver/guard"
	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// mapping is how mounts of a machine translate ids.
type mapping struct {
	ids     plan.IDMap
	machine *os.File // the machine's user namespace
	guest   string   // path of the guest's program, for owner maps
}

// describe turns a plan, with the devices that are there, into what the guest is
// told.
func describe(p plan.Machine, devices []device.Node) (*inside.Config, error) {
	caps := p.Capabilities
	if len(caps) == 0 {
		caps = inside.DefaultCapabilities()
	}
	c := &inside.Config{
		Hostname: p.Hostname, Layers: len(p.Layers), Capabilities: caps,
		OneID: oneID(p.IDMap), Volatile: p.Volatile, Cgroup2: cgroup.System{}.Unified(), Locked: slices.Contains(caps, "CAP_SYS_ADMIN"),
	}
	for _, d := range devices {
		c.Mounts = append(c.Mounts, inside.Mount{Path: d.Path, Bind: true, File: true, ReadOnly: true})
	}
	for _, m := range p.Mounts {
		im := inside.Mount{Path: m.Path, ReadOnly: m.ReadOnly, Size: m.SizeBytes, Mode: m.Mode, UID: m.UID, GID: m.GID}
		switch {
		case m.Kind == plan.MountImage:
			im.Bind = true
		case m.Kind == plan.MountBind:
			st, err := os.Stat(m.Source)
			if err != nil {
				return nil, fmt.Errorf("mount %s: source %s: %w", m.Path, m.Source, err)
			}
			im.Bind, im.File = true, !st.IsDir()
			if im.Covers, err = guard.Find(m); err != nil {
				return nil, fmt.Errorf("mount %s: %w", m.Path, err)
			}
			for _, v := range im.Covers {
				c.Hides = c.Hides || v.Kind == inside.CoverHide
			}
		case im.Size == 0 && p.Limits.MemoryBytes > 0:
			im.Size = p.Limits.MemoryBytes / 2
		}
		c.Mounts = append(c.Mounts, im)
	}
	for _, f := range p.Files {
		c.Files = append(c.Files, inside.File(f))
	}
	return c, nil
}

// gather takes the mounts that go with a description, in its order. The caller
// closes the files.
func gather(p plan.Machine, devices []device.Node, writable func() (*os.File, error), mp mapping) (files []*os.File, unenforced []string, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	with := func(take func(string, unix.MountAttr) (*os.File, error)) func(string, unix.MountAttr) error {
		return func(source string, attr unix.MountAttr) error {
			f, err := take(source, attr)
			if err == nil {
				files = append(files, f)
			}
			return err
		}
	}
	add, straight := with(idmap.Detached), with(idmap.Straight)
	shift := unix.MountAttr{}
	if !p.IDMap.IsIdentity() {
		shift = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(mp.machine.Fd())}
	}
	for _, l := range p.Layers {
		attr := shift
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		if err := add(l, attr); err != nil {
			return files, nil, fmt.Errorf("layer %s: %w", l, err)
		}
	}
	w, err := writable()
	if err != nil {
		return files, nil, err
	}
	files = append(files, w)
	for _, d := range devices {
		files = append(files, d.Mount)
	}
	for _, m := range p.Mounts {
		if m.Kind != plan.MountBind && m.Kind != plan.MountImage {
			continue
		}
		attr := shift
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
		if m.ReadOnly {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if m.Kind == plan.MountImage {
			if err := with(image)(m.Source, attr); err != nil {
				return files, nil, fmt.Errorf("mount %s: %w", m.Path, err)
			}
			continue
		}
		note, err := addBind(m, attr, p.IDMap, mp, add, straight)
		if err != nil {
			return files, nil, fmt.Errorf("mount %s: %w", m.Path, err)
		}
		if note != "" {
			unenforced = append(unenforced, note)
		}
	}
	return files, unenforced, nil
}

// image takes the filesystem in a file.
func image(file string, attr unix.MountAttr) (*os.File, error) {
	f, err := loopfs.Mount(file)
	if err != nil {
		return nil, err
	}
	return idmap.With(f, attr)
}

// addBind adds a bind with the ownership its plan asks for. note says what of
// it does not hold.
func addBind(m plan.Mount, attr unix.MountAttr, ids plan.IDMap, mp mapping, add, straight func(string, unix.MountAttr) error) (note string, err error) {
	o := m.Owner
	if o != nil {
		add = straight
	}
	if o == nil {
		return "", add(m.Source, attr)
	}
	if ids.IsIdentity() {
		uid, gid := ids.Stored(o.MachineUID, o.MachineGID)
		if o.HostUID != uid || o.HostGID != gid {
			note = fmt.Sprintf("owner of %s: files of user %d stay theirs inside, since only the system's root can translate owners of a mount", m.Path, o.HostUID)
		}
		return note, add(m.Source, attr)
	}
	ns, err := idmap.Owner(mp.guest, o, ids)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	attr.Userns_fd = uint64(ns.Fd())
	return "", add(m.Source, attr)
}

func closeAll(fs []*os.File) {
	for _, f := range fs {
		f.Close()
	}
}
