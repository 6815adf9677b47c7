package machinedir

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
	"github.com/kitbox-dev/kitbox/internal/driver/owners"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Life is the order of steps in which the drivers whose machines are
// directories make, start, stop and remove them; the functions are what each
// does in its own way. It holds no state: several of them, in one or more
// processes, may share a directory.
type Life struct {
	Dir          string        // as Base takes it
	StartTimeout time.Duration // bounds one boot
	Log          *slog.Logger  // nil discards

	// Fit says whether the driver can have such a machine on this system. It
	// changes nothing.
	Fit func(plan.Machine) error
	// Boot starts a locked machine and returns when its guest answers. It
	// records what it begins in the machine's run, so that Kill finds all of it.
	Boot func(context.Context, *Machine) error
	// Again is called for a locked machine that runs already; nil does nothing.
	Again func(*Machine) error
	// Kill ends a locked machine at once and clears what it leaves.
	Kill func(*Machine) error
	// Clear removes what is left of the last run of a locked machine that does
	// not run.
	Clear func(*Machine) error
}

// Judge returns the error with which Create would refuse m, as [driver.Judge] says.
func (l Life) Judge(m plan.Machine) error {
	if err := Check(m); err != nil {
		return err
	}
	if err := l.Fit(m); err != nil {
		return err
	}
	if _, unenforced := Limits(m.Limits); len(unenforced) > 0 && m.Limits.Enforce {
		return &cgroup.LimitError{ID: m.ID, Unenforced: unenforced}
	}
	return nil
}

// Create makes a machine as [driver.Driver] says.
func (l Life) Create(ctx context.Context, m plan.Machine) error {
	if err := l.Judge(m); err != nil {
		return err
	}
	dir, err := Base(l.Dir)
	if err != nil {
		return err
	}
	return Create(ctx, dir, m)
}

// Start starts a machine as [driver.Driver] says.
func (l Life) Start(ctx context.Context, id string) error {
	m, err := l.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.StartTimeout)
	defer cancel()
	if ok, err := m.Answers(ctx); ok || err != nil {
		if ok && err == nil && l.Again != nil {
			err = l.Again(m)
		}
		return err
	}
	if since, ran := m.begun(); ran { // it ended by itself
		if err := l.giveBack(ctx, m, since); err != nil {
			return err
		}
	}
	if err := l.Clear(m); err != nil {
		return err
	}
	if err := l.Boot(ctx, m); err != nil {
		// What was begun is recorded in m, so it goes the way of any machine.
		if kerr := l.Kill(m); kerr != nil {
			err = errors.Join(err, kerr)
		}
		return fmt.Errorf("starting machine %s: %w", id, err)
	}
	return nil
}

// Stop stops a machine as [driver.Driver] says.
func (l Life) Stop(ctx context.Context, id string, grace time.Duration) error {
	m, err := l.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	// A guest that does not answer is killed like one that is done.
	if err := m.Stop(ctx, grace); err != nil && l.Log != nil {
		l.Log.Warn("guest did not shut down", "machine", m.ID, "err", err)
	}
	return l.kill(ctx, m)
}

// kill ends m, and gives away what it made in directories of the host's before the
// record of its run goes: whoever is killed in between leaves that to the next one,
// and without the record nobody would know that there is something to do.
func (l Life) kill(ctx context.Context, m *Machine) error {
	if since, ran := m.begun(); ran {
		if err := m.Kill(); err != nil {
			return err
		}
		if err := l.giveBack(ctx, m, since); err != nil {
			return err
		}
	}
	return l.Kill(m)
}

// giveBack gives away what m has made since. What cannot be given is left as it is and
// told of in the log, since it must not keep a machine from being stopped or removed.
// The error is that of a caller who gave up, and nothing else.
func (l Life) giveBack(ctx context.Context, m *Machine, since time.Time) error {
	p, err := m.Plan()
	if err == nil {
		err = owners.Return(ctx, p, since)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("giving to their owners the files that machine %s made: %w", m.ID, ctx.Err())
	}
	if err != nil && l.Log != nil {
		l.Log.Warn("not all that was made belongs to whom it should", "machine", m.ID, "err", err)
	}
	return nil
}

// Remove removes a machine as [driver.Driver] says.
func (l Life) Remove(ctx context.Context, id string) error {
	m, err := l.lock(ctx, id)
	if err != nil {
		return err
	}
	defer m.Unlock()
	if err := l.kill(ctx, m); err != nil {
		return err
	}
	return m.Remove()
}

// List describes all machines as [driver.Driver] says.
func (l Life) List(context.Context) ([]driver.Machine, error) {
	dir, err := Base(l.Dir)
	if err != nil {
		return nil, err
	}
	return List(dir)
}

// Dial connects to a machine's guest as [driver.Driver] says.
func (l Life) Dial(ctx context.Context, id string) (net.Conn, error) {
	dir, err := Base(l.Dir)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, dir, id)
}

// NetNS opens a machine's network namespace as [driver.Networked] says.
func (l Life) NetNS(_ context.Context, id string) (*os.File, error) {
	dir, err := Base(l.Dir)
	if err != nil {
		return nil, err
	}
	return NetNS(dir, id)
}

// Wait waits for a machine's end as [driver.Waiter] says.
func (l Life) Wait(ctx context.Context, id string) error {
	dir, err := Base(l.Dir)
	if err != nil {
		return err
	}
	return Wait(ctx, dir, id)
}

// lock opens a machine for changing it and waits until nobody else does.
func (l Life) lock(ctx context.Context, id string) (*Machine, error) {
	dir, err := Base(l.Dir)
	if err != nil {
		return nil, err
	}
	return Lock(ctx, dir, id)
}
