// Package attend is what a command does with a sandbox that has a keeper, or is to
// get one: run something in it, stop it, start it. It needs to know neither how
// sandboxes are made nor what drives their machines, so that a small program can do
// it. What a killed command or keeper has left is not its business: internal/engine
// mends that.
package attend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// PlanFile is the document of a sandbox's directory that holds its plan.
const PlanFile = "plan.json"

// NextFile is the document that is there while a sandbox is being made anew.
const NextFile = "next.json"

// How long processes get between TERM and KILL unless a caller says otherwise, how
// long a keeper may take beyond that, and how long one that lives takes at most to
// say so.
const (
	defaultGrace = 10 * time.Second
	stopBound    = 30 * time.Second
	probeBound   = 2 * time.Second
)

// A Sandbox is one that exists.
type Sandbox struct{ State *state.Sandbox }

// Keeper is the way to its keeper, whether there is one or not.
func (s Sandbox) Keeper() link.Client { return link.Client{Dir: s.State.Dir()} }

// Grace is how long processes get between TERM and KILL.
func Grace(o sandbox.StopOptions) time.Duration {
	switch {
	case o.Grace == 0:
		return defaultGrace
	case o.Grace < 0:
		return 0
	}
	return o.Grace
}

// Stop asks the keeper to end the sandbox, and returns when it has. Without one the
// error is [link.ErrNone], from one that does not answer
// [context.DeadlineExceeded]. The caller holds the sandbox's lock.
func (s Sandbox) Stop(ctx context.Context, r link.StopRequest) error {
	bound, cancel := context.WithTimeout(ctx, r.Grace+stopBound)
	defer cancel()
	// One that hangs should not cost the whole bound.
	probe, done := context.WithTimeout(ctx, probeBound)
	_, err := s.Keeper().Status(probe)
	done()
	if err == nil {
		_, err = s.Keeper().Stop(bound, r)
	}
	return err
}

// Start brings the sandbox up, unless it is, through a keeper that spawn starts. The
// caller holds its lock and knows that it came to be and is not to be removed or
// made anew. A [sandbox.HookError] of the runtime phase leaves it running.
func (s Sandbox) Start(ctx context.Context, spawn func() (*link.Process, error), progress func(sandbox.Event)) error {
	held, err := s.Up(ctx, spawn, progress)
	if held != nil {
		held.Release()
	}
	return err
}

// Up is Start, and returns the keeper that it started: until that one is released,
// the sandbox is not stopped for want of a session. It is nil when there was a keeper,
// and when the sandbox did not come up.
func (s Sandbox) Up(ctx context.Context, spawn func() (*link.Process, error), progress func(sandbox.Event)) (*link.Process, error) {
	err := s.Answering(ctx, func(ctx context.Context) error { return s.Keeper().Watch(ctx, progress) })
	if !errors.Is(err, link.ErrNone) {
		return nil, err
	}
	if err := s.State.Read(PlanFile, plan.Version, new(plan.Plan)); err != nil {
		return nil, err
	}
	k, err := spawn()
	if err != nil {
		return nil, err
	}
	up, err := k.Boot(ctx, link.BootOptions{Progress: progress})
	if err != nil && !errors.As(err, new(*sandbox.HookError)) && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("sandbox %s: %w", s.State.Name, err)
	}
	if !up {
		k.Release()
		k = nil
	}
	return k, err
}

// Stopped reports whether err, of a session that was asked for, says that the sandbox
// has no keeper or one that ends.
func Stopped(err error) bool {
	return errors.Is(err, link.ErrNone) || errors.Is(err, kiterr.ErrNotRunning) && !errors.As(err, new(*HungError))
}
