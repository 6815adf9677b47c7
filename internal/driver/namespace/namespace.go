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
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/guard"
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
	guards   guard.Guards
}

var (
	_ driver.Driver    = (*Driver)(nil)
	_ driver.Networked = (*Driver)(nil)
	_ driver.Waiter    = (*Driver)(nil)
	_ driver.Judge     = (*Driver)(nil)
)

func (d *Driver) log() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

// life returns the steps that this driver shares with others.
func (d *Driver) life() machinedir.Life {
	return machinedir.Life{Dir: d.Dir, StartTimeout: cmp.Or(d.StartTimeout, 30*time.Second), Log: d.Log,
		Fit: fit, Boot: d.boot, Again: func(m *machinedir.Machine) error { return d.guards.Again(m, d.log()) }, Kill: d.kill, Clear: d.clear}
}

// Create implements [driver.Driver].
func (d *Driver) Create(ctx context.Context, m plan.Machine) error { return d.life().Create(ctx, m) }

// Start implements [driver.Driver].
func (d *Driver) Start(ctx context.Context, id string) error { return d.life().Start(ctx, id) }

// Dial implements [driver.Driver].
func (d *Driver) Dial(ctx context.Context, id string) (net.Conn, error) {
	return d.life().Dial(ctx, id)
}

// Stop implements [driver.Driver].
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	return d.life().Stop(ctx, id, grace)
}

// Remove implements [driver.Driver].
func (d *Driver) Remove(ctx context.Context, id string) error { return d.life().Remove(ctx, id) }

// List implements [driver.Driver].
func (d *Driver) List(ctx context.Context) ([]driver.Machine, error) { return d.life().List(ctx) }

// NetNS implements [driver.Networked].
func (d *Driver) NetNS(ctx context.Context, id string) (*os.File, error) {
	return d.life().NetNS(ctx, id)
}

// Wait implements [driver.Waiter].
func (d *Driver) Wait(ctx context.Context, id string) error { return d.life().Wait(ctx, id) }

// Fit implements [driver.Judge].
func (d *Driver) Fit(m plan.Machine) error { return d.life().Judge(m) }

// fit says whether this process can have machine m.
func fit(m plan.Machine) error { return checkIDMap(m.IDMap) }
