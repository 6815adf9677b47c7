package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// world is a host in memory: a driver, a guest and a boundary that write down
// what was asked of them, in one order.
type world struct {
	mu    sync.Mutex
	did   []string
	alive map[string]bool
	ended map[string]chan struct{}

	run      func(ctx context.Context, c Command, out io.Writer) (int, error)
	guests   func(ctx context.Context, told func(n int)) error // nil: no sessions
	await    func(ctx context.Context, key string) (int, error)
	stopping func()                            // nil: a machine stops at once
	prepare  func()                            // nil: a host that prepares nothing
	rules    func() ([]plan.EgressRule, error) // of the keeper
}

func newWorld() *world { return &world{alive: map[string]bool{}, ended: map[string]chan struct{}{}} }

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did = append(w.did, fmt.Sprintf(format, args...))
}

func (w *world) history() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.did)
}

func (w *world) Create(_ context.Context, m plan.Machine) error {
	w.note("create")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive[m.ID] = false
	return nil
}

func (w *world) Start(_ context.Context, id string) error {
	w.note("start")
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.alive[id] {
		w.alive[id] = true
		w.ended[id] = make(chan struct{})
	}
	return nil
}

func (w *world) Dial(_ context.Context, id string) (net.Conn, error) {
	w.mu.Lock()
	alive := w.alive[id]
	w.mu.Unlock()
	if !alive {
		return nil, kiterr.ErrNotRunning
	}
	a, b, err := unixPair()
	if err != nil {
		return nil, err
	}
	go func() { io.Copy(b, b); b.Close() }()
	return a, nil
}

func (w *world) Stop(_ context.Context, id string, grace time.Duration) error {
	w.note("stop %v", grace)
	if w.stopping != nil {
		w.stopping()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive[id] {
		w.alive[id] = false
		close(w.ended[id])
	}
	return nil
}

func (w *world) Remove(ctx context.Context, id string) error {
	w.Stop(ctx, id, 0)
	w.note("remove")
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.alive, id)
	return nil
}

func (w *world) List(context.Context) ([]driver.Machine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ms []driver.Machine
	for id, alive := range w.alive {
		m := driver.Machine{ID: id, Running: alive}
		if alive {
			m.PID = 4711
		}
		ms = append(ms, m)
	}
	return ms, nil
}

func (w *world) NetNS(context.Context, string) (*os.File, error) { return os.Open(os.DevNull) }

func (w *world) Wait(ctx context.Context, id string) error {
	w.mu.Lock()
	ch := w.ended[id]
	w.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *world) Run(ctx context.Context, c Command, out io.Writer) (int, error) {
	w.note("hook %s as %s", strings.Join(c.Args, " "), c.User)
	if w.run != nil {
		return w.run(ctx, c, out)
	}
	return 0, nil
}

func (w *world) Await(ctx context.Context, key string) (int, error) {
	w.note("await %s", key)
	if w.await != nil {
		return w.await(ctx, key)
	}
	return 0, kiterr.ErrNotFound
}

func (w *world) Sessions(ctx context.Context, told func(n int)) error {
	if w.guests != nil {
		return w.guests(ctx, told)
	}
	told(0)
	return nil
}

func (w *world) MakeDir(context.Context, string, plan.Identity) error { return nil }

func (w *world) Alive(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.alive["m"] {
		return kiterr.ErrNotRunning
	}
	return nil
}

func (w *world) WriteFile(_ context.Context, f plan.File, id plan.Identity) error {
	w.note("file %s for %d", f.Path, id.UID)
	return nil
}

type fence struct{ w *world }

func (f fence) SetPhase(_ context.Context, p plan.Phase) error { f.w.note("phase %s", p); return nil }
func (f fence) SetRules(_ context.Context, rs []plan.EgressRule) error {
	for _, r := range rs {
		f.w.note("rule %s", r.Pattern)
	}
	return nil
}
func (f fence) Close() error { f.w.note("boundary closed"); return nil }

