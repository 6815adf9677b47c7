package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/kitbox-dev/kitbox/internal/guest/seccomp"
)

// A crun is the peer: crun alone, as containerd would ask it, on an overlay of
// the same layers. It has no user namespace, no network and no supervisor, which
// it would all have to pay for.
type crun struct {
	program string
	dir     string
	layers  []string // lowest first
	thread  *thread
}

func newCrun(dir string, layers []string) (*crun, error) {
	program, err := exec.LookPath("crun")
	if err != nil {
		return nil, fmt.Errorf("the peer is missing: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	th, err := newThread()
	if err != nil {
		return nil, fmt.Errorf("a mount namespace for crun: %w", err)
	}
	return &crun{program, dir, layers, th}, nil
}

func (c *crun) command(args ...string) *exec.Cmd {
	return exec.Command(c.program, append([]string{"--root", filepath.Join(c.dir, "state"), "--cgroup-manager=cgroupfs"}, args...)...)
}

func (c *crun) call(args ...string) error {
	cmd := c.command(args...)
	// A pipe would be kept open by the container.
	out, err := os.CreateTemp(c.dir, "out")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := c.thread.run(cmd); err != nil {
		b, _ := os.ReadFile(out.Name())
		return fmt.Errorf("crun %s: %w: %s", args[0], err, b)
	}
	return nil
}

func (c *crun) bundle(id string) string { return filepath.Join(c.dir, id) }

// create mounts the root file system and makes the container id.
func (c *crun) create(id string) error {
	for _, d := range []string{"", "rootfs", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(c.bundle(id), d), 0o755); err != nil {
			return err
		}
	}
	if err := c.thread.mount(c.layers, c.bundle(id)); err != nil {
		return fmt.Errorf("mounting an overlay: %w", err)
	}
	b, err := json.Marshal(crunSpec(id))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.bundle(id), "config.json"), b, 0o644); err != nil {
		return err
	}
	return c.call("create", "--bundle", c.bundle(id), id)
}

func (c *crun) start(id string) error { return c.call("start", id) }

// again ends the container and makes it anew on the files it had.
func (c *crun) again(id string) error {
	if err := c.call("delete", "--force", id); err != nil {
		return err
	}
	if err := c.call("create", "--bundle", c.bundle(id), id); err != nil {
		return err
	}
	return c.start(id)
}

func (c *crun) exec(id string) error { return c.call("exec", id, command) }

// firstByte runs what says something in the container, and returns when it did.
func (c *crun) firstByte(id string) (time.Time, error) {
	cmd := c.command(append([]string{"exec", id}, says...)...)
	said, err := hear(cmd, func() error { return c.thread.run(cmd) })
	if err != nil {
		return said, fmt.Errorf("crun exec: %w", err)
	}
	return said, nil
}

// remove ends the container and takes back all that create made.
func (c *crun) remove(id string) error {
	if err := c.call("delete", "--force", id); err != nil {
		return err
	}
	c.thread.unmount(filepath.Join(c.bundle(id), "rootfs"))
	return os.RemoveAll(c.bundle(id))
}

// close removes what failed rounds have left.
func (c *crun) close() {
	left, _ := os.ReadDir(filepath.Join(c.dir, "state"))
	for _, e := range left {
		_ = c.remove(e.Name()) // of a container that was half made
	}
	c.thread.close()
	for tree := range strings.FieldsSeq("memory cpu pids cpuacct cpuset devices freezer blkio systemd") {
		os.Remove("/sys/fs/cgroup/" + tree + "/kitbox-bench")
	}
}

// crunSpec is what containerd would ask crun for.
func crunSpec(id string) *specs.Spec {
	caps := []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
	filter := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}}
	for _, r := range seccomp.Profile(caps) {
		s := specs.LinuxSyscall{Names: r.Names, Action: specs.ActAllow}
		if r.Errno != 0 {
			errno := uint(r.Errno)
			s.Action, s.ErrnoRet = specs.ActErrno, &errno
		}
		for _, a := range r.Args {
			s.Args = append(s.Args, specs.LinuxSeccompArg{Index: a.Index, Value: a.Value, ValueTwo: a.Want,
				Op: []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpLessThan, specs.OpMaskedEqual}[a.Op]})
		}
		filter.Syscalls = append(filter.Syscalls, s)
	}
	memory, pids, period, quota := int64(512<<20), int64(512), uint64(100_000), int64(200_000)
	return &specs.Spec{
		Version: "1.0.2", Hostname: "bench", Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/sleep", "1000000"}, Env: []string{"PATH=/bin"}, Cwd: "/", NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
			},
			CgroupsPath: "/kitbox-bench/" + id,
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Pids:   &specs.LinuxPids{Limit: &pids},
			},
			Seccomp:       filter,
			MaskedPaths:   []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
