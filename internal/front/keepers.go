package front

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/internal/store/place"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A purpose is what a sandbox is opened for.
type purpose int

const (
	toRun purpose = iota
	toStop
	toStart
)

// keepers is the sandboxes of this home as far as their keepers answer for them.
type keepers struct {
	purpose purpose
	whole   func() error // becomes the whole program; returns only when that fails
}

// Open implements [sandbox.Runtime]. What a command is run in is reached here already,
// before it touches the terminal.
func (k keepers) Open(ctx context.Context, name string) (sandbox.Sandbox, error) {
	home, err := place.Dir(os.Getenv)
	if err != nil || sandbox.CheckName(name) != nil {
		return nil, k.whole()
	}
	// Whoever only looks must not make a home.
	dir := filepath.Join(home, state.Dir)
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		return nil, k.whole()
	}
	all, err := state.Open(dir)
	if err != nil {
		return nil, k.whole()
	}
	sb, err := all.Sandbox(name)
	if err != nil {
		return nil, k.whole()
	}
	b := &box{Sandbox: attend.Sandbox{State: sb}, home: home, whole: k.whole}
	if k.purpose != toRun {
		return b, nil
	}
	if b.launch, err = b.Launch(); err != nil {
		return nil, k.whole()
	}
	if b.session, err = b.Dial(ctx, true); err != nil {
		if ctx.Err() != nil || errors.As(err, new(*attend.HungError)) {
			return nil, err
		}
		return nil, k.whole()
	}
	return b, nil
}

// Plan, Create and List implement [sandbox.Runtime] by the whole program.
func (k keepers) Plan(context.Context, sandbox.CreateOptions) (*sandbox.Plan, error) {
	return nil, k.whole()
}

func (k keepers) Create(context.Context, sandbox.CreateOptions) (sandbox.Sandbox, error) {
	return nil, k.whole()
}

func (k keepers) List(context.Context) ([]sandbox.Info, error) { return nil, k.whole() }

// A box is one sandbox.
type box struct {
	attend.Sandbox
	home  string
	whole func() error // as that of keepers

	launch  plan.Launch // with session
	session *link.Session
}

func (b *box) Name() string { return b.State.Name }

// Run implements [sandbox.Sandbox].
func (b *box) Run(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
	if b.session == nil || c.Workload {
		return nil, b.whole()
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
	return b.whole()
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
		return b.whole()
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
func (b *box) Status(context.Context) (sandbox.Info, error) { return sandbox.Info{}, b.whole() }

func (b *box) Remove(context.Context) error { return b.whole() }

// Detach, Jobs, JobOutput and StopJob implement [sandbox.Detacher] by the whole
// program: a command can be detached by words that only look like an option's value.
func (b *box) Detach(context.Context, *sandbox.Cmd) (string, error) { return "", b.whole() }

func (b *box) Jobs(context.Context) ([]sandbox.Job, error) { return nil, b.whole() }

func (b *box) JobOutput(context.Context, string, bool, io.Writer) error { return b.whole() }

func (b *box) StopJob(context.Context, string) error { return b.whole() }
