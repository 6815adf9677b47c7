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

// boot has the runtime make and start the container, whose guest writes the boot
// files. On error the caller ends what is recorded in m.Run.
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
	files, err := filesOf(p)
	if err != nil {
		return err
	}
	defer files.Close()
	c := command{runtime: runtime, m: m, stage: st}
	if err := c.run(ctx, []*os.File{ln, files, st.guest}, log, "create", "--bundle", filepath.Join(m.Path, bundleDir),
		"--pid-file", filepath.Join(m.Path, pidFile), "--preserve-fds", "3", m.ID); err != nil {
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
	return nil
}

// filesOf holds the boot files for the guest, which writes them: the layer is the
// machine's, and so are the links in it.
func filesOf(p plan.Machine) (*os.File, error) {
	fs := make([]inside.File, len(p.Files))
	for i, f := range p.Files {
		fs[i] = inside.File(f)
	}
	b, err := inside.EncodeFiles(fs)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("files", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("holding the boot files: %w", err)
	}
	f := os.NewFile(uintptr(fd), "files")
	if _, err = f.Write(b); err == nil {
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

// run runs the runtime in a mount namespace of its own. pass are its descriptors
// from 3 on; what it makes has log for its stderr.
func (c command) run(ctx context.Context, pass []*os.File, log *os.File, args ...string) error {
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
	cmd.ExtraFiles = pass
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
