package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kitbox-dev/kitbox/internal/compose"
	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/oversight"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// sweepGrace is how old a file of a killed command must be to be deleted.
const sweepGrace = time.Hour

// Plan implements [sandbox.Runtime].
func (e *Engine) Plan(ctx context.Context, o sandbox.CreateOptions) (*sandbox.Plan, error) {
	name, err := e.begin(&o)
	if err != nil {
		return nil, err
	}
	if _, err := e.leftover(ctx, name); err != nil {
		return nil, err
	}
	c, err := e.composer.Compose(ctx, o, name, state.NewID())
	if err != nil {
		return nil, err
	}
	if err := e.admit(c.Plan, o.Approve); err != nil {
		return nil, err
	}
	shown, err := oversight.Offer(c.Plan, e.globalRules())
	if err != nil {
		return nil, err
	}
	shown.BuildNetwork, shown.Warnings = o.BuildNetwork, compose.Warnings(c.Plan, o.Env)
	return shown, nil
}

// Create implements [sandbox.Runtime].
func (e *Engine) Create(ctx context.Context, o sandbox.CreateOptions) (sandbox.Sandbox, error) {
	b, err := e.create(ctx, o)
	if b == nil {
		return nil, err // not a nil *box in an interface
	}
	return b, err
}

func (e *Engine) create(ctx context.Context, o sandbox.CreateOptions) (*box, error) {
	name, err := e.begin(&o)
	if err != nil {
		return nil, err
	}
	if err := e.state.Sweep(sweepGrace); err != nil {
		return nil, err
	}
	e.reclaim(ctx)
	// Before a build that may take minutes: the name is taken for good only
	// after it.
	if err := e.vacate(ctx, name); err != nil {
		return nil, err
	}
	c, err := e.composer.Compose(ctx, o, name, state.NewID())
	if err != nil {
		return nil, err
	}
	if err := e.admit(c.Plan, o.Approve); err != nil {
		return nil, err
	}
	if o.Granted != nil {
		shown, err := oversight.Offer(c.Plan, e.globalRules())
		if err != nil {
			return nil, err
		}
		shown.BuildNetwork, shown.Warnings = o.BuildNetwork, compose.Warnings(c.Plan, o.Env)
		o.Granted(shown)
	}
	return e.make(ctx, o, c)
}

// begin names what o asks for and fails with what can be said before a Kit is
// looked at, which may take minutes.
func (e *Engine) begin(o *sandbox.CreateOptions) (name string, err error) {
	if err := compose.Pinned(o); err != nil {
		return "", err
	}
	name = compose.Name(*o)
	if err := state.ValidName(name); err != nil {
		return "", err
	}
	if err := driver.Known(e.c.Driver, o.Driver); err != nil {
		return "", err
	}
	if err := e.privilege(); err != nil {
		return "", err
	}
	return name, e.ready()
}

// admit fails with whatever would refuse p once it is to be made, so that it is
// refused when nothing is made yet, and when it is only shown.
func (e *Engine) admit(p *plan.Plan, approve bool) error {
	if err := oversight.Consent(p, e.globalRules(), approve); err != nil {
		return err
	}
	m := p.Machine
	if !e.c.Rootless && m.IDMap.IsIdentity() {
		m.IDMap = state.SomeIDs()
	}
	if err := driver.Fit(e.c.Driver, m); err != nil {
		return explainBoot(p, err)
	}
	return nil
}

