// Package namespace is the driver that makes machines of the kernel's own
// parts: namespaces, idmapped mounts, an overlay and cgroups. It needs root or
// a user namespace (see package rootless), no daemon and no other program but
// the guest.
//
// The host's half is here: directories, descriptors of mounts, limits, and the
// life and death of the guest's process. The half that runs in the new
// namespaces is in internal/guest/inside. No mount of a machine ever appears
// in a mount table of the host, and killing the guest ends all that runs in
// its machine, so whatever process of ours dies at whatever instant, what is
// left is files.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Driver keeps its machines below Dir. Set its fields before its first use
// and leave them alone afterwards. Several Drivers, in one or more processes,
// may share a directory.
type Driver struct {
	// Dir holds one directory per machine; it is made when missing. Empty
	// means "machines" in KITBOX_HOME, or in $XDG_STATE_HOME/kitbox.
	Dir string

	// GuestPath is the guest's program. Empty means kit-guest in
	// KITBOX_LIBEXEC, or beside this program.
	GuestPath string

	// StartTimeout bounds one boot. Zero means 30 seconds.
	StartTimeout time.Duration

	// Log receives what happens in the background. Nil discards.
	Log *slog.Logger

	// children are the guests this Driver started, by machine id, so that
	// none of them stays behind as a zombie of this process.
	mu       sync.Mutex
	children map[string]*child // guarded by mu
}

var (
	_ driver.Driver    = (*Driver)(nil)
	_ driver.Networked = (*Driver)(nil)
	_ driver.Waiter    = (*Driver)(nil)
)

func (d *Driver) log() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

func (d *Driver) startTimeout() time.Duration {
	if d.StartTimeout == 0 {
		return 30 * time.Second
	}
	return d.StartTimeout
}

// dir returns Dir or its default.
func (d *Driver) dir() (string, error) {
	if d.Dir != "" {
		return filepath.Abs(d.Dir)
	}
	if home := os.Getenv("KITBOX_HOME"); home != "" {
		return filepath.Abs(filepath.Join(home, "machines"))
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for machines: set KITBOX_HOME: %w", kiterr.ErrUnavailable)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "kitbox", "machines"), nil
}

// guest opens the guest's program.
func (d *Driver) guest() (*os.File, error) {
	p := d.GuestPath
	if p == "" {
		dir := os.Getenv("KITBOX_LIBEXEC")
		if dir == "" {
			exe, err := os.Executable()
			if err != nil {
				return nil, err
			}
			dir = filepath.Dir(exe)
		}
		p = filepath.Join(dir, "kit-guest")
	}
	f, err := os.Open(p)
	if err != nil {
		return nil, fmt.Errorf("the guest program %s cannot be opened; reinstall kitbox or set KITBOX_LIBEXEC: %w", p, kiterr.ErrUnavailable)
	}
	return f, nil
}

// Create implements [driver.Driver].
func (d *Driver) Create(ctx context.Context, m plan.Machine) error {
	if err := check(m); err != nil {
		return err
	}
	if err := checkIDMap(m.IDMap); err != nil {
		return err
	}
	if _, unenforced := limitsOf(m); len(unenforced) > 0 && m.Limits.Enforce {
		return &LimitError{m.ID, unenforced}
	}
	dir, err := d.dir()
	if err != nil {
		return err
	}
	return create(ctx, dir, m)
}

// Start implements [driver.Driver].
func (d *Driver) Start(ctx context.Context, id string) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.unlock()
	if m.running() {
		return nil
	}
	if err := d.clear(m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.startTimeout())
	defer cancel()
	if err := d.boot(ctx, m); err != nil {
		// What was begun is recorded in m, so it goes the way of any machine.
		if cerr := d.kill(m); cerr != nil {
			err = errors.Join(err, cerr)
		}
		return fmt.Errorf("starting machine %s: %w", id, err)
	}
	return nil
}

// Dial implements [driver.Driver].
func (d *Driver) Dial(ctx context.Context, id string) (net.Conn, error) {
	dir, err := d.dir()
	if err != nil {
		return nil, err
	}
	m, err := open(dir, id)
	if err != nil {
		return nil, err
	}
	defer m.close()
	if !m.running() {
		return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	return m.dial(ctx)
}

// Stop implements [driver.Driver].
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.unlock()
	return d.stop(ctx, m, grace)
}

func (d *Driver) stop(ctx context.Context, m *machine, grace time.Duration) error {
	if m.running() && grace > 0 {
		// A guest that does not answer is killed like one that is done.
		asked, cancel := context.WithTimeout(ctx, grace+2*time.Second)
		cl := client.Client{Dial: m.dial}
		if err := cl.Shutdown(asked, grace); err != nil {
			d.log().Warn("guest did not shut down", "machine", m.id, "err", err)
		}
		cancel()
	}
	return d.kill(m)
}

// Remove implements [driver.Driver].
func (d *Driver) Remove(ctx context.Context, id string) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.unlock()
	if err := d.kill(m); err != nil {
		return err
	}
	return m.remove()
}

// List implements [driver.Driver].
func (d *Driver) List(context.Context) ([]driver.Machine, error) {
	dir, err := d.dir()
	if err != nil {
		return nil, err
	}
	return list(dir)
}

// NetNS implements [driver.Networked].
func (d *Driver) NetNS(_ context.Context, id string) (*os.File, error) {
	dir, err := d.dir()
	if err != nil {
		return nil, err
	}
	m, err := open(dir, id)
	if err != nil {
		return nil, err
	}
	defer m.close()
	p, err := m.process()
	if err != nil {
		return nil, err
	}
	defer p.close()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.pid))
	if err == nil && p.ended() {
		ns.Close() // perhaps a later process's
		err = fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	return ns, nil
}

// Wait implements [driver.Waiter].
func (d *Driver) Wait(ctx context.Context, id string) error {
	dir, err := d.dir()
	if err != nil {
		return err
	}
	m, err := open(dir, id)
	if err != nil {
		return err
	}
	p, err := m.process()
	m.close()
	if errors.Is(err, kiterr.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	return p.wait(ctx)
}

// lock opens a machine for changing it and waits until nobody else does.
func (d *Driver) lock(ctx context.Context, id string) (*machine, error) {
	dir, err := d.dir()
	if err != nil {
		return nil, err
	}
	return lock(ctx, dir, id)
}
