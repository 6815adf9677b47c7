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
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/plan"
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

	children machinedir.Children
	guards   guards
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

// Create implements [driver.Driver].
func (d *Driver) Create(ctx context.Context, m plan.Machine) error {
	if err := machinedir.Check(m); err != nil {
		return err
	}
	if err := checkIDMap(m.IDMap); err != nil {
		return err
	}
	if _, unenforced := cgroup.Of(m.Limits); len(unenforced) > 0 && m.Limits.Enforce {
		return &cgroup.LimitError{ID: m.ID, Unenforced: unenforced}
	}
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return err
	}
	return machinedir.Create(ctx, dir, m)
}

// Start implements [driver.Driver].
func (d *Driver) Start(ctx context.Context, id string) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	ctx, cancel := context.WithTimeout(ctx, d.startTimeout())
	defer cancel()
	if ok, err := m.Answers(ctx); ok || err != nil {
		if ok && err == nil {
			err = d.guardAgain(m)
		}
		return err
	}
	if err := d.clear(m); err != nil {
		return err
	}
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
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return nil, err
	}
	return machinedir.Dial(ctx, dir, id)
}

// Stop implements [driver.Driver].
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	// A guest that does not answer is killed like one that is done.
	if err := m.Stop(ctx, grace); err != nil {
		d.log().Warn("guest did not shut down", "machine", m.ID, "err", err)
	}
	return d.kill(m)
}

// Remove implements [driver.Driver].
func (d *Driver) Remove(ctx context.Context, id string) error {
	m, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	if err := d.kill(m); err != nil {
		return err
	}
	return m.Remove()
}

// List implements [driver.Driver].
func (d *Driver) List(context.Context) ([]driver.Machine, error) {
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return nil, err
	}
	return machinedir.List(dir)
}

// NetNS implements [driver.Networked].
func (d *Driver) NetNS(_ context.Context, id string) (*os.File, error) {
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return nil, err
	}
	return machinedir.NetNS(dir, id)
}

// Wait implements [driver.Waiter].
func (d *Driver) Wait(ctx context.Context, id string) error {
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return err
	}
	return machinedir.Wait(ctx, dir, id)
}

// lock opens a machine for changing it and waits until nobody else does.
func (d *Driver) lock(ctx context.Context, id string) (*machinedir.Machine, error) {
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return nil, err
	}
	return machinedir.Lock(ctx, dir, id)
}