func TestReloadPutsTheRecordedRulesIntoForce(t *testing.T) {
	w := newWorld()
	var damaged atomic.Bool
	w.rules = func() ([]plan.EgressRule, error) {
		if damaged.Load() {
			return nil, errors.New("damaged book")
		}
		return []plan.EgressRule{{Phase: plan.Runtime, Pattern: "late.example"}}, nil
	}
	x := w.live(t, t.TempDir(), testPlan(), false, nil)
	<-x.k.Booted()
	if err := x.client.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(w.history(), "rule late.example") {
		t.Error("the boundary was not told")
	}
	damaged.Store(true)
	if err := x.client.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged book") {
		t.Errorf("reload = %v", err)
	}
	if err := (link.Client{Dir: t.TempDir()}).Reload(t.Context()); !errors.Is(err, link.ErrNone) {
		t.Errorf("without a keeper: %v", err)
	}
}

func unixPair() (a, b *net.UnixConn, err error) {
	dir, err := os.MkdirTemp("", "pair")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "s")})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		return nil, nil, err
	}
	b, err = l.AcceptUnix()
	return a, b, err
}

func testPlan() *plan.Plan {
	return &plan.Plan{Version: plan.Version, Name: "t", ID: "i",
		Machine: plan.Machine{ID: "m", Hostname: "t"},
		Hooks: []plan.Hook{
			{Kit: "a", Index: 0, Phase: plan.Install, Argv: []string{"in", "a"}},
			{Kit: "b", Index: 0, Phase: plan.Runtime, Argv: []string{"up", "b"}},
			{Kit: "b", Index: 0, Phase: plan.Install, Argv: []string{"in", "b"}, User: "7"},
		},
		Files:  []plan.File{{Kit: "a", Path: "/f"}},
		Launch: plan.Launch{Env: []string{"A=1", "PATH=/p"}, Dir: "/w", User: plan.Identity{UID: 1000, GID: 1001, Home: "/home/agent"}},
	}
}

// life is one keeper in this process and the means to reach it.
type life struct {
	t      *testing.T
	k      *Keeper
	client link.Client
	done   chan error
}

func (w *world) live(t *testing.T, dir string, p *plan.Plan, volatile bool, creator *net.UnixConn) *life {
	t.Helper()
	l, err := link.Bind(dir)
	if err != nil {
		t.Fatal(err)
	}
	k := New(p)
	k.Dir, k.Driver, k.Guest, k.Volatile = dir, w, w, volatile
	k.Rules = w.rules
	k.Prepare = w.prepare
	k.Attach = func(_ context.Context, _ *os.File, p plan.Phase) (Boundary, error) {
		w.note("attach in %s", p)
		return fence{w}, nil
	}
	k.Remove = func(_ context.Context, keep bool) error { w.note("forget, keep %v", keep); return os.RemoveAll(dir) }
	x := &life{t: t, k: k, client: link.Client{Dir: dir}, done: make(chan error, 1)}
	go func() { x.done <- k.Serve(l, creator) }()
	t.Cleanup(func() {
		k.Shutdown(0)
		select {
		case <-x.done:
		case <-time.After(20 * time.Second):
			t.Error("the keeper does not end")
		}
	})
	return x
}

