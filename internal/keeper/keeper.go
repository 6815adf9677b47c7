// Package keeper is the process behind one sandbox: it owns the boundary, the
// phase and the hooks, and answers on a unix socket in the sandbox's state
// directory.
//
// There is one keeper per running sandbox, a detached re-execution of kitbox.
// When it dies the boundary's sockets die with it, so nothing flows any more,
// while the machine lives on; [Start] then makes a new one, which attaches a
// fresh boundary to it. What is to be made is in the plan; how machines and
// boundaries work is behind [driver.Driver] and [Boundary].
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/publish"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Boundary is the way out of one sandbox.
type Boundary interface {
	// SetPhase makes p the phase that traffic is judged by and cuts what
	// only the old one allowed. When it returns, no grant of the old phase
	// can be used any more.
	SetPhase(ctx context.Context, p plan.Phase) error

	// SetRules replaces the rules that traffic is judged by and cuts what
	// the new ones do not allow. When it returns, no grant that was taken
	// away can be used any more. On error the rules stay as they were.
	SetRules(ctx context.Context, rules []plan.EgressRule) error

	// Close ends all traffic. It is called once.
	Close() error
}

// A Guest does things in the machine. Its methods can be called concurrently.
type Guest interface {
	// Run runs c to its end and writes what it prints, stdout and stderr
	// together, to out. An error means that no end was seen.
	Run(ctx context.Context, c Command, out io.Writer) (exitCode int, err error)

	// Await returns how the command ends that was started with key and stayed
	// when its keeper was killed. [kiterr.ErrNotFound] means that there is none.
	Await(ctx context.Context, key string) (exitCode int, err error)

	// Sessions calls told with the number of commands and copies that are under
	// way for somebody, hooks not among them, and returns when these have ended.
	// An error means that nothing more is known of them.
	Sessions(ctx context.Context, told func(n int)) error

	// WriteFile writes f, owned by id, with the parents it lacks.
	WriteFile(ctx context.Context, f plan.File, id plan.Identity) error

	// MakeDir makes the directory path, owned by id, unless something is
	// there.
	MakeDir(ctx context.Context, path string, id plan.Identity) error

	// Alive returns nil when the guest answers.
	Alive(ctx context.Context) error
}

// A Command is what a hook asks of a [Guest].
type Command struct {
	Args []string
	Env  []string // NAME=value, complete
	Dir  string
	User string // uid or name, optionally ":" and a group

	// Stay says that what the command starts, or the command itself, is to
	// live on when this process is killed. Key is what it can be awaited by
	// then; empty: not at all.
	Stay bool
	Key  string
}

// A Keeper keeps one sandbox. Make it with [New] and set its fields before
// Serve.
type Keeper struct {
	Plan   *plan.Plan
	Dir    string // the sandbox's state directory
	Driver driver.Driver
	Guest  Guest

	// Rules returns the rules in force as they are recorded now. Nil: those
	// of the plan.
	Rules func() ([]plan.EgressRule, error)

	// Prepare begins what Attach needs before there is a machine, and returns
	// at once. It is called when a boot begins. Nil: nothing can be.
	Prepare func()

	// Attach connects a boundary, in phase p and with the rules recorded
	// now, to a network namespace. It does not keep the file.
	Attach func(ctx context.Context, netns *os.File, p plan.Phase) (Boundary, error)

	// Refused returns what boundaries have declined so far, to be told with
	// an install hook that failed. Nil: nothing is told.
	Refused func(ctx context.Context) []sandbox.PolicyEvent

	// Unlogged says why decisions of the boundary cannot be written down now. It
	// waits for nothing. Nil: they always can.
	Unlogged func() error

	// Remove deletes the state directory; the machine is gone by then. keep
	// says whether storage that was made for the sandbox outlives it, as it
	// does unless the sandbox never came to be.
	Remove func(ctx context.Context, keep bool) error

	// Create says that the sandbox is being made: a boot that fails removes
	// it. Otherwise it is left stopped.
	Create bool

	// Volatile says that the sandbox ends with its creator.
	Volatile bool

	Log *slog.Logger // nil discards

	// rulesMu orders attaching a boundary and replacing its rules: whichever
	// comes second sees what the operator recorded before he asked.
	rulesMu sync.Mutex

	looked bool // by the boot, for the working directory

	boundary Boundary // set while booting, before anybody else can see it

	mu       sync.Mutex
	state    sandbox.State         // guarded by mu
	phase    plan.Phase            // guarded by mu
	pid      int                   // guarded by mu
	commands int                   // guarded by mu
	heir     bool                  // guarded by mu; a keeper before this one had commands
	held     int                   // guarded by mu; creators that have not hung up
	since    time.Time             // guarded by mu; when the machine's boot began, or a little before
	used     time.Time             // guarded by mu; when the last command, or the boot, ended
	unused   chan struct{}         // gets a value when nobody uses the sandbox any more, unless one is there
	problems []string              // guarded by mu
	ports    *publish.Publisher    // guarded by mu; nil before the runtime phase and after the end
	bootErr  error                 // guarded by mu; of a boot that is over
	watchers []func(sandbox.Event) // guarded by mu

	booted   chan struct{} // closed when the boot is over, well or not
	admitted chan struct{} // closed when commands may come in: the install phase is over
	ended    chan struct{} // closed when the machine is gone and nothing else will happen

	quiet chan struct{} // gets one when a command has ended, unless one is waiting

	bootCtx context.Context // of the boot alone, which abort ends
	abort   context.CancelFunc
}

