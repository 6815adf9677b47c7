// Package oci is the driver that has machines made by an OCI runtime: any
// runc, crun or compatible program. It is there for systems whose operators
// trust one of them more than package namespace, which is faster and the
// default.
//
// The guest is the container's first process and gives up capabilities and
// privileges by itself, with the same code and the same system call filter as
// everywhere, so what a machine promises does not depend on what a runtime was
// compiled with. The runtime makes the namespaces, the mounts and the limits.
// It needs the system's root.
package oci

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/guard"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Driver keeps its machines below Dir. Set its fields before its first use
// and leave them alone afterwards. Several Drivers, in one or more processes,
// may share a directory if they have the same Runtime.
type Driver struct {
	// Runtime is the runtime's program. Empty means crun, or else runc, of PATH.
	Runtime string

	// Dir, GuestPath, StartTimeout and Log are as in package namespace.
	Dir          string
	GuestPath    string
	StartTimeout time.Duration
	Log          *slog.Logger

	guards guard.Guards
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

// runtime returns the path of the runtime.
func (d *Driver) runtime() (string, error) {
	names := []string{"crun", "runc"}
	if d.Runtime != "" {
		names = []string{d.Runtime}
	}
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no OCI runtime found (%v): install crun or runc: %w", names, kiterr.ErrUnavailable)
}

// Fit implements [driver.Judge].
func (d *Driver) Fit(m plan.Machine) error { return d.life().Judge(m) }

// fit says whether this process can have machine m.
func (d *Driver) fit(m plan.Machine) error {
	if err := checkIDMap(m.IDMap); err != nil {
		return err
	}
	_, err := d.runtime()
	return err
}

// checkIDMap says whether this process can have machines made with map m.
func checkIDMap(m plan.IDMap) error {
	if os.Geteuid() != 0 || !userns.Initial() {
		return fmt.Errorf("machines of an OCI runtime need the system's root; the namespace driver does not: %w", kiterr.ErrUnsupported)
	}
	if m.IsIdentity() || m.Base == 0 || uint64(m.Base)+uint64(m.Size) > 1<<32-1 {
		return fmt.Errorf("a machine whose root is the host's root is refused: give it an id range: %w", kiterr.ErrUnsupported)
	}
	return nil
}

// kill ends the machine at once and clears what it leaves.
func (d *Driver) kill(m *machinedir.Machine) error {
	if err := m.Kill(); err != nil {
		return err
	}
	return d.clear(m)
}

// life returns the steps that this driver shares with others.
func (d *Driver) life() machinedir.Life {
	return machinedir.Life{Dir: d.Dir, StartTimeout: cmp.Or(d.StartTimeout, 60*time.Second), Log: d.Log,
		Fit: d.fit, Boot: d.boot, Again: func(m *machinedir.Machine) error { return d.guards.Again(m, d.log()) }, Kill: d.kill, Clear: d.clear}
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