func (x *life) end() error {
	x.t.Helper()
	select {
	case err := <-x.done:
		x.done <- err
		return err
	case <-time.After(20 * time.Second):
		x.t.Fatal("the keeper does not end")
		return nil
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantHistory(t *testing.T, w *world, want ...string) {
	t.Helper()
	if got := w.history(); !slices.Equal(got, want) {
		t.Errorf("history:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func phases(t *testing.T, dir string) string {
	t.Helper()
	es, err := journal.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var ps []string
	for _, e := range es {
		ps = append(ps, string(e.Phase))
	}
	return strings.Join(ps, " ")
}

var firstBoot = []string{"create", "start", "attach in install", "hook in a as 0", "hook in b as 7", "phase runtime",
	"file /f for 1000", "hook up b as 1000:1001"}

// A startup hook that fails leaves the sandbox up; one that fails because the
// machine ended does not.
func TestAMachineThatEndsWhileStartingIsNotUp(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	w.run = func(ctx context.Context, c Command, _ io.Writer) (int, error) {
		if c.Args[0] == "up" {
			w.Stop(ctx, "m", 0)
			return 0, kiterr.ErrNotRunning
		}
		return 0, nil
	}
	x := w.live(t, dir, testPlan(), false, nil)
	err := x.end()
	if err == nil || !strings.Contains(err.Error(), "ended while it was starting") || !errors.Is(err, kiterr.ErrNotRunning) || errors.As(err, new(*sandbox.HookError)) {
		t.Errorf("boot = %v", err)
	}
	if got := phases(t, dir); !strings.HasSuffix(got, "stopping stopped") || strings.Contains(got, "running") {
		t.Errorf("journal: %s", got)
	}
}

func TestTheFirstBootInstallsUnderItsOwnGrantsAndTheNextDoesNot(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	x := w.live(t, dir, testPlan(), false, nil)
	var events []string
	if err := x.client.Watch(bounded(t), func(e sandbox.Event) { events = append(events, e.Step) }); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, w, firstBoot...)
	if got := phases(t, dir); got != "booting install-begin install-done running" {
		t.Errorf("journal: %s", got)
	}
	s, err := x.client.Status(bounded(t))
	if err != nil || s.State != sandbox.Ready || s.Phase != "runtime" || s.PID != 4711 || s.Keeper != os.Getpid() {
		t.Errorf("status %+v, %v", s, err)
	}
	if _, err := x.client.Stop(bounded(t), link.StopRequest{Grace: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := x.end(); err != nil {
		t.Error(err)
	}
	if _, err := x.client.Status(bounded(t)); !errors.Is(err, link.ErrNone) {
		t.Errorf("status after the end: %v", err)
	}

	y := w.live(t, dir, testPlan(), false, nil)
	if err := y.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, w, append(slices.Clone(firstBoot), "stop 3s", "boundary closed",
		"start", "attach in runtime", "file /f for 1000", "hook up b as 1000:1001")...)
}

func TestABoundaryIsPreparedWhileItsMachineComesUp(t *testing.T) {
	w := newWorld()
	w.prepare = func() { w.note("prepare") }
	x := w.live(t, t.TempDir(), testPlan(), false, nil)
	if err := x.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	if did := w.history(); len(did) < 2 || did[0] != "prepare" || did[1] != "create" {
		t.Errorf("it began with %q", did)
	}
}

func TestAFailedInstallHookEndsTheCreationAndLeavesNothing(t *testing.T) {
	w, dir := newWorld(), filepath.Join(t.TempDir(), "t")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	w.run = func(_ context.Context, c Command, out io.Writer) (int, error) {
		<-hold
		fmt.Fprintln(out, "first")
		fmt.Fprintln(out, "no such host: packages.example")
		return 3, nil
	}
	x := w.live(t, dir, testPlan(), false, nil)
	got := make(chan error, 1)
	var up bool
	go func() {
		conn, err := link.Connect(dir)
		if err != nil {
			got <- err
			return
		}
		defer conn.Close()
		if err := link.Send(conn, link.Request{Op: link.OpWatch}, nil); err != nil {
			got <- err
			return
		}
		close(hold)
		for {
			var a link.Reply
			if _, err := link.Receive(conn, &a, 128<<10); err != nil {
				got <- err
				return
			}
			if a.Event == nil {
				up = a.Status != nil && a.Status.State != sandbox.Stopped
				got <- a.Error.Err()
				return
			}
		}
	}()
	var hook *sandbox.HookError
	if err := <-got; !errors.As(err, &hook) || hook.Kit != "a" || hook.Index != 0 || hook.ExitCode != 3 || hook.Phase != "install" ||
		!strings.Contains(hook.Error(), "no such host: packages.example") || up {
		t.Errorf("watch: %v (%+v), up %v", err, hook, up)
	}
	if err := x.end(); err == nil {
		t.Error("serve ended without an error")
	}
	wantHistory(t, w, "create", "start", "attach in install", "hook in a as 0", "stop 0s", "remove", "boundary closed", "forget, keep false")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory is left: %v", err)
	}
}

func TestAFailedStartupHookIsReportedAndTheSandboxRuns(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	p := testPlan()
	p.Hooks = append(p.Hooks, plan.Hook{Kit: "c", Index: 4, Phase: plan.Runtime, Argv: []string{"after"}})
	w.run = func(_ context.Context, c Command, out io.Writer) (int, error) {
		if c.Args[0] == "up" {
			io.WriteString(out, strings.Repeat("x", 2*keptOutput)+"the end")
			return 32, nil
		}
		return 0, nil
	}
	x := w.live(t, dir, p, false, nil)
	err := x.client.Watch(bounded(t), nil)
	var hook *sandbox.HookError
	if !errors.As(err, &hook) || hook.Phase != "runtime" || hook.Kit != "b" || hook.ExitCode != 32 {
		t.Fatalf("watch: %v", err)
	}
	if h := w.history(); h[len(h)-1] != "hook after as 1000:1001" {
		t.Errorf("the hooks of other Kits did not run: %v", h)
	}
	s, err := x.client.Status(bounded(t))
	if err != nil || s.State != sandbox.Ready || len(s.Problems) != 1 {
		t.Errorf("status %+v, %v", s, err)
	}
	session, err := x.client.Dial(bounded(t), true)
	if err != nil {
		t.Fatalf("exec is not possible any more: %v", err)
	}
	session.Close()
	runs, err := HookRuns(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, run := range runs {
		if run.Kit == "b" && run.Phase == "runtime" {
			found = true
			if run.ExitCode != 32 || !run.Truncated || len(run.Output) != keptOutput || !strings.HasSuffix(run.Output, "the end") {
				t.Errorf("log: exit %d, %d bytes, truncated %v", run.ExitCode, len(run.Output), run.Truncated)
			}
		}
	}
	if !found {
		t.Error("the failed hook is not in the log")
	}
}

func TestACommandIsInFlightUntilItsCallerHangsUp(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	x := w.live(t, dir, testPlan(), false, nil)
	s, err := x.client.Dial(bounded(t), false)
	if err != nil {
		t.Fatal(err)
	}
	// The connection is the guest's: what is written comes back.
	if _, err := s.Conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(s.Conn, b); err != nil || string(b) != "hello" {
		t.Errorf("through the connection: %q, %v", b, err)
	}
	if st, err := x.client.Status(bounded(t)); err != nil || st.State != sandbox.Busy || st.Commands != 1 {
		t.Errorf("status %+v, %v", st, err)
	}
	if busy, err := x.client.Stop(bounded(t), link.StopRequest{IfIdle: true}); err != nil || !busy {
		t.Errorf("stop if idle: busy %v, %v", busy, err)
	}
	s.Close()
	eventually(t, "the command to be over", func() bool {
		st, err := x.client.Status(bounded(t))
		return err == nil && st.State == sandbox.Ready && st.Commands == 0
	})
	if busy, err := x.client.Stop(bounded(t), link.StopRequest{IfIdle: true}); err != nil || busy {
		t.Errorf("stop if idle: busy %v, %v", busy, err)
	}
	x.end()
}

func TestNothingIsAdmittedWhileInstallHooksRun(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	installing, goOn := make(chan struct{}, 9), make(chan struct{})
	w.run = func(_ context.Context, c Command, _ io.Writer) (int, error) {
		if c.Args[0] == "in" {
			installing <- struct{}{}
			<-goOn
		}
		return 0, nil
	}
	x := w.live(t, dir, testPlan(), false, nil)
	<-installing
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if s, err := x.client.Dial(ctx, true); err == nil {
		s.Close()
		t.Error("a command was admitted into the install phase")
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial = %v", err)
	}
	if st, err := x.client.Status(bounded(t)); err != nil || st.State != sandbox.Starting || st.Phase != "install" {
		t.Errorf("status %+v, %v", st, err)
	}
	close(goOn)
	s, err := x.client.Dial(bounded(t), false)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if h := w.history(); !slices.Contains(h, "phase runtime") {
		t.Errorf("admitted before the install grants ended: %v", h)
	}
}

func TestACreatorThatEndsTakesItsVolatileSandboxAlong(t *testing.T) {
	for _, during := range []string{"the boot", "its life"} {
		t.Run(during, func(t *testing.T) {
			w, dir := newWorld(), filepath.Join(t.TempDir(), "t")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			inHook := make(chan struct{}, 9)
			w.run = func(ctx context.Context, c Command, _ io.Writer) (int, error) {
				inHook <- struct{}{}
				if during == "the boot" {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				return 0, nil
			}
			ours, theirs := packetPair(t)
			x := w.live(t, dir, testPlan(), true, theirs)
			<-inHook
			if during == "its life" {
				<-x.k.Booted()
			}
			ours.Close()
			x.end()
			h := w.history()
			if len(h) < 2 || !strings.HasPrefix(h[len(h)-1], "forget") || !slices.Contains(h, "remove") {
				t.Errorf("history: %v", h)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Error("the state directory is left")
			}
		})
	}
}

func TestACreatorThatEndsLeavesAnotherSandboxAlone(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	goOn := make(chan struct{})
	w.run = func(context.Context, Command, io.Writer) (int, error) { <-goOn; return 0, nil }
	ours, theirs := packetPair(t)
	x := w.live(t, dir, testPlan(), false, theirs)
	ours.Close()
	close(goOn)
	if err := x.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	if st, err := x.client.Status(bounded(t)); err != nil || st.State != sandbox.Ready {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestAKeeperAttachesToAMachineThatOutlivedTheOneBefore(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	w.alive["m"], w.ended["m"] = true, make(chan struct{})
	j := journal.Writer{Dir: dir}
	for _, p := range []journal.Phase{journal.Booting, journal.InstallBegin, journal.InstallDone, journal.Running} {
		if err := j.Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	x := w.live(t, dir, testPlan(), false, nil)
	if err := x.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, w, "start", "attach in runtime")
}

func TestABootThatWasCutShortIsDoneAgain(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	w.alive["m"], w.ended["m"] = true, make(chan struct{})
	j := journal.Writer{Dir: dir}
	for _, p := range []journal.Phase{journal.Booting, journal.InstallBegin, journal.InstallDone, journal.Stopped, journal.Booting} {
		if err := j.Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	x := w.live(t, dir, testPlan(), false, nil)
	if err := x.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, w, "stop 2s", "start", "attach in runtime", "file /f for 1000", "hook up b as 1000:1001")
}

func TestAnInterruptedInstallIsNotRepeated(t *testing.T) {
	w, dir := newWorld(), filepath.Join(t.TempDir(), "t")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.alive["m"], w.ended["m"] = true, make(chan struct{})
	j := journal.Writer{Dir: dir}
	for _, p := range []journal.Phase{journal.Booting, journal.InstallBegin} {
		if err := j.Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	x := w.live(t, dir, testPlan(), false, nil)
	if err := x.end(); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("serve: %v", err)
	}
	wantHistory(t, w, "stop 0s", "remove", "forget, keep false")
}

func TestAMachineThatEndsByItselfIsStopped(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	x := w.live(t, dir, testPlan(), false, nil)
	<-x.k.Booted()
	w.mu.Lock()
	w.alive["m"] = false
	close(w.ended["m"])
	w.mu.Unlock()
	x.end()
	if got := phases(t, dir); !strings.HasSuffix(got, "running stopped") {
		t.Errorf("journal: %s", got)
	}
	if h := w.history(); !slices.Contains(h, "boundary closed") {
		t.Errorf("history: %v", h)
	}
}

// A start that comes while the sandbox goes down, by a stop whose command was
// killed or by the death of the machine, must not report it as up.
func TestAWatchOfASandboxThatGoesDownIsNotToldItIsUp(t *testing.T) {
	t.Run("machine died", func(t *testing.T) {
		w, dir := newWorld(), t.TempDir()
		x := w.live(t, dir, testPlan(), false, nil)
		<-x.k.Booted()
		if err := x.client.Watch(bounded(t), nil); err != nil {
			t.Fatalf("while it is up: %v", err)
		}
		w.mu.Lock()
		w.alive["m"] = false // and the keeper has not heard of it
		w.mu.Unlock()
		got := make(chan error, 1)
		go func() { got <- x.client.Watch(bounded(t), nil) }()
		select {
		case err := <-got:
			t.Errorf("an answer before the keeper is done: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		w.mu.Lock()
		close(w.ended["m"])
		w.mu.Unlock()
		if err := <-got; !errors.Is(err, link.ErrNone) {
			t.Errorf("watch: %v, want %v", err, link.ErrNone)
		}
	})
	t.Run("stopping", func(t *testing.T) {
		w, dir := newWorld(), t.TempDir()
		x := w.live(t, dir, testPlan(), false, nil)
		<-x.k.Booted()
		x.k.mu.Lock()
		x.k.state = stopping
		x.k.mu.Unlock()
		got := make(chan error, 1)
		go func() { got <- x.client.Watch(bounded(t), nil) }()
		select {
		case err := <-got:
			t.Errorf("an answer while it stops: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		x.k.end()
		if err := <-got; !errors.Is(err, link.ErrNone) {
			t.Errorf("watch: %v, want %v", err, link.ErrNone)
		}
	})
}

func TestTheSocketIsTheOwnersAndMayLieDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100), strings.Repeat("e", 100))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	x := w.live(t, dir, testPlan(), false, nil)
	if err := x.client.Watch(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(filepath.Join(dir, link.SocketName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
}

func TestHookEnvIsTheBaselineAndWhatIsDeclared(t *testing.T) {
	l := plan.Launch{Env: []string{"A=1", "B=2", "HOME=/image", "PATH=/image/bin", "SSL_CERT_FILE=/store", "PIP_CERT=/store", "TERM=image", "EMPTY="},
		Trust: []string{"SSL_CERT_FILE", "PIP_CERT"}}
	for _, c := range []struct {
		launch   plan.Launch
		declared []string
		want     string
	}{
		{l, []string{"A", "MISSING", "EMPTY", "PATH"}, "PATH=/image/bin HOSTNAME=box TERM=image A=1 EMPTY="},
		{l, []string{"TERM", "HOSTNAME", "PIP_CERT", "A", "A"}, "PATH=/image/bin HOSTNAME=box TERM=image PIP_CERT=/store A=1"},
		{l, nil, "PATH=/image/bin HOSTNAME=box TERM=image"},
		{plan.Launch{}, []string{"A"}, "PATH=" + defaultPath + " HOSTNAME=box TERM=dumb"},
		{plan.Launch{Env: []string{"PATH=", "TERM="}}, []string{"TERM"}, "PATH=" + defaultPath + " HOSTNAME=box TERM=dumb"},
	} {
		if got := strings.Join(HookEnv(plan.Hook{Env: c.declared}, c.launch, "box"), " "); got != c.want {
			t.Errorf("a hook that declares %v sees %s; want %s", c.declared, got, c.want)
		}
	}
}

// eventually waits for what another goroutine brings about and nobody announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// A keeper can be killed before it came to begin a background hook of its boot.
func TestABackgroundHookThatWasNeverBegunIsBegun(t *testing.T) {
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.Hooks = []plan.Hook{
		{Kit: "a", Index: 0, Phase: plan.Runtime, Argv: []string{"lost"}, Background: true},
		{Kit: "a", Index: 1, Phase: plan.Runtime, Argv: []string{"alive"}, Background: true},
		{Kit: "a", Index: 2, Phase: plan.Runtime, Argv: []string{"blocking"}},
	}
	w.await = func(ctx context.Context, key string) (int, error) {
		if key == hookKey(p.Hooks[1]) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return 0, kiterr.ErrNotFound
	}
	orphaned(t, w, dir)
	x := w.live(t, dir, p, false, nil)
	<-x.k.Booted()
	for ctx := bounded(t); ; time.Sleep(5 * time.Millisecond) {
		if runs, err := HookRuns(dir); err != nil || ctx.Err() != nil {
			t.Fatalf("%d runs, %v", len(runs), err)
		} else if len(runs) == 1 && runs[0].Index == 0 {
			break
		}
	}
	if h := w.history(); slices.ContainsFunc(h, func(s string) bool {
		return strings.HasPrefix(s, "hook alive") || strings.HasPrefix(s, "hook blocking")
	}) {
		t.Errorf("history: %v", h)
	}
}

func TestStatusSaysThatDecisionsAreLost(t *testing.T) {
	var failing atomic.Pointer[error]
	k := New(testPlan())
	k.Unlogged = func() error {
		if err := failing.Load(); err != nil {
			return *err
		}
		return nil
	}
	if s := k.status(); len(s.Problems) > 0 {
		t.Errorf("problems %q", s.Problems)
	}
	err := error(syscall.ENOSPC)
	failing.Store(&err)
	if s := k.status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "decisions go unrecorded: no space left") {
		t.Errorf("problems %q", s.Problems)
	}
	failing.Store(nil)
	if s := k.status(); len(s.Problems) > 0 {
		t.Errorf("problems %q after it was mended", s.Problems)
	}
}
