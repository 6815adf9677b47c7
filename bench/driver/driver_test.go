// Package driver measures the namespace driver beside bare crun on the same
// root filesystem, in one run, in turns: only ratios mean something on a
// machine that does other things too.
//
//	go test -run TestBars -v ./bench/driver
package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/kitbox-dev/kitbox/internal/driver/drivertest/rootfs"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/seccomp"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// The bars of the driver: at most this much of crun's time.
const (
	coldBar = 0.5 // create until the end of a first command
	execBar = 0.4 // a further command
)

// rounds is how many times each side runs, in turns. KITBOX_BENCH_ROUNDS
// replaces it.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("KITBOX_BENCH_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return 20
}

// A side is one way to run a container.
type side struct {
	name  string
	steps []step
}

type step struct {
	name string
	run  func(i int) error
	took []time.Duration
}

func TestBars(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	layer := rootfs.Layer(t)
	ours := namespaceSide(t, layer)
	theirs := crunSide(t, crun, layer)

	for i := range rounds() {
		for _, s := range []*side{ours, theirs} {
			for j := range s.steps {
				start := time.Now()
				if err := s.steps[j].run(i); err != nil {
					t.Fatalf("%s: %s: %v", s.name, s.steps[j].name, err)
				}
				s.steps[j].took = append(s.steps[j].took, time.Since(start))
			}
		}
	}

	for _, s := range []*side{ours, theirs} {
		for _, st := range s.steps {
			t.Logf("%-10s %-22s median %8.2f ms   best %8.2f ms", s.name, st.name, ms(median(st.took)), ms(slices.Min(st.took)))
		}
	}
	// Per round and then the middle of all: what disturbs the machine for a
	// while disturbs both sides of a round.
	cold := ratio(t, "create to first exec", ours, theirs, "create", "start", "exec")
	exec := ratio(t, "a further exec", ours, theirs, "exec again")
	ratio(t, "stop and remove", ours, theirs, "stop", "remove")
	if cold > coldBar {
		t.Errorf("create to first exec takes %.2f of crun's time; the bar is %.2f", cold, coldBar)
	}
	if exec > execBar {
		t.Errorf("a further exec takes %.2f of crun's time; the bar is %.2f", exec, execBar)
	}
}

// ratio compares the sums of steps.
func ratio(t *testing.T, what string, ours, theirs *side, steps ...string) float64 {
	sum := func(s *side, i int) (d time.Duration) {
		for _, st := range s.steps {
			if slices.Contains(steps, st.name) {
				d += st.took[i]
			}
		}
		return d
	}
	var a, b []time.Duration
	var rs []float64
	for i := range rounds() {
		x, y := sum(ours, i), sum(theirs, i)
		a, b, rs = append(a, x), append(b, y), append(rs, float64(x)/float64(y))
	}
	slices.Sort(rs)
	r := rs[len(rs)/2]
	t.Logf("%-22s %8.2f ms against %8.2f ms: %.2f", what, ms(median(a)), ms(median(b)), r)
	return r
}

func median(ds []time.Duration) time.Duration {
	ds = slices.Clone(ds)
	slices.Sort(ds)
	return ds[len(ds)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

var command = []string{"/bin/true"}

// namespaceSide uses the driver as the engine does.
func namespaceSide(t *testing.T, layer string) *side {
	d := &namespace.Driver{Dir: t.TempDir(), GuestPath: rootfs.Guest(t)}
	ctx := t.Context()
	t.Cleanup(func() {
		list, _ := d.List(context.Background())
		for _, m := range list {
			d.Remove(context.Background(), m.ID)
		}
	})
	id := func(i int) string { return fmt.Sprintf("bench%d-%d", os.Getpid(), i) }
	run := func(i int) error {
		cl := &client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id(i)) }}
		exit, err := cl.Exec(ctx, client.ExecRequest{Argv: command}, client.Stdio{})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("status %d", exit.Code)
		}
		return err
	}
	return &side{"namespace", []step{
		{name: "create", run: func(i int) error {
			return d.Create(ctx, plan.Machine{
				ID: id(i), Hostname: "bench", Layers: []string{layer}, IDMap: plan.IDMap{Base: 1_200_000_000, Size: 65536},
				Limits: plan.Limits{MemoryBytes: 512 << 20, Pids: 512, CPUMillis: 2000},
			})
		}},
		{name: "start", run: func(i int) error { return d.Start(ctx, id(i)) }},
		{name: "exec", run: run},
		{name: "exec again", run: run},
		{name: "stop", run: func(i int) error { return d.Stop(ctx, id(i), time.Second) }},
		{name: "remove", run: func(i int) error { return d.Remove(ctx, id(i)) }},
	}}
}

// crunSide runs the same with crun alone: the same limits, the same filter, an
// overlay of the same layer, no user namespace (which it would have to pay for).
func crunSide(t *testing.T, crun, layer string) *side {
	dir := t.TempDir()
	private := newThread(t)
	id := func(i int) string { return fmt.Sprintf("bench%d-%d", os.Getpid(), i) }
	call := func(args ...string) error {
		cmd := exec.Command(crun, append([]string{"--root", filepath.Join(dir, "state"), "--cgroup-manager=cgroupfs"}, args...)...)
		// A pipe would be kept open by the container.
		out, err := os.CreateTemp(dir, "out")
		if err != nil {
			return err
		}
		defer os.Remove(out.Name())
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := private.run(cmd); err != nil {
			b, _ := os.ReadFile(out.Name())
			return fmt.Errorf("%w: %s", err, b)
		}
		return nil
	}
	bundle := func(i int) string { return filepath.Join(dir, id(i)) }
	t.Cleanup(func() {
		for i := range rounds() {
			call("delete", "--force", id(i))
			private.unmount(filepath.Join(bundle(i), "rootfs"))
		}
		for _, tree := range []string{"memory", "cpu", "pids", "cpuacct", "cpuset", "devices", "freezer", "blkio", "systemd"} {
			os.Remove("/sys/fs/cgroup/" + tree + "/kitbox-bench")
		}
	})
	return &side{"crun", []step{
		{name: "create", run: func(i int) error {
			for _, d := range []string{"", "rootfs", "upper", "work"} {
				if err := os.Mkdir(filepath.Join(bundle(i), d), 0o755); err != nil {
					return err
				}
			}
			if err := private.mount(layer, bundle(i)); err != nil {
				return err
			}
			b, err := json.Marshal(crunSpec(id(i)))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(bundle(i), "config.json"), b, 0o644); err != nil {
				return err
			}
			return call("create", "--bundle", bundle(i), id(i))
		}},
		{name: "start", run: func(i int) error { return call("start", id(i)) }},
		{name: "exec", run: func(i int) error { return call("exec", id(i), command[0]) }},
		{name: "exec again", run: func(i int) error { return call("exec", id(i), command[0]) }},
		{name: "stop", run: func(i int) error { return call("delete", "--force", id(i)) }},
		{name: "remove", run: func(i int) error {
			private.unmount(filepath.Join(bundle(i), "rootfs"))
			return os.RemoveAll(bundle(i))
		}},
	}}
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
