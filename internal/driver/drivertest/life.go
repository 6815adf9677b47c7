package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// is reports that err is not of the family it should be of.
func is(what string, err, family error) error {
	if !errors.Is(err, family) {
		return fmt.Errorf("%s: got %v, want %v", what, err, family)
	}
	return nil
}

// lifeChecks judge package driver sentence by sentence.
var lifeChecks = []check{
	{"Create leaves the machine stopped", func(x *trial) error {
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		got, ok, err := x.find(m.ID)
		if err != nil || !ok || got.Running || got.PID != 0 {
			return fmt.Errorf("List has %+v, %v, %v", got, ok, err)
		}
		_, err = x.d.Dial(x.ctx, m.ID)
		return is("Dial", err, kiterr.ErrNotRunning)
	}},
	{"a created machine survives the end of its driver", func(x *trial) error {
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		x.d = x.s.Open(x.dir)
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		return x.want(guest(x.d, m.ID), "hostname", "box")
	}},
	{"an id that is taken is ErrExists", func(x *trial) error {
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		return is("Create", x.d.Create(x.ctx, m), kiterr.ErrExists)
	}},
	{"a failed Create leaves nothing behind", func(x *trial) error {
		dead, cancel := context.WithCancel(x.ctx)
		cancel()
		if err := x.d.Create(dead, x.machine()); err == nil {
			return errors.New("Create succeeded with a context that was done")
		}
		m := x.machine()
		m.Layers = []string{x.scratch + "/missing"}
		if err := x.d.Create(x.ctx, m); err == nil {
			return errors.New("Create succeeded without its layer")
		}
		ms, err := x.d.List(x.ctx)
		if err != nil || len(ms) > 0 {
			return fmt.Errorf("List = %v, %v", ms, err)
		}
		return empty(x.dir)
	}},
	{"Start returns when the guest answers and nothing else runs", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		info, err := cl.Info(x.ctx)
		if err != nil {
			return err
		}
		if info.Processes != 1 {
			return fmt.Errorf("%d processes", info.Processes)
		}
		return nil
	}},
	{"starting a running machine does nothing", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		before, err := cl.Info(x.ctx)
		if err != nil {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		after, err := cl.Info(x.ctx)
		if err == nil && after.Boot != before.Boot {
			err = errors.New("it was booted again")
		}
		return err
	}},
	{"a failed Start leaves nothing of the boot", func(x *trial) error {
		m := x.machine()
		source := x.scratch + "/source"
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		m.Mounts = append(m.Mounts, bind(source, "/mnt"))
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		if err := os.Remove(source); err != nil {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err == nil {
			return errors.New("Start succeeded without the source of a mount")
		}
		if got, ok, err := x.find(m.ID); err != nil || !ok || got.Running {
			return fmt.Errorf("List has %+v, %v, %v", got, ok, err)
		}
		if err := mountsOf(x.dir); err != nil {
			return err
		}
		// It was not spoilt either.
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		return x.d.Start(x.ctx, m.ID)
	}},
	{"the machine outlives the process that started it", func(x *trial) error {
		if x.s.StartAndDie == nil {
			return errSkip
		}
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		if err := x.s.StartAndDie(x.ctx, x.dir, m.ID); err != nil {
			return err
		}
		if err := x.want(guest(x.d, m.ID), "hostname", "box"); err != nil {
			return err
		}
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		return x.d.Remove(x.ctx, m.ID)
	}},
	{"the only network interface is loopback, and it is up", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		if err := x.want(cl, "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo"); err != nil {
			return err
		}
		return x.want(cl, "ip addr show lo | grep -c -e 'inet 127.0.0.1' -e ',UP'", "2")
	}},
	{"a second driver on the directory reaches a running machine", func(x *trial) error {
		m := x.machine()
		if _, err := x.up(m); err != nil {
			return err
		}
		x.d = x.s.Open(x.dir)
		if err := x.want(guest(x.d, m.ID), "hostname", "box"); err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil || !got.Running {
			return fmt.Errorf("List has %+v, %v", got, err)
		}
		return x.d.Stop(x.ctx, m.ID, time.Second)
	}},
	{"an unknown id is ErrNotFound", func(x *trial) error {
		const id = "no-such-machine"
		_, err := x.d.Dial(x.ctx, id)
		return errors.Join(
			is("Start", x.d.Start(x.ctx, id), kiterr.ErrNotFound),
			is("Stop", x.d.Stop(x.ctx, id, 0), kiterr.ErrNotFound),
			is("Remove", x.d.Remove(x.ctx, id), kiterr.ErrNotFound),
			is("Dial", err, kiterr.ErrNotFound),
		)
	}},
	{"Stop asks first and then kills, and leaves no process and no mount", func(x *trial) error {
		m := x.machine()
		data := x.scratch + "/data"
		if err := os.Mkdir(data, 0o777); err != nil {
			return err
		}
		m.Mounts = append(m.Mounts, bind(data, "/data"))
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		marker := "marker-" + m.ID
		for _, script := range []string{
			"trap 'echo asked >/data/asked; exit' TERM; touch /data/one; while :; do sleep 0.05; done # " + marker,
			"trap '' TERM HUP; touch /data/two; while :; do sleep 0.05; done # " + marker,
			"setsid sh -c 'trap \"\" TERM; touch /data/three; while :; do sleep 0.05; done # " + marker + "' &",
		} {
			if _, err := cl.Exec(x.ctx, client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: environment, Detach: true}, client.Stdio{}); err != nil {
				return err
			}
		}
		if err := x.eventually(func() error { return exist(data+"/one", data+"/two", data+"/three") }); err != nil {
			return err
		}
		if len(hostPIDs(marker)) == 0 {
			return errors.New("the processes cannot be seen from outside: this check is blind")
		}
		if err := x.d.Stop(x.ctx, m.ID, 500*time.Millisecond); err != nil {
			return err
		}
		if pids := hostPIDs(marker); len(pids) > 0 {
			return fmt.Errorf("processes %v live", pids)
		}
		if err := exist(data + "/asked"); err != nil {
			return fmt.Errorf("SIGTERM did not come first: %w", err)
		}
		if got, _, err := x.find(m.ID); err != nil || got.Running {
			return fmt.Errorf("List has %+v, %v", got, err)
		}
		_, err = x.d.Dial(x.ctx, m.ID)
		return errors.Join(is("Dial", err, kiterr.ErrNotRunning), mountsOf(x.dir))
	}},
	{"Stop does not wait out the grace when nothing is left", func(x *trial) error {
		m := x.machine()
		if _, err := x.up(m); err != nil {
			return err
		}
		// Only what waits for nothing is faster than this.
		ctx, cancel := context.WithTimeout(x.ctx, 10*time.Second)
		defer cancel()
		if err := x.d.Stop(ctx, m.ID, time.Hour); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errors.New("it took longer than ten seconds")
		}
		return nil
	}},
	{"the writable layer stays over stop and start", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "echo kept >/etc/kept; rm /etc/group; mv /usr /moved 2>/dev/null || { cp -a /usr /moved && rm -r /usr; }", ""); err != nil {
			return err
		}
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		return x.want(cl, "cat /etc/kept; ls /etc/group /usr 2>/dev/null; ls /moved", "kept\nbin")
	}},
	{"stopping a stopped machine does nothing", func(x *trial) error {
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		return errors.Join(x.d.Stop(x.ctx, m.ID, 0), x.d.Stop(x.ctx, m.ID, time.Second))
	}},
	{"Remove ends a running machine and deletes all it stored", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		marker := "marker-" + m.ID
		if _, err := cl.Exec(x.ctx, client.ExecRequest{Argv: []string{"sh", "-c", "while :; do sleep 1; done # " + marker}, Env: environment, Detach: true}, client.Stdio{}); err != nil {
			return err
		}
		// Things that are hard to delete.
		if err := x.want(cl, "mkdir -p /d/e && touch /d/e/f && chmod 0 /d/e /d && chown -R 1000 /d", ""); err != nil {
			return err
		}
		if err := x.d.Remove(x.ctx, m.ID); err != nil {
			return err
		}
		if pids := hostPIDs(marker); len(pids) > 0 {
			return fmt.Errorf("processes %v live", pids)
		}
		if _, ok, err := x.find(m.ID); ok || err != nil {
			return fmt.Errorf("still listed, %v", err)
		}
		return errors.Join(is("Remove again", x.d.Remove(x.ctx, m.ID), kiterr.ErrNotFound), mountsOf(x.dir), empty(x.dir))
	}},
	{"a machine whose guest was killed is stopped, and starts again", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil {
			return err
		}
		if got.PID == 0 {
			return errSkip // the guest is no process of this system
		}
		if err := syscall.Kill(got.PID, syscall.SIGKILL); err != nil {
			return err
		}
		if err := driver.Wait(x.ctx, x.d, m.ID); err != nil && !errors.Is(err, kiterr.ErrUnsupported) {
			return err
		}
		if got, _, err := x.find(m.ID); err != nil || got.Running {
			return fmt.Errorf("List has %+v, %v", got, err)
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		return x.want(cl, "hostname", "box")
	}},
	{"List names every machine once, by id", func(x *trial) error {
		a, b, c := x.machine(), x.machine(), x.machine()
		for _, m := range []string{b.ID, a.ID, c.ID} {
			n := a
			n.ID = m
			if err := x.d.Create(x.ctx, n); err != nil {
				return err
			}
		}
		if err := x.d.Start(x.ctx, b.ID); err != nil {
			return err
		}
		ms, err := x.d.List(x.ctx)
		if err != nil {
			return err
		}
		var got []string
		for _, m := range ms {
			got = append(got, fmt.Sprint(m.ID, m.Running))
		}
		want := []string{fmt.Sprint(a.ID, false), fmt.Sprint(b.ID, true), fmt.Sprint(c.ID, false)}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}},
	{"NetNS is the namespace that the machine is in", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		ns, err := driver.NetNS(x.ctx, x.d, m.ID)
		if errors.Is(err, kiterr.ErrUnsupported) {
			return errSkip
		}
		if err != nil {
			return err
		}
		defer ns.Close()
		var st syscall.Stat_t
		if err := syscall.Fstat(int(ns.Fd()), &st); err != nil {
			return err
		}
		if err := x.want(cl, "readlink /proc/self/ns/net", fmt.Sprintf("net:[%d]", st.Ino)); err != nil {
			return err
		}
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		_, err = driver.NetNS(x.ctx, x.d, m.ID)
		return is("NetNS of a stopped machine", err, kiterr.ErrNotRunning)
	}},
	{"Wait returns when the machine does not run any more", func(x *trial) error {
		m := x.machine()
		if _, err := x.up(m); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(x.ctx, 50*time.Millisecond)
		defer cancel()
		err := driver.Wait(short, x.d, m.ID)
		if errors.Is(err, kiterr.ErrUnsupported) {
			return errSkip
		}
		if err := is("Wait while it runs", err, context.DeadlineExceeded); err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- driver.Wait(x.ctx, x.d, m.ID) }()
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		return errors.Join(<-done, driver.Wait(x.ctx, x.d, m.ID))
	}},
	{"methods can be called concurrently, by several drivers", func(x *trial) error {
		m := x.machine()
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		other := x.s.Open(x.dir)
		var wg sync.WaitGroup
		errs := make(chan error, 64)
		for i := range 12 {
			d := []driver.Driver{x.d, other}[i%2]
			wg.Go(func() {
				for range 2 {
					errs <- d.Start(x.ctx, m.ID)
					errs <- d.Stop(x.ctx, m.ID, 0)
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				return err
			}
		}
		// One of all that remove it finds it.
		var removed int
		var mu sync.Mutex
		for i := range 6 {
			d := []driver.Driver{x.d, other}[i%2]
			wg.Go(func() {
				if err := d.Remove(x.ctx, m.ID); err == nil {
					mu.Lock()
					removed++
					mu.Unlock()
				} else if !errors.Is(err, kiterr.ErrNotFound) {
					mu.Lock()
					removed += 100
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if removed != 1 {
			return fmt.Errorf("removed %d times", removed)
		}
		return errors.Join(mountsOf(x.dir), empty(x.dir))
	}},
}

// empty reports what is left in a driver's directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		return fmt.Errorf("left behind: %s", e.Name())
	}
	return nil
}

// mountsOf reports mounts of this process's namespace below dir.
func mountsOf(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir) {
			return fmt.Errorf("a mount is left: %s", line)
		}
	}
	return nil
}

func exist(paths ...string) error {
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return err
		}
	}
	return nil
}
