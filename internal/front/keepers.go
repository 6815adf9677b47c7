package front

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/internal/store/place"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A purpose is what a sandbox is opened for.
type purpose int

const (
	toRun purpose = iota
	toStop
	toStart
)

// errUnable ends a command that only the whole program could have carried out, when
// it could not be started. Why has been said.
var errUnable = kiterr.ExitStatus(kiterr.StatusFailed)

// whole becomes the whole program; it returns only when that fails.
func whole() error {
	_ = become()
	return errUnable
}

// keepers is the sandboxes of this home as far as their keepers answer for them.
type keepers struct{ purpose purpose }

// Open implements [sandbox.Runtime]. What a command is run in is reached here already,
// before it touches the terminal.
func (k keepers) Open(ctx context.Context, name string) (sandbox.Sandbox, error) {
	home, err := place.Dir(os.Getenv)
	if err != nil || sandbox.CheckName(name) != nil {
		return nil, whole()
	}
	// Whoever only looks must not make a home.
	dir := filepath.Join(home, state.Dir)
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		return nil, whole()
	}
	all, err := state.Open(dir)
	if err != nil {
		return nil, whole()
	}
	sb, err := all.Sandbox(name)
	if err != nil {
		return nil, whole()
	}
	b := &box{Sandbox: attend.Sandbox{State: sb}, home: home}
	if k.purpose != toRun {
		return b, nil
	}
	if b.launch, err = b.Launch(); err != nil {
		return nil, whole()
	}
	if b.session, err = b.Keeper().Dial(ctx, true); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, whole()
	}
	return b, nil
}

// Plan, Create and List implement [sandbox.Runtime] by the whole program.
func (keepers) Plan(context.Context, sandbox.CreateOptions) (*sandbox.Plan, error) {
	return nil, whole()
}

func (keepers) Create(context.Context, sandbox.CreateOptions) (sandbox.Sandbox, error) {
	return nil, whole()
}

func (keepers) List(context.Context) ([]sandbox.Info, error) { return nil, whole() }

// A box is one sandbox.
type box struct {
	attend.Sandbox
	home string

	launch  plan.Launch // with session
	session *link.Session
}

func (b *box) Name() string { return b.State.Name }

// Run implements [sandbox.Sandbox].
func (b *box) Run(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
	if b.session == nil || c.Workload {
		return nil, whole()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer b.session.Close()
	return b.Sandbox.Run(ctx, b.session, b.launch, c, nil)
}

// Stop implements [sandbox.Sandbox].
func (b *box) Stop(ctx context.Context, o sandbox.StopOptions) error {
	l, err := b.State.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	defer l.Unlock()
	err = b.Sandbox.Stop(ctx, link.StopRequest{Grace: attend.Grace(o), IfIdle: o.IfIdle})
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Nobody keeps it, or one who does not answer.
	l.Unlock()
	return whole()
}

// Start implements [sandbox.Sandbox].
func (b *box) Start(ctx context.Context) error {
	l, err := b.State.Lock(ctx, "start")
	if err != nil {
		return err
	}
	defer l.Unlock()
	engine := programs.Find(programs.Dirs(), Engine)
	es, err := journal.Read(b.State.Dir())
	if err != nil || engine == "" || !journal.Whole(es) || b.beingReplaced() {
		l.Unlock()
		return whole()
	}
	env := append(link.Environment(os.Environ()), "KITBOX_HOME="+b.home)
	return b.Sandbox.Start(ctx, func() (*link.Process, error) {
		return link.Spawn(engine, b.State.Dir(), b.State.Name, env, link.Held{})
	}, nil)
}

// beingReplaced reports whether a recreation has begun and not ended.
func (b *box) beingReplaced() bool {
	_, err := os.Stat(b.State.Path(attend.NextFile))
	return !errors.Is(err, os.ErrNotExist)
}

// Status and Remove implement [sandbox.Sandbox] by the whole program.
func (b *box) Status(context.Context) (sandbox.Info, error) { return sandbox.Info{}, whole() }

func (b *box) Remove(context.Context) error { return whole() }
