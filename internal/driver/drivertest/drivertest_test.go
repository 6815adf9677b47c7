package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/drivertest"
	"github.com/kitbox-dev/kitbox/internal/driver/drivertest/rootfs"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A broken driver is a good one but for what one of these fields does.
type broken struct {
	*namespace.Driver

	alter     func(m *plan.Machine) // before Create sees it
	exec      func(e *protocol.Exec)
	answer    func(a *protocol.Answer)
	hold      bool // a lost connection is not passed on
	create    func(d *namespace.Driver, ctx context.Context, m plan.Machine) error
	start     func(d *namespace.Driver, ctx context.Context, id string) error
	stop      func(d *namespace.Driver, ctx context.Context, id string, grace time.Duration) error
	remove    func(d *namespace.Driver, ctx context.Context, id string) error
	list      func(d *namespace.Driver, ms []driver.Machine) []driver.Machine
	netns     func() (*os.File, error)
	wait      func() error
	elsewhere string // the directory of every Open but the first
	starter   func(d *namespace.Driver, ctx context.Context, id string) error
}

func (b *broken) Create(ctx context.Context, m plan.Machine) error {
	if b.alter != nil {
		m.Layers, m.Mounts, m.Files = slices.Clone(m.Layers), slices.Clone(m.Mounts), slices.Clone(m.Files)
		b.alter(&m)
	}
	if b.create != nil {
		return b.create(b.Driver, ctx, m)
	}
	return b.Driver.Create(ctx, m)
}

func (b *broken) Start(ctx context.Context, id string) error {
	if b.start != nil {
		return b.start(b.Driver, ctx, id)
	}
	return b.Driver.Start(ctx, id)
}

func (b *broken) Stop(ctx context.Context, id string, grace time.Duration) error {
	if b.stop != nil {
		return b.stop(b.Driver, ctx, id, grace)
	}
	return b.Driver.Stop(ctx, id, grace)
}

func (b *broken) Remove(ctx context.Context, id string) error {
	if b.remove != nil {
		return b.remove(b.Driver, ctx, id)
	}
	return b.Driver.Remove(ctx, id)
}

func (b *broken) List(ctx context.Context) ([]driver.Machine, error) {
	ms, err := b.Driver.List(ctx)
	if b.list != nil {
		ms = b.list(b.Driver, ms)
	}
	return ms, err
}

func (b *broken) NetNS(ctx context.Context, id string) (*os.File, error) {
	if b.netns != nil {
		return b.netns()
	}
	return b.Driver.NetNS(ctx, id)
}

func (b *broken) Wait(ctx context.Context, id string) error {
	if b.wait != nil {
		return b.wait()
	}
	return b.Driver.Wait(ctx, id)
}

// Dial puts a liar between the host and the guest.
func (b *broken) Dial(ctx context.Context, id string) (net.Conn, error) {
	up, err := b.Driver.Dial(ctx, id)
	if err != nil || b.exec == nil && b.answer == nil && !b.hold {
		return up, err
	}
	near, far := net.Pipe()
	host, guest := protocol.NewConn(far), protocol.NewConn(up)
	go func() {
		for {
			f, err := host.Read()
			if err != nil {
				if !b.hold {
					guest.Close()
				}
				return
			}
			body := f.Body
			if f.Kind == protocol.KindRequest {
				var r protocol.Request
				if protocol.Decode(body, &r) == nil {
					if r.Exec != nil && b.exec != nil {
						b.exec(r.Exec)
					}
					guest.WriteMessage(protocol.KindRequest, r)
					continue
				}
			}
			guest.Write(f.Kind, body)
		}
	}()
	go func() {
		defer host.Close()
		for {
			f, err := guest.Read()
			if err != nil {
				return
			}
			if f.Kind == protocol.KindAnswer && b.answer != nil {
				var a protocol.Answer
				if protocol.Decode(f.Body, &a) == nil {
					b.answer(&a)
					host.WriteMessage(protocol.KindAnswer, a)
					continue
				}
			}
			host.Write(f.Kind, f.Body)
		}
	}()
	return near, nil
}

// instead replaces commands that hold text.
func instead(text, script string) func(*protocol.Exec) {
	return func(e *protocol.Exec) {
		if last := len(e.Argv) - 1; strings.Contains(e.Argv[last], text) {
			e.Argv[last] = script
		}
	}
}

// before has every command do something first.
func before(script string) func(*protocol.Exec) {
	return func(e *protocol.Exec) {
		last := len(e.Argv) - 1
		e.Argv[last] = script + "\n" + e.Argv[last]
	}
}

