package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/job"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

var _ sandbox.Detacher = (*box)(nil)

func (b *box) jobs() job.Dir { return job.Dir(b.sb.Path("jobs")) }

// Detach implements [sandbox.Detacher].
func (b *box) Detach(ctx context.Context, c *sandbox.Cmd) (string, error) {
	if c.Terminal != nil || c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
		return "", fmt.Errorf("a job has neither a terminal nor streams of its caller's: %w", kiterr.ErrUnsupported)
	}
	// Whatever has to be mended first is mended here, where somebody waits.
	s, err := b.reach(ctx, true)
	if err != nil {
		return "", err
	}
	defer s.Close()
	p, err := b.plan()
	if err != nil {
		return "", err
	}
	args := c.Args
	if c.Workload {
		args = p.Launch.Command(c.Args, false)
	}
	id, err := job.Spawn(ctx, b.jobs(), job.Spec{Sandbox: b.sb.Name, Args: args, Dir: c.Dir, User: c.User, Env: c.Env}, b.e.c.Env)
	return id, err
}

// RunJob runs the command of a job, in the process that holds it.
func (e *Engine) RunJob(ctx context.Context, s job.Spec, out io.Writer, started func()) (*sandbox.Result, error) {
	b, err := e.openName(s.Sandbox)
	if err != nil {
		return nil, err
	}
	// One pipe for both, which the command is given itself: what it prints
	// comes in the order it was printed.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, r)
	}()
	res, err := b.run(ctx, &sandbox.Cmd{Args: s.Args, Dir: s.Dir, User: s.User, Env: s.Env, Stdout: w, Stderr: w}, started)
	w.Close()
	select {
	case <-copied:
	case <-time.After(drainTime): // a child that lives on may hold the pipe
	}
	return res, err
}

// drainTime is how long the last output of a job is waited for.
const drainTime = 2 * time.Second

// Jobs implements [sandbox.Detacher].
func (b *box) Jobs(context.Context) ([]sandbox.Job, error) {
	rs, err := b.jobs().List()
	if err != nil {
		return nil, err
	}
	out := []sandbox.Job{}
	for _, r := range rs {
		out = append(out, shownJob(r))
	}
	return out, nil
}

func shownJob(r job.Record) sandbox.Job {
	j := sandbox.Job{ID: r.ID, Args: r.Args, Started: r.Started, Running: r.Running, Signal: r.Signal, Error: r.Error}
	if !r.Running {
		j.Ended = r.Ended
		if !r.Ended.IsZero() {
			j.ExitCode = &r.ExitCode
		}
	}
	return j
}

// JobOutput implements [sandbox.Detacher].
func (b *box) JobOutput(ctx context.Context, id string, follow bool, w io.Writer) error {
	d := b.jobs()
	last := !follow
	return d.Output(id, w, func() bool {
		if last || ctx.Err() != nil {
			return false
		}
		if r, err := d.Get(id); err != nil || !r.Running {
			last = true // what it wrote at last is still to be read
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
		return true
	})
}

// StopJob implements [sandbox.Detacher].
func (b *box) StopJob(ctx context.Context, id string) error {
	d := b.jobs()
	if err := d.Stop(id); err != nil {
		return err
	}
	for {
		r, err := d.Get(id)
		if err != nil || !r.Running {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
