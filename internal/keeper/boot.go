package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/owners"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// boot brings the sandbox from whatever state it is in to ready. The order is
// the format's: storage and network first, then install hooks under their own
// grants, then those grants end, then files, then startup hooks.
func (k *Keeper) boot(ctx context.Context) error {
	es, err := journal.Read(k.Dir)
	if err != nil {
		return err
	}
	if k.Prepare != nil {
		k.Prepare()
	}
	installed := journal.Installed(es)
	running, known, err := k.machine(ctx)
	if err != nil {
		return err
	}
	if running && installed && journal.Last(es) == journal.Running {
		err := k.reattach(ctx, es)
		if !errors.Is(err, kiterr.ErrNotRunning) {
			return err
		}
		// It was killed along with its keeper and was only not gone yet.
		k.log().Info("the machine has ended")
	}
	if !installed && interrupted(es) {
		return errors.New("its creation was interrupted; create it again")
	}

	// Their history is bounded here, before anything is added to it.
	if err := journal.Compact(k.Dir, es); err != nil {
		return err
	}
	if err := trimHookRuns(k.Dir); err != nil {
		return err
	}
	if err := k.journal().Append(journal.Booting, ""); err != nil {
		return err
	}
	if running {
		// A boot that was cut short: nobody knows how far its hooks came.
		if err := k.Driver.Stop(ctx, k.Plan.Machine.ID, killGrace); err != nil {
			return err
		}
	}
	k.born(time.Now())
	k.event("start", k.Plan.Name)
	if err := k.sources(); err != nil {
		return err
	}
	if !known {
		if err := k.Driver.Create(ctx, k.Plan.Machine); err != nil {
			return err
		}
	}
	if err := k.Driver.Start(ctx, k.Plan.Machine.ID); err != nil {
		return err
	}
	phase := plan.Runtime
	if !installed {
		phase = plan.Install
	}
	if err := k.attach(ctx, phase); err != nil {
		return err
	}
	if !installed {
		if err := k.install(ctx); err != nil {
			return err
		}
	}
	if err := k.startup(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if k.others() {
		if err := k.giveBack(ctx); err != nil {
			k.log().Warn("what hooks made", "err", err)
		}
	}
	if err := k.outlived(ctx); err != nil {
		return err
	}
	if err := k.journal().Append(journal.Running, ""); err != nil {
		return err
	}
	k.ready()
	return nil
}

// giveBackTime bounds going through mounted directories while the machine runs: whoever
// is inside can move what was seen to where it is not seen yet, without end. What is left
// is given when the machine stops.
var giveBackTime = 30 * time.Second

// giveBack gives to the owners of mounted directories what was made there since the boot
// by others inside than the image's user.
func (k *Keeper) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, giveBackTime)
	defer cancel()
	k.mu.Lock()
	since := k.since
	k.mu.Unlock()
	return owners.Return(ctx, k.Plan.Machine, since)
}

// others reports whether a hook of the plan runs as another than the image's user.
func (k *Keeper) others() bool {
	own := HookUser(plan.Hook{Phase: plan.Runtime}, k.Plan.Launch)
	return slices.ContainsFunc(k.Plan.Hooks, func(h plan.Hook) bool { return HookUser(h, k.Plan.Launch) != own })
}

// born notes when the machine's boot began. The times of files are those of a coarser
// clock.
func (k *Keeper) born(t time.Time) {
	k.mu.Lock()
	k.since = t.Add(-time.Second)
	k.mu.Unlock()
}

// sources fails if what is to be mounted is not on the host any more, which happens
// to directories of the user's between two starts.
func (k *Keeper) sources() error {
	for _, m := range k.Plan.Machine.Mounts {
		if m.Source == "" {
			continue
		}
		_, err := os.Stat(m.Source)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("mount %s: %s is not there any more; put it back and start again, or 'kitbox rm %s'", m.Path, m.Source, k.Plan.Name)
		default:
			return fmt.Errorf("mount %s: %w", m.Path, err)
		}
	}
	return nil
}