// leftover fails when name is taken. What it returns, unless it is nil, is what an
// interrupted creation left under that name.
func (e *Engine) leftover(ctx context.Context, name string) (*box, error) {
	sb, err := e.state.Sandbox(name)
	if errors.Is(err, kiterr.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := &box{e: e, sb: sb}
	es, err := journal.Read(sb.Dir())
	if err != nil {
		return nil, err
	}
	if journal.Installed(es) && journal.Last(es) != journal.Removing || b.busy() {
		return nil, taken(name)
	}
	if _, err := b.keeper().Status(ctx); err == nil {
		return nil, taken(name) // a keeper goes on with it
	} else if !errors.Is(err, link.ErrNone) {
		return nil, err
	}
	return b, nil
}

func taken(name string) error {
	return fmt.Errorf("sandbox %s: %w: 'kitbox attach %s' runs it again; choose another name, or remove it with 'kitbox rm %s'", name, kiterr.ErrExists, name, name)
}

// vacate fails when name is taken, and frees it when what has it is the remains
// of an interrupted creation.
func (e *Engine) vacate(ctx context.Context, name string) error {
	b, err := e.leftover(ctx, name)
	if b == nil || err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "create")
	if errors.Is(err, kiterr.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.Unlock()
	if err := b.mend(ctx); err == nil {
		return taken(name) // a keeper goes on with it
	} else if !errors.Is(err, kiterr.ErrNotFound) {
		return err
	}
	return nil
}

// make turns a composition into a sandbox. Whatever it has made when it fails is
// removed; whatever it has made when it is killed is found by the journal.
func (e *Engine) make(ctx context.Context, o sandbox.CreateOptions, c *compose.Composition) (_ *box, err error) {
	p := c.Plan
	p.Machine.Volatile = o.Ephemeral
	sb, l, err := e.state.Create(p.Name, "create")
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	b := &box{e: e, sb: sb}
	up := false
	defer func() {
		if up {
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), keeperBound)
		defer cancel()
		if derr := b.discard(clean, false); derr != nil {
			err = errors.Join(err, fmt.Errorf("and what was made of it is not all removed; 'kitbox rm %s' tries again: %w", p.Name, derr))
		}
	}()
	j := journal.Writer{Dir: sb.Dir(), Volatile: o.Ephemeral}
	if err := j.Append(journal.Creating, p.ID); err != nil { // with it, what is kept by id can be given back
		return nil, err
	}
	// The keeper's program comes up while the rest is written; it does
	// nothing before it is told to.
	k, err := e.spawn(sb)
	if err != nil {
		return nil, err
	}
	defer func() {
		if !up {
			k.Release()
		}
	}()
	if !e.c.Rootless {
		if p.Machine.IDMap, err = e.state.AllocateIDs(ctx, p.ID, o.Ephemeral); err != nil {
			return nil, err
		}
	} else if !o.Ephemeral {
		if err := e.state.Sync(); err != nil {
			return nil, err
		}
	}
	if err := write(sb, c, o.Ephemeral); err != nil {
		return nil, err
	}
	if err := e.storage.Prepare(ctx, p); err != nil {
		return nil, err
	}
	if err := e.shared.Prepare(p); err != nil {
		return nil, err
	}
	if p.Clone != nil && o.Progress != nil {
		o.Progress(sandbox.Event{Step: "clone", Of: p.Clone.Source})
	}
	if err := e.files.Clones.Prepare(ctx, p); err != nil {
		return nil, err
	}
	if err := j.Append(journal.Planned, ""); err != nil {
		return nil, err
	}
	up, err = k.Boot(ctx, link.BootOptions{Create: true, Volatile: o.Ephemeral, Progress: o.Progress})
	if !up {
		return nil, explainBoot(p, err)
	}
	b.creator, b.volatile = k, o.Ephemeral
	return b, err
}

// explainBoot adds what a user can do about it.
func explainBoot(p *plan.Plan, err error) error {
	var h *sandbox.HookError
	if errors.As(err, &h) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("sandbox %s: %w", p.Name, err)
}

// write stores c in the sandbox's directory.
func write(sb *state.Sandbox, c *compose.Composition, volatile bool) error {
	for _, d := range []struct {
		file string
		v    any
	}{{planFile, c.Plan}, {lockFile, c.Lock}, {selectionFile, c.Selection}} {
		if err := writeDocument(sb, d.file, d.v, volatile); err != nil {
			return err
		}
	}
	return nil
}

// writeDocument replaces a document, durably unless the sandbox is volatile.
func writeDocument(sb *state.Sandbox, file string, v any, volatile bool) error {
	if !volatile {
		return sb.Write(file, v)
	}
	b, err := marshalDocument(v)
	if err != nil {
		return fmt.Errorf("%s: %w", sb.Path(file), err)
	}
	return durable.Explain(sb.Path(file), writeFile(sb.Path(file), b))
}
