package keeper

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// keptOutput is how much of a hook's output is kept: what a build or a package
// manager says last is what explains its failure.
const keptOutput = 64 << 10

// wireOutput is how much of it travels with an error.
const wireOutput = 4 << 10

// runHook runs h to its end and logs it. Its error is a [sandbox.HookError].
func (k *Keeper) runHook(ctx context.Context, h plan.Hook) error {
	list := "install"
	if h.Phase == plan.Runtime {
		list = "startup"
	}
	detail := fmt.Sprintf("%d of %s", h.Index, h.Kit)
	if h.Description != "" {
		detail += ": " + h.Description
	}
	k.event(list+" hook", detail)

	run := sandbox.HookRun{Time: time.Now().UTC(), Kit: h.Kit, Phase: string(h.Phase), Index: h.Index, Background: h.Background}
	out := &tail{max: keptOutput}
	code, err := k.hookCommand(ctx, h, out)
	run.ExitCode, run.Millis = code, time.Since(run.Time).Milliseconds()
	run.Output, run.Truncated = strings.ToValidUTF8(string(out.bytes()), "�"), out.dropped
	if err != nil {
		run.Error = err.Error()
	}
	return k.logHook(ctx, h, run)
}

// logHook logs how h ended. Its error is a [sandbox.HookError], unless it ended well.
func (k *Keeper) logHook(ctx context.Context, h plan.Hook, run sandbox.HookRun) error {
	if lerr := appendHookRun(k.Dir, run); lerr != nil {
		k.log().Error("hook log", "err", lerr)
	}
	herr := k.failure(run)
	if herr == nil {
		return nil
	}
	if h.Phase == plan.Install && k.Refused != nil {
		// An install hook that fails most often wants a host that its
		// Kit did not ask for, and the log goes with the sandbox.
		herr.Refused = k.Refused(ctx)
	}
	return herr
}

// failure is the error of a run as it is logged; nil if it ended well.
func (k *Keeper) failure(run sandbox.HookRun) *sandbox.HookError {
	if run.Error == "" && run.ExitCode == 0 {
		return nil
	}
	herr := &sandbox.HookError{Sandbox: k.Plan.Name, Kit: run.Kit, Phase: run.Phase, Index: run.Index, ExitCode: run.ExitCode,
		Output: run.Output, Why: run.Error}
	if len(herr.Output) > wireOutput {
		herr.Output = strings.ToValidUTF8(herr.Output[len(herr.Output)-wireOutput:], "")
	}
	return herr
}

func (k *Keeper) hookCommand(ctx context.Context, h plan.Hook, out *tail) (int, error) {
	l := k.Plan.Launch
	l.Env = k.Plan.Environ(h.Phase)
	// A startup hook starts services or is one. They belong to the sandbox and
	// must not end, or find their output gone, because its keeper was killed.
	c := Command{Args: h.Argv, Stay: h.Phase == plan.Runtime, User: HookUser(h, l), Dir: l.Dir, Env: HookEnv(h, l, k.Plan.Machine.Hostname)}
	if h.Background {
		c.Key = hookKey(h)
	}
	return k.Guest.Run(ctx, c, out)
}

// hookKey names a background hook to the guest, which a Kit's name may be too long for.
func hookKey(h plan.Hook) string {
	sum := sha256.Sum256([]byte(h.Kit))
	return fmt.Sprintf("hook %d of %x", h.Index, sum[:16])
}

// overtake makes the hooks of the boot at since, whose keeper was killed, this one's:
// those that failed are problems still, and the ends of background hooks are waited
// for and logged as that one would have. What they printed since is not known.
func (k *Keeper) overtake(since time.Time) error {
	runs, err := HookRuns(k.Dir)
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, func(r sandbox.HookRun) bool { return r.Phase != string(plan.Runtime) || r.Time.Before(since) })
	for _, r := range runs {
		switch err := k.failure(r); {
		case err == nil:
		case r.Background:
			k.backgroundProblem(err)
		default:
			k.problem(err)
		}
	}
	for _, h := range k.Plan.Hooks {
		if h.Phase != plan.Runtime || !h.Background || slices.ContainsFunc(runs, func(r sandbox.HookRun) bool {
			return r.Background && r.Kit == h.Kit && r.Index == h.Index
		}) {
			continue
		}
		go k.overtakeHook(h, since)
	}
	return nil
}

func (k *Keeper) overtakeHook(h plan.Hook, since time.Time) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-k.ended; cancel() }()
	code, err := k.Guest.Await(ctx, hookKey(h))
	if ctx.Err() != nil {
		return // with the machine
	}
	if errors.Is(err, kiterr.ErrNotFound) {
		// Its keeper was killed before it came to that. It is of this boot, and
		// nobody else will begin it.
		k.runBackground(h)
		return
	}
	run := sandbox.HookRun{Time: since, Kit: h.Kit, Phase: string(h.Phase), Index: h.Index, Background: true,
		ExitCode: code, Millis: time.Since(since).Milliseconds(), Truncated: true}
	if err != nil {
		run.Error = err.Error()
	}
	if err := k.logHook(ctx, h, run); err != nil {
		k.backgroundProblem(err)
	}
}

// runBackground runs a hook that the boot does not wait for. It ends with the
// machine, since then its connection ends.
func (k *Keeper) runBackground(h plan.Hook) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-k.ended; cancel() }()
	if err := k.runHook(ctx, h); err != nil && ctx.Err() == nil {
		k.backgroundProblem(err)
	}
}

func (k *Keeper) backgroundProblem(err error) {
	k.log().Warn("background hook", "err", err)
	k.mu.Lock()
	k.problems = append(k.problems, err.Error())
	k.mu.Unlock()
}

// HookUser is who a hook runs as: whoever it names, else root while installing
// and the image's user afterwards.
func HookUser(h plan.Hook, l plan.Launch) string {
	switch {
	case h.User != "":
		return h.User
	case h.Phase == plan.Install:
		return "0"
	}
	return fmt.Sprintf("%d:%d", l.User.UID, l.User.GID)
}

// defaultPath is the PATH of an image that states none; containers have agreed
// on it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// HookEnv is the environment of a hook: the platform baseline and the names
// that it declares, with values of the container and of nothing else. Not even
// the variables that lead programs to the boundary's certificates are added:
// what a hook sees is what its Kit says (lifecycle@1). HOME is left to the guest,
// which knows the user that the hook runs as; the rest of the baseline is what a
// shell sets by itself.
func HookEnv(h plan.Hook, l plan.Launch, hostname string) []string {
	have := map[string]string{}
	for _, kv := range l.Env {
		name, value, _ := strings.Cut(kv, "=")
		have[name] = value
	}
	env := []string{"PATH=" + defaultPath, "HOSTNAME=" + hostname, "TERM=dumb"}
	if p := have["PATH"]; p != "" {
		env[0] = "PATH=" + p
	}
	if t := have["TERM"]; t != "" {
		env[2] = "TERM=" + t
	}
	set := map[string]bool{"PATH": true, "HOSTNAME": true, "TERM": true}
	for _, name := range h.Env {
		if v, ok := have[name]; ok && !set[name] {
			set[name] = true
			env = append(env, name+"="+v)
		}
	}
	return env
}

// A tail keeps the last max bytes that are written to it.
type tail struct {
	max     int
	b       []byte
	dropped bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - t.max; over > 0 {
		t.dropped = true
		// Moving on every write would cost as much as the output is long.
		if over > t.max {
			t.b = append(t.b[:0], t.b[over:]...)
		}
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	if over := len(t.b) - t.max; over > 0 {
		return t.b[over:]
	}
	return t.b
}