// interrupted reports whether install hooks were begun and not ended: they run
// exactly once, so there is no going on from there.
func interrupted(es []journal.Entry) bool {
	for _, e := range es {
		if e.Phase == journal.InstallBegin {
			return true
		}
	}
	return false
}

// machine asks the driver whether the machine runs, and whether it exists.
func (k *Keeper) machine(ctx context.Context) (running, known bool, err error) {
	ms, err := k.Driver.List(ctx)
	if err != nil {
		return false, false, err
	}
	for _, m := range ms {
		if m.ID == k.Plan.Machine.ID {
			return m.Running, true, nil
		}
	}
	return false, false, nil
}

// reattach gives a machine that outlived its keeper a new boundary.
func (k *Keeper) reattach(ctx context.Context, es []journal.Entry) error {
	k.log().Info("attaching to a running machine")
	// It runs; the driver takes up again what it does while machines run.
	if err := k.Driver.Start(ctx, k.Plan.Machine.ID); err != nil {
		return err
	}
	if err := k.attach(ctx, plan.Runtime); err != nil {
		return err
	}
	if gone, err := k.gone(ctx); err != nil || gone {
		k.closeBoundary()
		return errors.Join(err, fmt.Errorf("machine of %s: %w", k.Plan.Name, kiterr.ErrNotRunning))
	}
	var since time.Time // of the boot
	for _, e := range es {
		if e.Phase == journal.Booting {
			since = e.Time
		}
	}
	k.born(since)
	if err := k.overtake(since); err != nil {
		k.log().Warn("looking for what the hooks did", "err", err)
	}
	k.mu.Lock()
	k.heir = true
	k.mu.Unlock()
	k.inherit()
	k.publish()
	k.ready()
	return nil
}

// outlived fails if what went wrong with startup is that the machine ended: then
// nothing is up that could be mended.
func (k *Keeper) outlived(ctx context.Context) error {
	k.mu.Lock()
	trouble := k.bootErr
	k.mu.Unlock()
	if trouble == nil {
		return nil
	}
	gone, err := k.gone(ctx)
	if gone {
		// Not as a fault of a hook, which would leave the sandbox up.
		return fmt.Errorf("the machine of %s ended while it was starting (%v): %w", k.Plan.Name, trouble, kiterr.ErrNotRunning)
	}
	return err
}

