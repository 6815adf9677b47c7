package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/driver/guard"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// What the driver keeps in a machine's directory beside package machinedir's.
const (
	bundleDir = "bundle"  // the runtime's view: config.json
	stateDir  = "runtime" // the runtime's own records
	pidFile   = "bundle/pid"
)

// boot has the runtime make and start the container, which the guest finishes. On
// error the caller ends what is recorded in m.Run.
func (d *Driver) boot(ctx context.Context, m *machinedir.Machine) error {
	p, err := m.Plan()
	if err != nil {
		return err
	}
	runtime, err := d.runtime()
	if err != nil {
		return err
	}
	limits, unenforced := machinedir.Limits(p.Limits)
	if len(unenforced) > 0 && p.Limits.Enforce {
		return &cgroup.LimitError{ID: m.ID, Unenforced: unenforced}
	}
	// Before the look at what there is, so that nothing comes between.
	w, err := guard.Begin(p)
	if err != nil {
		return err
	}
	defer w.Close()
	guest, err := machinedir.OpenGuest(d.GuestPath)
	if err != nil {
		return err
	}
	defer guest.Close()
	// From here on there may be something to clear.
	r := &machinedir.Run{Boot: durable.Boot(), Unenforced: append(unenforced, w.Blind()...)}
	m.Run = r

	ln, err := m.Listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	log, err := m.OpenLog()
	if err != nil {
		return err
	}
	defer log.Close()

	devices, missing, err := device.Take(p.Devices)
	if err != nil {
		return err
	}
	defer device.Close(devices)
	r.Unenforced = append(r.Unenforced, missing...)
	st, err := gather(p, m.Writable, guest.Name())
	if err != nil {
		return err
	}
	defer st.close()
	st.devices = devices
	told, err := tell(p, devices)
	if err != nil {
		return err
	}
	defer told.Close()
	if err := writeBundle(m, p, st, limits); err != nil {
		return err
	}
	c := command{runtime: runtime, m: m, stage: st}
	if err := c.run(ctx, []*os.File{ln, told, st.guest}, log, "create", "--bundle", filepath.Join(m.Path, bundleDir),
		"--pid-file", filepath.Join(m.Path, pidFile), "--preserve-fds", "3", m.ID); err != nil {
		return err
	}
	ln.Close() // so that the end of the guest shows
	b, err := os.ReadFile(filepath.Join(m.Path, pidFile))
	if err != nil {
		return fmt.Errorf("%s left no pid: %w", filepath.Base(runtime), err)
	}
	if r.PID, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return fmt.Errorf("%s left a pid that is none: %q", filepath.Base(runtime), b)
	}
	machinedir.FirstToGo(r.PID)
	if r.Start, err = machinedir.StartTicks(r.PID); err != nil {
		return m.Blame(fmt.Errorf("the guest ended at once: %w", err))
	}
	if err := m.WriteRun(r); err != nil {
		return err
	}
	c.stage = nil // the container has it now
	// Nothing runs in it yet, and the guest locks what lies over mounts.
	if err := w.Lay(m); err != nil {
		return err
	}
	if err := c.run(ctx, nil, log, "start", m.ID); err != nil {
		return err
	}
	cl := &client.Client{Dial: m.Dial}
	if _, err := cl.Info(ctx); err != nil {
		return m.Blame(fmt.Errorf("waiting for the guest: %w", err))
	}
	d.guards.Keep(m, w, d.log())
	return nil
}

// tell returns what the guest reads before it serves: the files to write, and the
// mounts to lock. It is in memory, since nobody needs it afterwards.
func tell(p plan.Machine, devices []device.Node) (*os.File, error) {
	c := &inside.Config{Locked: lockable(p)}
	for _, d := range devices {
		c.Mounts = append(c.Mounts, inside.Mount{Path: d.Path, ReadOnly: true})
	}
	for _, m := range p.Mounts {
		c.Mounts = append(c.Mounts, inside.Mount{Path: m.Path, ReadOnly: m.ReadOnly || len(m.Covers) > 0})
	}
	for _, f := range p.Files {
		c.Files = append(c.Files, inside.File(f))
	}
	fd, err := unix.MemfdCreate("machine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "machine")
	if err = inside.WriteConfig(f, c); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeBundle writes the runtime's configuration.
func writeBundle(m *machinedir.Machine, p plan.Machine, st *stage, l cgroup.Limits) error {
	dir := filepath.Join(m.Path, bundleDir)
	for _, d := range []string{dir, filepath.Join(m.Path, stateDir)} {
		if err := os.RemoveAll(d); err != nil {
			return machinedir.Explain(err)
		}
		if err := os.Mkdir(d, 0o700); err != nil {
			return machinedir.Explain(err)
		}
	}
	b, err := json.MarshalIndent(specOf(p, st, l, m.CgroupName()), "", "  ")
	if err != nil {
		return err
	}
	return machinedir.Explain(os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600))
}

// A command is the runtime, run for one machine.
type command struct {
	runtime string
	m       *machinedir.Machine
	stage   *stage // nil where the root filesystem is not needed
}

// run runs the runtime in a mount namespace of its own. files are its descriptors
// from 3 on; what it makes has log for its stderr.
func (c command) run(ctx context.Context, files []*os.File, log *os.File, args ...string) error {
	global := []string{"--root", filepath.Join(c.m.Path, stateDir)}
	if strings.Contains(filepath.Base(c.runtime), "crun") {
		global = append(global, "--cgroup-manager=cgroupfs")
	}
	// A file and not a pipe: the container keeps it, and a pipe would never end.
	said, err := os.CreateTemp(filepath.Join(c.m.Path, bundleDir), "said-")
	if err != nil {
		return machinedir.Explain(err)
	}
	defer os.Remove(said.Name())
	defer said.Close()

	cmd := exec.CommandContext(ctx, c.runtime, append(global, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	if log != nil {
		cmd.Stdout, cmd.Stderr = log, log
	}
	cmd.ExtraFiles = files
	err = privately(c.stage, func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		return cmd.Wait()
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(c.runtime), args[0], ctx.Err())
	}
	b := make([]byte, 2000)
	n, _ := said.ReadAt(b, 0)
	if log != nil {
		n = copy(b, readLog(c.m))
	}
	return fmt.Errorf("%s %s: %w: %s", filepath.Base(c.runtime), args[0], err, bytes.TrimSpace(b[:n]))
}

// readLog is what the log of a machine holds.
func readLog(m *machinedir.Machine) []byte {
	b, _ := os.ReadFile(filepath.Join(m.Path, machinedir.LogFile))
	return b
}

// clear has the runtime forget the container, of which nothing runs, and then
// removes what a runtime forgets.
func (d *Driver) clear(m *machinedir.Machine) error {
	if _, err := os.Stat(filepath.Join(m.Path, stateDir, m.ID)); err == nil {
		runtime, err := d.runtime()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := (command{runtime: runtime, m: m}).run(ctx, nil, nil, "delete", "--force", m.ID); err != nil {
			d.log().Warn("runtime did not delete", "machine", m.ID, "err", err)
		}
	}
	var made []string
	if m.Run != nil {
		made = m.Run.Cgroups
	}
	if err := (cgroup.System{}).Remove(m.CgroupName(), made); err != nil {
		return fmt.Errorf("machine %s: %w", m.ID, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(m.Path, stateDir)), os.RemoveAll(filepath.Join(m.Path, bundleDir))); err != nil {
		return machinedir.Explain(err)
	}
	return m.ClearRun()
}
