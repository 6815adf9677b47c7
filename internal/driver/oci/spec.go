package oci

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// guestInside is the guest's program: the last of the descriptors that the
// runtime passes. A file would show in the machine's list of mounts, with the path
// that it has on the host.
const guestInside = "/proc/self/fd/5"

// specOf is the runtime's configuration for p.
func specOf(p plan.Machine, st *stage, l cgroup.Limits, group string) *specs.Spec {
	caps := p.Capabilities
	if len(caps) == 0 {
		caps = inside.DefaultCapabilities()
	}
	// The guest keeps what it works with and bounds its commands to caps; no
	// filter here, since the guest installs its own, the same everywhere.
	all := inside.WithAgents(caps)
	if lockable(p) {
		// To make a user namespace, in which mounts are locked. The guest gives
		// these up with the rest before it serves.
		all = inside.WithAgents(slices.Concat(caps, []string{"CAP_SETUID", "CAP_SETGID", "CAP_SETFCAP"}))
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: p.IDMap.Base, Size: p.IDMap.Size}}
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: p.Hostname,
		Root:     &specs.Root{Path: st.root()},
		Process: &specs.Process{
			Args:            []string{guestInside, "serve", strings.Join(caps, ",")},
			Env:             []string{"PATH=/"}, // some runtimes want one
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all},
		},
		Mounts: mountsOf(p, st),
		Linux: &specs.Linux{
			UIDMappings: ids,
			GIDMappings: ids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.UserNamespace},
				{Type: specs.CgroupNamespace},
			},
			CgroupsPath:   "/kitbox/" + group,
			Resources:     resources(l, st.devices),
			MaskedPaths:   inside.Masked(),
			ReadonlyPaths: inside.ReadOnly(lockable(p)),
			Sysctl:        map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		},
	}
}

// lockable reports whether root of the machine could change its mounts if they were
// not locked.
func lockable(p plan.Machine) bool { return slices.Contains(p.Capabilities, "CAP_SYS_ADMIN") }

func mountsOf(p plan.Machine, st *stage) []specs.Mount {
	ms := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	for i, d := range st.devices {
		ms = append(ms, specs.Mount{Destination: d.Path, Type: "bind", Source: st.node(i), Options: []string{"bind", "nosuid", "ro"}})
	}
	for i, m := range p.Mounts {
		s := specs.Mount{Destination: path.Clean(m.Path)}
		if m.Kind != plan.MountTmpfs {
			s.Type, s.Source = "bind", st.bind(i)
			s.Options = []string{"rbind", "nosuid", "nodev"}
		} else {
			mode := m.Mode
			if mode == 0 {
				mode = 0o755
			}
			size := m.SizeBytes
			if size == 0 && p.Limits.MemoryBytes > 0 {
				size = p.Limits.MemoryBytes / 2
			}
			s.Type, s.Source = "tmpfs", "tmpfs"
			s.Options = []string{"nosuid", "nodev", "mode=" + strconv.FormatUint(uint64(mode), 8),
				"uid=" + strconv.FormatUint(uint64(m.UID), 10), "gid=" + strconv.FormatUint(uint64(m.GID), 10)}
			if size > 0 {
				s.Options = append(s.Options, "size="+strconv.FormatInt(size, 10))
			}
		}
		if m.ReadOnly {
			s.Options = append(s.Options, "ro")
		}
		ms = append(ms, s)
	}
	return ms
}

func resources(l cgroup.Limits, devices []device.Node) *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if len(devices) > 0 {
		// Runtimes allow the usual devices of their own accord, and some no other.
		r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Access: "rwm"})
	}
	for _, d := range devices {
		major, minor := int64(d.Major), int64(d.Minor)
		access := "rw"
		if d.ReadOnly {
			access = "r"
		}
		r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: access})
	}
	if l.MemoryBytes > 0 {
		n, swap := l.MemoryBytes, l.MemoryBytes // swap here is the sum of both
		r.Memory = &specs.LinuxMemory{Limit: &n, Swap: &swap}
	}
	if l.CPUMillis > 0 {
		period := uint64(100_000)
		quota := max(l.CPUMillis*100, 1000)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if l.Pids > 0 {
		n := l.Pids
		r.Pids = &specs.LinuxPids{Limit: &n}
	}
	return r
}