// New returns a keeper of the sandbox that p describes. Its other fields are
// set by the caller.
func New(p *plan.Plan) *Keeper {
	k := &Keeper{Plan: p, state: sandbox.Starting,
		booted: make(chan struct{}), admitted: make(chan struct{}), ended: make(chan struct{}), quiet: make(chan struct{}, 1), unused: make(chan struct{}, 1)}
	k.bootCtx, k.abort = context.WithCancel(context.Background())
	return k
}

// Booted is closed when the boot is over, well or not.
func (k *Keeper) Booted() <-chan struct{} { return k.booted }

// Ended is closed when nothing of the sandbox runs any more.
func (k *Keeper) Ended() <-chan struct{} { return k.ended }

func (k *Keeper) log() *slog.Logger {
	if k.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return k.Log
}

func (k *Keeper) journal() journal.Writer { return journal.Writer{Dir: k.Dir, Volatile: k.Volatile} }

// bounds of what a keeper does on its own.
const (
	killGrace   = 2 * time.Second // for a machine nobody wants any more
	acceptPause = 50 * time.Millisecond
)

// Serve boots the sandbox, answers on l until it is stopped or its machine
// ends, and returns when nothing of it runs any more. creator, if not nil, is
// the connection of whoever asked for the boot and is treated as a watch.
func (k *Keeper) Serve(l *net.UnixListener, creator *net.UnixConn) error {
	var conns sync.WaitGroup
	if creator != nil {
		k.tell(creator) // of everything, so before anything happens
		k.held = 1      // nobody else can see it yet
		conns.Go(func() { k.hold(creator) })
	}
	conns.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				// Out of descriptors, most likely: wait for some.
				k.log().Error("accept failed", "err", err)
				time.Sleep(acceptPause)
				continue
			}
			conns.Go(func() { k.handle(c) })
		}
	})

	err := k.boot(k.bootCtx)
	if err != nil {
		k.log().Error("boot failed", "err", err)
		err = errors.Join(err, k.giveUp())
		k.finish(err)
	} else {
		go k.supervise()
		go k.stopIdle()
	}
	<-k.ended
	l.Close()
	drained := make(chan struct{})
	go func() { conns.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(killGrace):
		// A caller that does not hang up must not keep a keeper alive.
	}
	return err
}

// finish publishes that the boot failed and everything is over.
func (k *Keeper) finish(err error) {
	k.mu.Lock()
	k.bootErr = err
	k.state = sandbox.Stopped
	k.mu.Unlock()
	close(k.booted)
	k.end()
}

func (k *Keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.ended:
	default:
		close(k.ended)
	}
}

