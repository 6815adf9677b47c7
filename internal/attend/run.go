package attend

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Launch is what of the plan a command needs: most of a plan is about making the
// sandbox, and reading all of it takes longer than starting a command.
func (s Sandbox) Launch() (plan.Launch, error) {
	var p struct {
		Version     int               `json:"version"`
		Launch      plan.Launch       `json:"launch"`
		Credentials []plan.Credential `json:"credentials"`
	}
	err := s.State.Part(PlanFile, plan.Version, &p, &p.Version)
	whole := plan.Plan{Launch: p.Launch, Credentials: p.Credentials}
	whole.Launch.Env = whole.Environ(plan.Runtime) // no command comes in before
	return whole.Launch, err
}

// Run runs c, of a sandbox with that launch, in a session with its guest. started is
// called once the command runs, unless it is nil.
func (s Sandbox) Run(ctx context.Context, session *link.Session, launch plan.Launch, c *sandbox.Cmd, started func()) (*sandbox.Result, error) {
	dial := session.Dialer(s.Keeper())
	r, err := request(ctx, dial, launch, c)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", s.State.Name, err)
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
	defer s.giveBack(ctx, c)
	exit, err := (&client.Client{Dial: dial}).Exec(ctx, r, io)
	if err != nil && begun && ctx.Err() == nil {
		return nil, fmt.Errorf("sandbox %s: %w: %w", s.State.Name, err, kiterr.ErrLost)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", s.State.Name, err)
	}
	res := &sandbox.Result{ExitCode: exit.Code, Duration: time.Since(since)}
	if exit.Signal != 0 {
		res.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	return res, nil
}

// giveBack has the keeper give to the owners of mounted directories what c may have made
// there as another than the image's user, whose files are theirs already. What else makes
// some, such as a service, is seen to when the sandbox stops. That is not worth the
// command's result, so that what fails is left for then.
func (s Sandbox) giveBack(ctx context.Context, c *sandbox.Cmd) {
	if c.User == "" {
		return
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackBound)
	defer cancel()
	_ = s.Keeper().GiveBack(bound)
}

// giveBackBound is how long that may take, for which large directories have to be gone
// through.
const giveBackBound = 30 * time.Second

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
		if id, err = account.Running(ctx, &client.Client{Dial: dial}, c.User); err != nil {
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