func sh(d *namespace.Driver, ctx context.Context, id, script string, detach bool) error {
	cl := client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id) }}
	_, err := cl.Exec(ctx, client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Detach: detach}, client.Stdio{})
	return err
}

func breakages() map[string]broken {
	type (
		D = *namespace.Driver
		C = context.Context
	)
	var starting sync.Mutex
	var boots atomic.Int64
	return map[string]broken{
		"Create leaves the machine stopped": {create: func(d D, ctx C, m plan.Machine) error {
			return errors.Join(d.Create(ctx, m), d.Start(ctx, m.ID))
		}},
		"a created machine survives the end of its driver":           {elsewhere: "other"},
		"a second driver on the directory reaches a running machine": {elsewhere: "other"},
		"an id that is taken is ErrExists": {create: func(d D, ctx C, m plan.Machine) error {
			if err := d.Create(ctx, m); !errors.Is(err, kiterr.ErrExists) {
				return err
			}
			return nil
		}},
		"a failed Create leaves nothing behind": {create: func(d D, ctx C, m plan.Machine) error {
			err := d.Create(ctx, m)
			if err != nil {
				os.MkdirAll(d.Dir+"/"+m.ID, 0o700)
			}
			return err
		}},
		"Start returns when the guest answers and nothing else runs": {start: func(d D, ctx C, id string) error {
			return errors.Join(d.Start(ctx, id), sh(d, ctx, id, "exec sleep 1000", true))
		}},
		"starting a running machine does nothing": {start: func(d D, ctx C, id string) error {
			return errors.Join(d.Stop(ctx, id, 0), d.Start(ctx, id))
		}},
		"a failed Start leaves nothing of the boot": {start: func(d D, ctx C, id string) error {
			d.Start(ctx, id)
			return nil
		}},
		"the machine outlives the process that started it": {starter: func(d D, ctx C, id string) error {
			return errors.Join(d.Start(ctx, id), d.Stop(ctx, id, 0))
		}},
		"the only network interface is loopback, and it is up": {exec: instead("/sys/class/net", "echo eth0; echo lo")},
		"an unknown id is ErrNotFound": {remove: func(d D, ctx C, id string) error {
			if err := d.Remove(ctx, id); !errors.Is(err, kiterr.ErrNotFound) {
				return err
			}
			return nil
		}},
		"Stop asks first and then kills, and leaves no process and no mount": {stop: func(d D, ctx C, id string, _ time.Duration) error {
			return d.Stop(ctx, id, 0)
		}},
		"Stop does not wait out the grace when nothing is left": {stop: func(d D, ctx C, id string, grace time.Duration) error {
			select {
			case <-ctx.Done():
			case <-time.After(grace):
			}
			return d.Stop(context.WithoutCancel(ctx), id, grace)
		}},
		"the writable layer stays over stop and start": {stop: recreate()},
		"stopping a stopped machine does nothing": {stop: func(d D, ctx C, id string, grace time.Duration) error {
			if c, err := d.Dial(ctx, id); err != nil {
				return err
			} else {
				c.Close()
			}
			return d.Stop(ctx, id, grace)
		}},
		"Remove ends a running machine and deletes all it stored": {remove: func(d D, ctx C, id string) error {
			defer os.MkdirAll(d.Dir+"/.left", 0o700)
			return d.Remove(ctx, id)
		}},
		"a machine whose guest was killed is stopped, and starts again": {list: func(_ D, ms []driver.Machine) []driver.Machine {
			for i := range ms {
				if !ms[i].Running {
					ms[i].Running, ms[i].PID = true, 1
				}
			}
			return ms
		}},
		"List names every machine once, by id": {list: func(_ D, ms []driver.Machine) []driver.Machine {
			slices.Reverse(ms)
			return ms
		}},
		"NetNS is the namespace that the machine is in":       {netns: func() (*os.File, error) { return os.Open("/proc/self/ns/net") }},
		"Wait returns when the machine does not run any more": {wait: func() error { return nil }},
		"methods can be called concurrently, by several drivers": {start: func(d D, ctx C, id string) error {
			if !starting.TryLock() {
				return errors.New("busy")
			}
			defer starting.Unlock()
			return d.Start(ctx, id)
		}},
		"layers lie over each other, lowest first, and are never written": {alter: func(m *plan.Machine) { slices.Reverse(m.Layers[1:]) }},
		"a layer can take away what lies below it":                        {alter: func(m *plan.Machine) { m.Layers = m.Layers[:len(m.Layers)-1] }},
		"a hundred layers are no problem":                                 {alter: func(m *plan.Machine) { m.Layers = m.Layers[:min(60, len(m.Layers))] }},
		"the root belongs to root as the lowest layer's does": {start: func(d D, ctx C, id string) error {
			return errors.Join(d.Start(ctx, id), sh(d, ctx, id, "chown 1000 /", false))
		}},
		"ids of a shifted bind are stored as they are inside": {alter: func(m *plan.Machine) {
			for i := range m.Mounts {
				m.Mounts[i].Owner = &plan.OwnerMap{HostUID: 4000, HostGID: 4000}
			}
		}},
		"an owner map ties one user of the host to one of the machine": {alter: func(m *plan.Machine) {
			for i := range m.Mounts {
				m.Mounts[i].Owner = nil
			}
		}},
		"what others make in a bind with an owner map is its owner's once the machine has stopped": {stop: func(d D, ctx C, id string, grace time.Duration) error {
			old, err := d.List(ctx)
			if err != nil || len(old) == 0 {
				return err
			}
			return syscall.Kill(old[0].PID, syscall.SIGKILL)
		}},
		"a read-only mount cannot be written, by root neither": {alter: func(m *plan.Machine) {
			for i := range m.Mounts {
				m.Mounts[i].ReadOnly = false
			}
		}},
		"a file can be bound, and what is missing on the way is made": {alter: func(m *plan.Machine) { m.Mounts = nil }},
		"mounts are laid down in order":                               {alter: func(m *plan.Machine) { slices.Reverse(m.Mounts) }},
		"a tmpfs has its size, mode and owner": {alter: func(m *plan.Machine) {
			for i := range m.Mounts {
				m.Mounts[i].SizeBytes = 0
			}
		}},
		"a bind keeps its data over stop and start, a tmpfs does not": {alter: func(m *plan.Machine) {
			for i := range m.Mounts {
				m.Mounts[i].Kind, m.Mounts[i].Source = plan.MountTmpfs, ""
			}
		}},
		"files are written before the guest serves, over links too":          {alter: func(m *plan.Machine) { m.Files = m.Files[:0] }},
		"what is covered of a bind is hidden or kept, from root too":         {alter: func(m *plan.Machine) { m.Mounts[0].Covers = m.Mounts[0].Covers[1:] }},
		"what lies over a bind stays there for a root with every capability": {alter: func(m *plan.Machine) { m.Mounts[0].Covers = m.Mounts[0].Covers[:3] }},
		"what comes into being in a bind is covered while its machine runs":  {alter: func(m *plan.Machine) { m.Mounts[0].Covers = slices.Clone(m.Mounts[0].Covers)[1:] }},
		"a file is added to once and keeps what it had, and never in a mount": {alter: func(m *plan.Machine) {
			for i := range m.Files {
				m.Files[i].Append = false
			}
		}},
		"a file can be the guest's program, or a link that gives way": {alter: func(m *plan.Machine) {
			for i := range m.Files {
				m.Files[i].Program = false
			}
		}},
		"the machine has its host name":                       {alter: func(m *plan.Machine) { m.Hostname = "box" }},
		"the usual devices are there and work":                {exec: before("rm /dev/stdin")},
		"a memory limit ends what exceeds it, or is reported": {alter: func(m *plan.Machine) { m.Limits.MemoryBytes = 0 }},
		"a process limit holds, or is reported":               {alter: func(m *plan.Machine) { m.Limits.Pids = 0 }},
		"a processor limit holds, or is reported":             {alter: func(m *plan.Machine) { m.Limits.CPUMillis = 0 }},
		// A host may hold all of them, so the driver says that this one does not.
		"a limit that must hold and cannot is refused": {list: func(_ D, ms []driver.Machine) []driver.Machine {
			for i := range ms {
				ms[i].Unenforced = []string{"disk"}
			}
			return ms
		}},

		"a device of the plan is there for everybody, and no other is": {alter: func(m *plan.Machine) {
			m.Devices = append(slices.Clone(m.Devices), plan.Device{Source: "/dev/zero", Path: "/dev/accel/card1"})
		}},
		"a device cannot be changed, nor written to if it is to be read": {alter: func(m *plan.Machine) {
			m.Devices = slices.Clone(m.Devices)
			m.Devices[1].ReadOnly = false
		}},
		"a device that is gone refuses the start, or is reported if it is optional": {alter: func(m *plan.Machine) { m.Devices = nil }},

		"commands run with the system call filter and without new privileges": {exec: instead("Seccomp", `printf 'NoNewPrivs:\t1\nSeccomp:\t0\n'`)},
		"the filter forbids what it is known for":                             {exec: instead("unshare -U", "true")},
		"capabilities are bounded by the default set": {alter: func(m *plan.Machine) {
			m.Capabilities = []string{"CAP_CHOWN", "CAP_SYS_ADMIN"}
		}},
		"capabilities are bounded by the plan's set":       {alter: func(m *plan.Machine) { m.Capabilities = nil }},
		"commands inherit no descriptor but their streams": {exec: before("exec 7</dev/null")},
		"processes of the host are invisible":              {exec: before("sleep 98765.4321 & trap 'kill $!' EXIT")},
		"files of the host are out of reach": {alter: func(m *plan.Machine) {
			m.Mounts = append(m.Mounts, plan.Mount{Kind: plan.MountBind, Source: os.TempDir(), Path: os.TempDir(), ReadOnly: true})
		}},
		"root of the machine is not root of the host": {exec: instead("uid_map", "echo 0 4294967295")},
		"the guest survives every signal from inside": {answer: func(a *protocol.Answer) {
			if a.Info != nil {
				a.Info.Boot = fmt.Sprint(boots.Add(1))
			}
		}},
		"the guest cannot be looked into":                       {exec: instead("readlink /proc/1/exe", "true")},
		"kernel interfaces are masked or read-only":             {exec: instead("/sys/firmware", "true")},
		"no device but the usual ones can be opened or made":    {exec: instead("-type c", "echo /dev/kmsg /dev/null")},
		"the machine sees itself as the root of control groups": {exec: instead("cgroup", "true")},
		"a lost connection leaves no process of its command":    {hold: true},
		"ended orphans are reaped":                              {exec: before("(sh -c 'exit' & exec sleep 30) & sleep 0.1")},
		"a terminal is the machine's own":                       {exec: func(e *protocol.Exec) { e.TTY = false }},
	}
}

