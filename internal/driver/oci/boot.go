package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// What the driver keeps in a machine's directory beside package machinedir's.
const (
	bundleDir = "bundle"  // the runtime's view: config.json
	stateDir  = "runtime" // the runtime's own records
	pidFile   = "bundle/pid"
)

// boot has the runtime make and start the container, and writes the boot files
// through the guest. On error the caller ends what is recorded in m.Run.
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
	guest, err := machinedir.OpenGuest(d.GuestPath)
	if err != nil {
		return err
	}
	defer guest.Close()
	// From here on there may be something to clear.
	r := &machinedir.Run{Boot: durable.Boot(), Unenforced: unenforced}
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

	st, err := gather(p, m.Writable, guest.Name())
	if err != nil {
		return err
	}
	defer st.close()
	if err := writeBundle(m, p, st, limits); err != nil {
		return err
	}
	c := command{runtime: runtime, m: m, stage: st}
	if err := c.run(ctx, ln, log, "create", "--bundle", filepath.Join(m.Path, bundleDir),
		"--pid-file", filepath.Join(m.Path, pidFile), "--preserve-fds", "1", m.ID); err != nil {
		return err
	}
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
	if err := c.run(ctx, nil, log, "start", m.ID); err != nil {
		return err
	}
	cl := &client.Client{Dial: m.Dial}
	if _, err := cl.Info(ctx); err != nil {
		return m.Blame(fmt.Errorf("waiting for the guest: %w", err))
	}
	for _, f := range p.Files {
		if f.Append && f.Optional {
			continue // nobody counts on it
		}
		if f.Append || f.Optional {
			// Replacing it would take away what the image trusts.
			return fmt.Errorf("adding to %s, which hosts with bounded requests need: driver oci does not do that; use driver namespace: %w", f.Path, kiterr.ErrUnsupported)
		}
		// By the guest and not from here: the layer is the machine's, and so
		// are the links in it.
		if err := cl.WriteFile(ctx, client.File{Path: f.Path, Mode: f.Mode, Parents: true}, []byte(f.Content)); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	return nil
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

// run runs the runtime in a mount namespace of its own. ln, if not nil, is its
// descriptor 3; what it makes has log for its stderr.
func (c command) run(ctx context.Context, ln, log *os.File, args ...string) error {
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
	cmd.Stdout, cmd.Stderr = log, said
	if ln != nil {
		cmd.ExtraFiles = []*os.File{ln}
	}
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
	return fmt.Errorf("%s %s: %w: %s", filepath.Base(c.runtime), args[0], err, bytes.TrimSpace(b[:n]))
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
