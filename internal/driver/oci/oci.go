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
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
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
		return 60 * time.Second
	}
	return d.StartTimeout
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

// Create implements [driver.Driver].
func (d *Driver) Create(ctx context.Context, m plan.Machine) error {
	if err := machinedir.Check(m); err != nil {
		return err
	}
	if err := checkIDMap(m.IDMap); err != nil {
		return err
	}
	for _, mt := range m.Mounts {
		if len(mt.Covers) > 0 {
			return fmt.Errorf("mount %s: masks and the protection of Git repositories take the namespace driver; choose that one, or --unprotected-git and no masks: %w", mt.Path, kiterr.ErrUnsupported)
		}
	}
	if _, err := d.runtime(); err != nil {
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
		return err
	}
	if err := d.clear(m); err != nil {
		return err
	}
	if err := d.boot(ctx, m); err != nil {
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

// kill ends the machine at once and clears what it leaves.
func (d *Driver) kill(m *machinedir.Machine) error {
	if err := m.Kill(); err != nil {
		return err
	}
	return d.clear(m)
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

func (d *Driver) lock(ctx context.Context, id string) (*machinedir.Machine, error) {
	dir, err := machinedir.Base(d.Dir)
	if err != nil {
		return nil, err
	}
	return machinedir.Lock(ctx, dir, id)
}