// recreate loses the writable layer at each stop.
func recreate() func(*namespace.Driver, context.Context, string, time.Duration) error {
	return func(d *namespace.Driver, ctx context.Context, id string, grace time.Duration) error {
		if err := d.Stop(ctx, id, grace); err != nil {
			return err
		}
		upper := d.Dir + "/" + id + "/rw/upper"
		entries, err := os.ReadDir(upper)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(upper+"/"+e.Name()))
		}
		return err
	}
}

// A recorder takes the place of testing.T and notes what fails.
type recorder struct {
	t      *testing.T
	name   string
	failed *[]string
}

func (r recorder) Run(name string, f func(drivertest.T)) { f(recorder{r.t, name, r.failed}) }
func (r recorder) Errorf(format string, args ...any) {
	*r.failed = append(*r.failed, r.name)
	r.t.Logf("as it should: "+format, args...)
}
func (r recorder) Skipf(format string, args ...any) { r.t.Errorf("skipped: "+format, args...) }
func (r recorder) TempDir() string                  { return r.t.TempDir() }

// TestEveryCheckCanFail breaks a driver once per check. A check that no broken
// driver fails has never been seen to work. That a good driver passes them all
// is shown beside each driver.
func TestEveryCheckCanFail(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	layer, guest := rootfs.Layer(t), rootfs.Guest(t)
	all := breakages()
	for name := range all {
		if !slices.Contains(drivertest.Names(), name) {
			t.Errorf("no check is called %q", name)
		}
	}
	for _, name := range drivertest.Names() {
		t.Run(name, func(t *testing.T) {
			b, ok := all[name]
			if !ok {
				t.Fatal("no broken driver for this check")
			}
			t.Parallel()
			opened := 0
			var dirs []string
			s := drivertest.Subject{
				Machine: plan.Machine{Layers: []string{layer}, IDMap: plan.IDMap{Base: 1_300_000_000, Size: 65536}},
				Open: func(dir string) driver.Driver {
					if opened++; opened > 1 && b.elsewhere != "" {
						dir += "/" + b.elsewhere
					}
					dirs = append(dirs, dir)
					one := b
					one.Driver = &namespace.Driver{Dir: dir, GuestPath: guest}
					return &one
				},
			}
			if b.starter != nil {
				s.StartAndDie = func(ctx context.Context, dir, id string) error {
					return b.starter(&namespace.Driver{Dir: dir, GuestPath: guest}, ctx, id)
				}
			}
			var failed []string
			drivertest.Run(t.Context(), recorder{t, "", &failed}, s, name)
			if !slices.Equal(failed, []string{name}) {
				t.Errorf("failed: %q", failed)
			}
			// Whatever the broken driver left, a good one removes.
			for _, dir := range dirs {
				good := &namespace.Driver{Dir: dir, GuestPath: guest}
				ms, _ := good.List(context.Background())
				for _, m := range ms {
					if err := good.Remove(context.Background(), m.ID); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}