// gone reports whether the machine is ending, which it does for a moment after
// it was killed. One that does not answer is not gone.
func (k *Keeper) gone(ctx context.Context) (bool, error) {
	ping, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	if k.Guest.Alive(ping) == nil || ping.Err() != nil {
		return false, ctx.Err()
	}
	for ping.Err() == nil {
		if running, _, err := k.machine(ctx); err != nil || !running {
			return err == nil, err
		}
		select {
		case <-ping.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false, ctx.Err()
}

// attach makes the boundary and learns what the driver knows.
func (k *Keeper) attach(ctx context.Context, phase plan.Phase) error {
	ns, err := driver.NetNS(ctx, k.Driver, k.Plan.Machine.ID)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := k.enclose(ctx, ns, phase); err != nil {
		return err
	}
	ms, err := k.Driver.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range ms {
		if m.ID == k.Plan.Machine.ID {
			k.mu.Lock()
			k.pid = m.PID
			for _, u := range m.Unenforced {
				k.problems = append(k.problems, "limit does not hold: "+u)
			}
			k.mu.Unlock()
		}
	}
	return nil
}

// enclose makes the boundary and publishes it.
func (k *Keeper) enclose(ctx context.Context, ns *os.File, phase plan.Phase) error {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	b, err := k.Attach(ctx, ns, phase)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.boundary, k.phase = b, phase
	return nil
}

// reload puts the recorded rules into force. Before there is a boundary there is
// nothing to do: it will begin with them.
func (k *Keeper) reload(ctx context.Context) error {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	k.mu.Lock()
	b := k.boundary
	k.mu.Unlock()
	if b == nil {
		return nil
	}
	rules := k.Plan.Egress.Rules
	if k.Rules != nil {
		var err error
		if rules, err = k.Rules(); err != nil {
			return err
		}
	}
	return b.SetRules(ctx, rules)
}

// install runs the install hooks under the install grants and ends both.
func (k *Keeper) install(ctx context.Context) error {
	if err := k.journal().Append(journal.InstallBegin, ""); err != nil {
		return err
	}
	for _, f := range k.Plan.Files {
		if !f.In(plan.Install) {
			continue
		}
		if err := k.Guest.WriteFile(ctx, f, k.Plan.Launch.User); err != nil {
			return fmt.Errorf("kit %s: file %s: %w", f.Kit, f.Path, err)
		}
	}
	for _, h := range k.Plan.Hooks {
		if h.Phase != plan.Install {
			continue
		}
		if err := k.workDir(ctx); err != nil {
			return err
		}
		if err := k.runHook(ctx, h); err != nil {
			return err
		}
	}
	for _, f := range k.Plan.Files {
		if f.In(plan.Runtime) {
			continue
		}
		out := &tail{max: wireOutput}
		code, err := k.Guest.Run(ctx, Command{Args: []string{"/bin/rm", "-f", "--", f.Path}, User: "0", Dir: "/", Env: []string{"PATH=" + defaultPath}}, out)
		if err == nil && code != 0 {
			err = fmt.Errorf("rm ended with status %d: %s", code, out.bytes())
		}
		if err != nil {
			return fmt.Errorf("kit %s: file %s of the install phase: %w", f.Kit, f.Path, err)
		}
	}
	k.mu.Lock()
	b := k.boundary
	k.mu.Unlock()
	// Before anything of the runtime phase exists: no command was admitted
	// so far, and none is until the grants have ended.
	if err := b.SetPhase(ctx, plan.Runtime); err != nil {
		return fmt.Errorf("ending the install grants: %w", err)
	}
	k.mu.Lock()
	k.phase = plan.Runtime
	k.mu.Unlock()
	return k.journal().Append(journal.InstallDone, "")
}

// workDir makes the directory that hooks and commands run in, unless it is there. It
// does so once in a boot.
func (k *Keeper) workDir(ctx context.Context) error {
	l := k.Plan.Launch
	if l.Dir == "" || l.Dir == "/" || k.looked {
		return nil
	}
	k.looked = true
	if err := k.Guest.MakeDir(ctx, l.Dir, l.User); err != nil {
		return fmt.Errorf("working directory %s: %w", l.Dir, err)
	}
	return nil
}

// startup writes the files and runs the startup hooks. A hook that fails is a
// problem of the sandbox, not the end of it: whoever mends it must get in.
func (k *Keeper) startup(ctx context.Context) error {
	l := k.Plan.Launch
	if err := k.workDir(ctx); err != nil {
		k.problem(err)
	}
	for _, f := range k.Plan.Files {
		if !f.In(plan.Runtime) {
			continue
		}
		if err := k.Guest.WriteFile(ctx, f, l.User); err != nil {
			k.problem(fmt.Errorf("kit %s: file %s: %w", f.Kit, f.Path, err))
		}
	}
	k.publish()
	close(k.admitted)
	for _, h := range k.Plan.Hooks {
		if h.Phase != plan.Runtime {
			continue
		}
		if h.Background {
			go k.runBackground(h)
			continue
		}
		if err := k.runHook(ctx, h); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			k.problem(err)
		}
	}
	return nil
}

// problem records err; the first one is what the creator gets.
func (k *Keeper) problem(err error) {
	k.log().Warn("startup", "err", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problems = append(k.problems, err.Error())
	var h *sandbox.HookError
	if k.bootErr == nil || errors.As(err, &h) && !errors.As(k.bootErr, new(*sandbox.HookError)) {
		k.bootErr = err
	}
}

// ready publishes that the boot is over.
func (k *Keeper) ready() {
	k.mu.Lock()
	k.state = sandbox.Ready
	k.used = time.Now()
	k.mu.Unlock()
	select {
	case <-k.admitted:
	default:
		close(k.admitted)
	}
	close(k.booted)
}
