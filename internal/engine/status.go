package engine

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// How long sandboxes may take to say how they are: in a listing all of them together,
// which takes less than 300 ms with some twenty of which any are stopped or frozen, as
// a person does not notice. A keeper that is alive answers in a hundredth of it.
const (
	listBound   = 200 * time.Millisecond
	listEach    = 2 * time.Millisecond   // and for each, what reading about it takes on a slow machine
	leastBound  = 20 * time.Millisecond  // of one that is asked last
	statusBound = 2 * time.Second        // of one alone
	lateBound   = 800 * time.Millisecond // more, in a listing, for those that are late
)

// patience is until when sandboxes are waited for: all, and then those that are late
// because the machine is crowded.
type patience struct{ all, late time.Time }

func patient(bound, late time.Duration) patience {
	all := time.Now().Add(bound)
	return patience{all, all.Add(late)}
}

// List implements [sandbox.Runtime].
func (e *Engine) List(ctx context.Context) ([]sandbox.Info, error) {
	if !e.exists() {
		return nil, nil
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	machines, err := e.machines(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]*sandbox.Info, len(names))
	var wg sync.WaitGroup
	turn := make(chan struct{}, width)
	until := patient(listBound+time.Duration(len(names))*listEach, lateBound)
	for i, name := range names {
		wg.Go(func() {
			turn <- struct{}{}
			// One that does not answer waits on without keeping the next from
			// being asked.
			over := sync.OnceFunc(func() { <-turn })
			defer over()
			defer time.AfterFunc(turnTime, over).Stop()
			sb, err := e.state.Sandbox(name)
			if err != nil {
				return // removed since
			}
			info := (&box{e: e, sb: sb}).info(ctx, machines, until)
			infos[i] = &info
		})
	}
	wg.Wait()
	var out []sandbox.Info
	for _, i := range infos {
		if i != nil {
			out = append(out, *i)
		}
	}
	return out, ctx.Err()
}

// machines lists the driver's, by id.
func (e *Engine) machines(ctx context.Context) (map[string]driver.Machine, error) {
	ms, err := e.c.Driver.List(ctx)
	if err != nil {
		return nil, err
	}
	byID := map[string]driver.Machine{}
	for _, m := range ms {
		byID[m.ID] = m
	}
	return byID, nil
}

// width is how many sandboxes are asked at once: enough that some which do not
// answer hold nobody up, and few enough that none is late because hundreds of
// others wake up at the same moment.
const (
	width    = 24
	turnTime = 20 * time.Millisecond // what one that lives needs, several times over
)

// Status implements [sandbox.Sandbox].
func (b *box) Status(ctx context.Context) (sandbox.Info, error) {
	machines, err := b.e.machines(ctx)
	if err != nil {
		return sandbox.Info{}, err
	}
	return b.info(ctx, machines, patient(statusBound, statusBound)), ctx.Err()
}

// info puts together what the directory, the driver and the keeper say. It
// takes no lock and waits for nobody longer than until.
func (b *box) info(ctx context.Context, machines map[string]driver.Machine, until patience) sandbox.Info {
	i := sandbox.Info{Name: b.sb.Name, Kits: []sandbox.Kit{}}
	es, err := journal.Read(b.sb.Dir())
	if err != nil {
		i.State, i.Problems = sandbox.Broken, []string{err.Error()}
		return i
	}
	if len(es) > 0 {
		i.Created = es[0].Time
	} else if st, err := os.Stat(b.sb.Dir()); err == nil {
		i.Created = st.ModTime()
	}
	installed := journal.Installed(es)
	var m driver.Machine
	switch p, err := b.plan(); {
	case err == nil:
		i.ID, i.Root, i.Workspace = p.ID, p.Launch.Dir, p.Workspace
		for _, k := range p.Kits {
			i.Kits = append(i.Kits, sandbox.Kit(k))
		}
		if _, brief := journal.Volatile(es); !brief && !p.LongRunning {
			i.IdleMs = p.IdleMillis
		}
		m = machines[p.Machine.ID]
		i.Skipped, i.Unenforced = display.Left(p, m)
		i.HostPorts, i.GPUs = display.HostPorts(p), display.GPUs(p)
		for _, k := range p.Uninstalled {
			i.Problems = append(i.Problems, uninstalled(k))
		}
	case !errors.Is(err, kiterr.ErrNotFound):
		i.Problems = append(i.Problems, err.Error())
	}

	s, err := b.ask(ctx, m.PID, until)
	switch {
	case err == nil:
		i.State, i.Phase, i.PID, i.KeeperPID, i.Commands = s.State, s.Phase, s.PID, s.Keeper, s.Commands
		i.Problems = append(i.Problems, s.Problems...)
		if i.IdleSince = s.Unused; !i.IdleSince.IsZero() && i.IdleMs > 0 {
			i.StopsAt = i.IdleSince.Add(time.Duration(i.IdleMs) * time.Millisecond)
		}
	case !errors.Is(err, link.ErrNone):
		i.State = sandbox.Unknown
		i.Problems = append(i.Problems, "its keeper does not answer; stop ends it")
	case journal.Last(es) == journal.Removing:
		i.State = sandbox.Broken
	case !installed && b.busy():
		i.State = sandbox.Creating
	case !installed:
		i.State = sandbox.Broken
	case journal.Abandoned(es):
		i.State, i.Reason = sandbox.Broken, "the command it was made for is gone; rm removes it, and so does the next create"
	case m.Running:
		i.State, i.PID = sandbox.Orphaned, m.PID
	default:
		i.State = sandbox.Stopped
		if last := es[len(es)-1]; last.Phase == journal.Stopped {
			i.Reason = last.Note
		}
	}
	return i
}

