package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Run implements [sandbox.Sandbox].
func (b *box) Run(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
	return b.run(ctx, c, nil)
}

// run is Run; started is called once the command runs, unless it is nil.
func (b *box) run(ctx context.Context, c *sandbox.Cmd, started func()) (*sandbox.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	launch, err := b.launch()
	if err != nil {
		if err := b.broken(ctx); err != nil {
			return nil, err
		}
		return nil, err
	}
	// The workload waits for startup hooks however long they take; a command
	// comes in early rather than be shut out by a hook that hangs.
	early, ready := unlessAsked(ctx, c.Signals)
	s, err := b.reach(early, !c.Workload)
	if err == nil {
		defer s.Close()
	}
	if err := errors.Join(err, ready()); err != nil {
		return nil, err
	}
	if !b.volatile {
		b.release() // from here on sessions keep it
	}
	dial := s.Dialer(b.keeper())
	r, err := request(ctx, dial, launch, c)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", b.sb.Name, err)
	}
	io := client.Stdio{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
	begun := false
	io.Started = func(int) {
		begun = true
		if started != nil {
			started()
		}
	}
	if c.Signals != nil {
		signals := make(chan syscall.Signal)
		done := make(chan struct{})
		defer close(done)
		go forward(c.Signals, signals, done)
		io.Signals = signals
	}
	if c.Terminal != nil {
		io.Stderr = nil
		if c.Terminal.Resize != nil {
			sizes := make(chan protocol.Size)
			done := make(chan struct{})
			defer close(done)
			go resize(c.Terminal.Resize, sizes, done)
			io.Resize = sizes
		}
	}
	since := time.Now()
	exit, err := (&client.Client{Dial: dial}).Exec(ctx, r, io)
	if err != nil && begun && ctx.Err() == nil {
		return nil, fmt.Errorf("sandbox %s: %w: %w", b.sb.Name, err, kiterr.ErrLost)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", b.sb.Name, err)
	}
	res := &sandbox.Result{ExitCode: exit.Code, Duration: time.Since(since)}
	if exit.Signal != 0 {
		res.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	return res, nil
}

// launch is what of the plan a command needs: most of a plan is about making the
// sandbox, and reading all of it takes longer than starting a command.
func (b *box) launch() (plan.Launch, error) {
	var p struct {
		Version     int               `json:"version"`
		Launch      plan.Launch       `json:"launch"`
		Credentials []plan.Credential `json:"credentials"`
	}
	err := b.sb.Part(planFile, plan.Version, &p, &p.Version)
	whole := plan.Plan{Launch: p.Launch, Credentials: p.Credentials}
	whole.Launch.Env = whole.Environ(plan.Runtime) // no command comes in before
	return whole.Launch, err
}

// broken explains a sandbox without a plan, and cleans it up unless somebody is
// just making it.
func (b *box) broken(ctx context.Context) error {
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "exec")
	if err != nil {
		return err
	}
	defer l.Unlock()
	return b.mend(ctx)
}

// unlessAsked returns a context that the first signal ends which asks for an end:
// there is no command yet that it could go on to. It does so until ready is called,
// which returns the error of the context.
func unlessAsked(ctx context.Context, signals <-chan int) (inner context.Context, ready func() error) {
	inner, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case n, ok := <-signals: // nil: never
				if !ok {
					return
				}
				switch syscall.Signal(n) {
				case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP:
					cancel()
				}
			}
		}
	}()
	return inner, func() error {
		close(done)
		<-ended
		err := inner.Err()
		cancel()
		return err
	}
}

// forward passes signals on until done.
func forward(from <-chan int, to chan<- syscall.Signal, done <-chan struct{}) {
	for {
		select {
		case n, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- syscall.Signal(n):
			case <-done:
				return
			}
		case <-done:
			return
		}
	}
}

func resize(from <-chan sandbox.WindowSize, to chan<- protocol.Size, done <-chan struct{}) {
	for {
		select {
		case s, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- protocol.Size{Rows: s.Rows, Cols: s.Cols}:
			case <-done:
				return
			}
		case <-done:
			return
		}
	}
}

// request turns c into what the guest is asked for.
func request(ctx context.Context, dial link.Dial, l plan.Launch, c *sandbox.Cmd) (client.ExecRequest, error) {
	args := c.Args
	if c.Workload {
		args = l.Command(c.Args, c.Terminal != nil)
	}
	if len(args) == 0 {
		return client.ExecRequest{}, fmt.Errorf("no command to run: %w", kiterr.ErrCannotExec)
	}
	id := l.User
	if c.User != "" {
		var err error
		if id, err = keeper.LookUpUser(ctx, dial, c.User); err != nil {
			return client.ExecRequest{}, fmt.Errorf("%v: %w", err, kiterr.ErrCannotExec) // not a refusal, whatever err is
		}
	}
	r := client.ExecRequest{Argv: args, Dir: c.Dir, UID: id.UID, GID: id.GID, GIDs: id.Gids}
	if r.Dir == "" {
		r.Dir = l.Dir
	} else if !strings.HasPrefix(r.Dir, "/") {
		r.Dir = strings.TrimSuffix(l.Dir, "/") + "/" + r.Dir
	}
	r.Env = commandEnv(l, id, c.Env)
	if t := c.Terminal; t != nil {
		r.TTY, r.Size = true, protocol.Size{Rows: t.Size.Rows, Cols: t.Size.Cols}
		r.Env = setDefault(r.Env, "TERM", cmp.Or(t.Type, "xterm"))
	}
	return r, nil
}

// commandEnv is the environment of a command: the container's, with the home of
// another user, and over both what the caller sets, except for what belongs to
// the host.
func commandEnv(l plan.Launch, id plan.Identity, over []string) []string {
	env := append([]string(nil), l.Env...)
	if id.UID != l.User.UID {
		home := id.Home
		if home == "" {
			home = "/"
		}
		for i, kv := range env {
			// One that the image or the operator chose on purpose stays.
			if kv == "HOME="+l.User.Home {
				env[i] = "HOME=" + home
			}
		}
	}
	for _, kv := range over {
		name, _, _ := strings.Cut(kv, "=")
		owned := false
		for _, o := range l.Owned {
			owned = owned || o == name
		}
		if !owned {
			env = set(env, name, kv)
		}
	}
	return env
}

func set(env []string, name, kv string) []string {
	for i, have := range env {
		if strings.HasPrefix(have, name+"=") {
			env[i] = kv
			return env
		}
	}
	return append(env, kv)
}

func setDefault(env []string, name, value string) []string {
	for _, have := range env {
		if strings.HasPrefix(have, name+"=") {
			return env
		}
	}
	return append(env, name+"="+value)
}