// giveUp takes back what a boot had made: all of it, if the sandbox was being
// made or never was installed.
func (k *Keeper) giveUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), link.CleanupTime)
	defer cancel()
	es, err := journal.Read(k.Dir)
	if err != nil {
		return err
	}
	if k.Create || k.Volatile || !journal.Installed(es) {
		return k.remove(ctx, false)
	}
	return k.stop(ctx, killGrace, "its boot did not succeed")
}

// supervise waits for the machine to end by itself.
func (k *Keeper) supervise() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-k.ended; cancel() }()
	if err := driver.Wait(ctx, k.Driver, k.Plan.Machine.ID); err != nil {
		if ctx.Err() == nil {
			k.log().Warn("cannot wait for the machine", "err", err)
		}
		return
	}
	k.mu.Lock()
	ours := k.state == sandbox.Ready
	if ours {
		k.state = sandbox.Stopped
	}
	k.mu.Unlock()
	if !ours {
		return // it ends because it was told to
	}
	k.log().Warn("the machine ended by itself")
	k.closeBoundary()
	after, done := context.WithTimeout(context.Background(), link.CleanupTime)
	defer done()
	var err error
	if k.Volatile {
		err = k.remove(after, true)
	} else {
		err = errors.Join(k.Driver.Stop(after, k.Plan.Machine.ID, 0), k.journal().Append(journal.Stopped, "the machine ended by itself"))
	}
	if err != nil {
		k.log().Error("cleaning up", "err", err)
	}
	k.end()
}

// stop ends the machine and the boundary, in this order: a process that is
// being asked to end may still have something to send.
// reason is what a user reads of it afterwards.
func (k *Keeper) stop(ctx context.Context, grace time.Duration, reason string) error {
	if err := k.journal().Append(journal.Stopping, reason); err != nil {
		k.log().Error("journal", "err", err)
	}
	err := k.Driver.Stop(ctx, k.Plan.Machine.ID, grace)
	if errors.Is(err, kiterr.ErrNotFound) {
		err = nil
	}
	k.closeBoundary()
	if err != nil {
		return fmt.Errorf("stopping sandbox %s: %w", k.Plan.Name, err)
	}
	return k.journal().Append(journal.Stopped, reason)
}

func (k *Keeper) remove(ctx context.Context, keep bool) error {
	if err := k.journal().Append(journal.Removing, ""); err != nil {
		k.log().Error("journal", "err", err)
	}
	err := k.Driver.Remove(ctx, k.Plan.Machine.ID)
	if errors.Is(err, kiterr.ErrNotFound) {
		err = nil
	}
	k.closeBoundary()
	if err != nil {
		// The directory stays: it is what the next command finds the
		// machine by.
		return fmt.Errorf("removing sandbox %s: %w", k.Plan.Name, err)
	}
	return k.Remove(ctx, keep)
}

func (k *Keeper) closeBoundary() {
	k.mu.Lock()
	b, ports := k.boundary, k.ports
	k.boundary, k.ports = nil, nil
	k.mu.Unlock()
	if ports != nil {
		ports.Close()
	}
	if b == nil {
		return
	}
	if err := b.Close(); err != nil {
		k.log().Error("closing the boundary", "err", err)
	}
}

func (k *Keeper) status() *link.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &link.Status{State: k.state, Phase: string(k.phase), PID: k.pid, Keeper: os.Getpid(), Commands: k.commands,
		Problems: append([]string(nil), k.problems...)}
	if k.Unlogged != nil {
		if err := k.Unlogged(); err != nil {
			s.Problems = append(s.Problems, "no credential is presented and decisions go unrecorded: "+err.Error())
		}
	}
	switch {
	case s.State == sandbox.Ready && k.commands > 0:
		s.State = sandbox.Busy
	case s.State == sandbox.Ready && k.held == 0:
		s.Unused = k.used
	}
	return s
}

// event tells everybody who watches the boot.
func (k *Keeper) event(step, detail string) {
	k.mu.Lock()
	ws := k.watchers
	k.mu.Unlock()
	for _, w := range ws {
		w(sandbox.Event{Step: step, Detail: detail})
	}
}
