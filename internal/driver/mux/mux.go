// Package mux lets one home hold machines of several drivers. Which driver made
// a machine is a fact on disk: each has a directory of its own, and the one
// that holds the machine's answers for it.
package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// An Entry is one driver to choose from.
type Entry struct {
	Name   string // as plan.Machine.Driver names it
	Dir    string // where Driver keeps its machines, one directory each
	Driver driver.Driver
}

// A Driver is several. The first entry makes the machines that name no driver.
// It keeps the promises of [driver.Driver] as far as its entries do, and is
// [driver.Networked] and a [driver.Waiter] for the machines whose driver is.
type Driver []Entry

// Create implements [driver.Driver]. An unknown driver is refused, and so is an
// id that any of the drivers has.
func (d Driver) Create(ctx context.Context, m plan.Machine) error {
	if _, err := d.of(m.ID); err == nil {
		return fmt.Errorf("machine %s: %w", m.ID, kiterr.ErrExists)
	}
	e, err := d.named(m.Driver)
	if err != nil {
		return err
	}
	return e.Create(ctx, m)
}

// named returns the driver that makes machines for whoever asks for name.
func (d Driver) named(name string) (driver.Driver, error) {
	var names []string
	for i, e := range d {
		if e.Name == name || name == "" && i == 0 {
			return e.Driver, nil
		}
		names = append(names, e.Name)
	}
	return nil, fmt.Errorf("there is no driver %q; there are %s: %w", name, strings.Join(names, ", "), kiterr.ErrRefused)
}

// Known implements [driver.Chooser].
func (d Driver) Known(name string) error {
	_, err := d.named(name)
	return err
}

// Fit implements [driver.Judge].
func (d Driver) Fit(m plan.Machine) error {
	e, err := d.named(m.Driver)
	if err != nil {
		return err
	}
	return driver.Fit(e, m)
}

// of returns the driver that holds machine id.
func (d Driver) of(id string) (driver.Driver, error) {
	if id == "" || id == "." || id == ".." || id != filepath.Base(id) {
		return nil, fmt.Errorf("machine %q: %w", id, kiterr.ErrNotFound)
	}
	for _, e := range d {
		if _, err := os.Stat(filepath.Join(e.Dir, id)); err == nil {
			return e.Driver, nil
		}
	}
	return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotFound)
}

// Start implements [driver.Driver].
func (d Driver) Start(ctx context.Context, id string) error {
	e, err := d.of(id)
	if err != nil {
		return err
	}
	return e.Start(ctx, id)
}

// Dial implements [driver.Driver].
func (d Driver) Dial(ctx context.Context, id string) (net.Conn, error) {
	e, err := d.of(id)
	if err != nil {
		return nil, err
	}
	return e.Dial(ctx, id)
}

// Stop implements [driver.Driver].
func (d Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	e, err := d.of(id)
	if err != nil {
		return err
	}
	return e.Stop(ctx, id, grace)
}

// Remove implements [driver.Driver].
func (d Driver) Remove(ctx context.Context, id string) error {
	e, err := d.of(id)
	if err != nil {
		return err
	}
	return e.Remove(ctx, id)
}

// List implements [driver.Driver]. A driver that cannot list does not hide the
// machines of the others: both the machines and the error are returned.
func (d Driver) List(ctx context.Context) ([]driver.Machine, error) {
	var all []driver.Machine
	var errs []error
	for _, e := range d {
		if _, err := os.Stat(e.Dir); errors.Is(err, os.ErrNotExist) {
			continue // nothing was ever made with it
		}
		ms, err := e.Driver.List(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("machines of driver %s: %w", e.Name, err))
		}
		all = append(all, ms...)
	}
	return all, errors.Join(errs...)
}

// NetNS implements [driver.Networked].
func (d Driver) NetNS(ctx context.Context, id string) (*os.File, error) {
	e, err := d.of(id)
	if err != nil {
		return nil, err
	}
	return driver.NetNS(ctx, e, id)
}

// Wait implements [driver.Waiter].
func (d Driver) Wait(ctx context.Context, id string) error {
	e, err := d.of(id)
	if err != nil {
		return err
	}
	return driver.Wait(ctx, e, id)
}