// ask asks the keeper how the sandbox is, and it what is inside, whose first
// process is guest. One that does not answer may only be late where more is to be done
// than there are processors for, and is asked once more: but only where it is seen
// waiting for one, since whoever hangs or spins would hold up whoever asks.
func (b *box) ask(ctx context.Context, guest int, until patience) (*link.Status, error) {
	s, err := b.probe(ctx, until.all)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		pid, perr := b.keeper().Process(ctx)
		if perr != nil || held(guest) || held(pid) || !atWork(pid) || !crowded() {
			return s, err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go watch(ctx, pid, guest, func() { cancel(context.DeadlineExceeded) })
		return b.probe(ctx, until.late)
	case err == nil && s.State == sandbox.Unknown:
		// Who is inside can keep the guest at work for ever, within its
		// limits, and that is no reason to wait for it.
		if held(guest) || held(s.Keeper) || !atWork(guest) || !crowded() {
			return s, err
		}
		return b.probe(ctx, until.late)
	}
	return s, err
}

// probe asks the keeper once.
func (b *box) probe(ctx context.Context, until time.Time) (*link.Status, error) {
	left := max(time.Until(until), leastBound)
	bound, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	// What is inside gets most of the time: its keeper has to tell of it.
	return b.keeper().Probe(bound, left*3/4)
}

// watch calls hopeless when the keeper pid is not late but will not answer: because
// neither it nor the guest that it asks does anything after what our call made it do, or
// because it uses more of a processor than an answer takes, many times over. It ends
// with ctx.
func watch(ctx context.Context, pid, guest int, hopeless func()) {
	const (
		pause  = 10 * time.Millisecond
		enough = 50 * time.Millisecond
	)
	begun, resting := attend.ProcessorTime(pid), 0
	for resting < 3 && attend.ProcessorTime(pid)-begun < enough {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if resting++; atWork(pid) || atWork(guest) {
			resting = 0
		}
	}
	hopeless()
}

// atWork reports whether a thread of a process runs, waits for a processor or for
// a disk.
func atWork(pid int) bool { return strings.ContainsAny(attend.ThreadStates(pid), "RD") }

// crowded reports whether more threads are to run than there are processors. One
// that its group's limit holds back is not counted by the kernel.
func crowded() bool {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "procs_running "); ok {
			running, err := strconv.Atoi(strings.TrimSpace(n))
			return err == nil && running > runtime.NumCPU()
		}
	}
	return false
}

// held reports whether a process is stopped or frozen from outside, so that there
// is nothing to wait for.
func held(pid int) bool {
	states := attend.ThreadStates(pid)
	return strings.ContainsAny(states, "Tt") || states != "" && cgroup.System{}.Frozen(pid)
}

// busy reports whether another process is changing the sandbox.
func (b *box) busy() bool {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	l, err := durable.AcquireLock(now, b.sb.Path("lock"), durable.Exclusive)
	if err == nil {
		l.Unlock()
		return false
	}
	return errors.As(err, new(*durable.BusyError))
}
