package keeper

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// requestTime is how long a caller may take to say what it wants.
const requestTime = 10 * time.Second

// maxRequest bounds a request; all of them are short.
const maxRequest = 4 << 10

// earlyTime is how long a command that may come in early waits for the boot to
// end all the same: startup hooks finish before a sandbox is used, unless one
// of them hangs and somebody has to look at it.
const earlyTime = 10 * time.Second

// handle serves one connection and closes it.
func (k *Keeper) handle(c *net.UnixConn) {
	defer c.Close()
	// The socket's mode already keeps others out; a descriptor that was
	// handed on is kept out here.
	cred, err := link.Peer(c)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		k.log().Warn("a caller of another user was turned away")
		return
	}
	_ = c.SetDeadline(time.Now().Add(requestTime))
	var r link.Request
	f, err := link.Receive(c, &r, maxRequest)
	if f != nil {
		f.Close()
	}
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	switch r.Op {
	case link.OpStatus:
		s := k.status()
		if r.ProbeMillis > 0 {
			k.probe(s, time.Duration(r.ProbeMillis)*time.Millisecond)
		}
		k.answer(c, link.Reply{OK: true, Status: s})
	case link.OpExec:
		k.exec(c, r)
	case link.OpPorts:
		k.serveLoopback(c, r)
	case link.OpStop:
		k.stopped(c, r)
	case link.OpWatch:
		k.tell(c)
		k.watch(c, nil)
	case link.OpRules:
		ctx, cancel := context.WithTimeout(context.Background(), requestTime)
		err := k.reload(ctx)
		cancel()
		k.answer(c, link.Reply{OK: err == nil, Error: link.Failed(err)})
	case link.OpOwners:
		ctx, cancel := context.WithCancel(context.Background())
		gone := hangup(c)
		go func() {
			select {
			case <-gone:
			case <-k.ended: // the driver does it once more
			case <-ctx.Done():
			}
			cancel()
		}()
		err := k.giveBack(ctx)
		k.answer(c, link.Reply{OK: err == nil, Error: link.Failed(err)})
		cancel()
	default:
		k.answer(c, link.Reply{Error: &link.Failure{Message: fmt.Sprintf("this keeper does not know %q; stop and start the sandbox to get a newer one", r.Op)}})
	}
}

func (k *Keeper) answer(c *net.UnixConn, r link.Reply) {
	_ = c.SetWriteDeadline(time.Now().Add(requestTime))
	_ = link.Send(c, r, nil)
}

// probe corrects s if the guest does not answer, as when its processes are frozen
// or stopped from outside.
func (k *Keeper) probe(s *link.Status, patience time.Duration) {
	if s.State != sandbox.Ready && s.State != sandbox.Busy {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := k.Guest.Alive(ctx); err != nil && ctx.Err() != nil {
		s.State = sandbox.Unknown
		s.Problems = append(s.Problems, "what is inside does not answer; stop ends it")
	}
}

// exec hands out a connection to the guest and counts a command until the
// caller hangs up.
func (k *Keeper) exec(c *net.UnixConn, r link.Request) {
	gone := hangup(c)
	if err := k.admit(gone, r.Early); err != nil {
		k.answer(c, link.Reply{Error: link.Failed(err)})
		return
	}
	k.mu.Lock()
	if k.state != sandbox.Ready && k.state != sandbox.Starting {
		k.mu.Unlock()
		k.answer(c, link.Reply{Error: link.Failed(errEnded(k.Plan.Name))})
		return
	}
	k.commands++
	k.mu.Unlock()
	defer k.count(-1)

	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	f, err := k.dialFile(ctx)
	if err != nil {
		k.answer(c, link.Reply{Error: link.Failed(err)})
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(requestTime))
	err = link.Send(c, link.Reply{OK: true}, f)
	f.Close()
	if err != nil {
		return
	}
	select {
	case <-gone:
	case <-k.ended:
	}
}

// dialFile opens a connection to the guest as a file that can be handed on.
func (k *Keeper) dialFile(ctx context.Context) (*os.File, error) {
	conn, err := k.Driver.Dial(ctx, k.Plan.Machine.ID)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	f, ok := conn.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("passing on a %T: %w", conn, kiterr.ErrUnsupported)
	}
	return f.File()
}

// admit waits until a command may come in.
func (k *Keeper) admit(gone <-chan struct{}, early bool) error {
	select {
	case <-k.admitted:
	case <-k.ended:
		return errEnded(k.Plan.Name)
	case <-gone:
		return context.Canceled
	}
	var late <-chan time.Time
	if early {
		t := time.NewTimer(earlyTime)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-k.booted:
		return nil
	case <-late:
		return nil
	case <-k.ended:
		return errEnded(k.Plan.Name)
	case <-gone:
		return context.Canceled
	}
}

// hangup returns a channel that is closed when the other end has gone. Nothing
// else may read from c.
func hangup(c *net.UnixConn) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var b [1]byte
		for {
			if n, err := c.Read(b[:]); err != nil || n == 0 {
				return
			}
		}
	}()
	return gone
}

// stopped ends the sandbox and answers when it has ended.
func (k *Keeper) stopped(c *net.UnixConn, r link.Request) {
	e := ending{grace: time.Duration(r.GraceMillis) * time.Millisecond, remove: r.Remove, reason: "stopped on request"}
	if r.IfIdle {
		if k.Plan.LongRunning {
			k.answer(c, link.Reply{OK: true, Busy: true})
			return
		}
		e.ifIdle, e.reason = true, "its command has ended"
	}
	busy, err := k.shutdown(e)
	k.answer(c, link.Reply{OK: err == nil, Busy: busy, Error: link.Failed(err)})
}

// lives reports whether the sandbox is up and not on its way down, which a
// keeper may have to be told: a machine that was killed ends before its keeper
// has noticed.
func (k *Keeper) lives() bool {
	k.mu.Lock()
	ready := k.state == sandbox.Ready
	k.mu.Unlock()
	if !ready {
		return false
	}
	gone, err := k.gone(context.Background())
	return err != nil || !gone // one that is only slow is up
}

// pingTime is how long a guest may take to show that it is there.
const pingTime = 2 * time.Second

// An ending is how and why a sandbox is to end.
type ending struct {
	grace  time.Duration
	remove bool
	reason string

	// ifIdle does nothing unless the sandbox is ready and has had no session
	// for at least quiet.
	ifIdle bool
	quiet  time.Duration
}

// Shutdown ends the sandbox as a stop does.
func (k *Keeper) Shutdown(grace time.Duration) {
	if _, err := k.shutdown(ending{grace: grace, reason: "its keeper was told to end"}); err != nil {
		k.log().Error("stop", "err", err)
	}
}

// shutdown ends the sandbox, or waits for an end that has begun. A boot that is
// going on is given up, which takes back what it has made.
//
// That nobody uses it and that nobody may any more is one decision: a session
// either comes before it, and keeps the sandbox, or is told that it stops.
func (k *Keeper) shutdown(e ending) (busy bool, err error) {
	if !e.ifIdle {
		k.abort()
		<-k.booted
	}
	k.mu.Lock()
	if e.ifIdle && (k.state == stopping || k.state == sandbox.Stopped) {
		k.mu.Unlock()
		<-k.ended // for whatever reason it ends: nobody uses it any more
		return false, nil
	}
	if e.ifIdle && !k.idle(e.quiet) {
		k.mu.Unlock()
		return true, nil
	}
	if e.ifIdle && k.heir {
		// A command that had its connection of the keeper before and had not
		// begun when this one asked.
		k.mu.Unlock()
		k.inherit()
		k.mu.Lock()
		if !k.idle(e.quiet) {
			k.mu.Unlock()
			return true, nil
		}
	}
	ours := k.state == sandbox.Ready
	if ours {
		k.state = stopping
	}
	k.mu.Unlock()
	if !ours {
		<-k.ended
		return false, nil
	}
	defer k.end()
	ctx, cancel := context.WithTimeout(context.Background(), e.grace+link.CleanupTime)
	defer cancel()
	if e.remove || k.Volatile {
		return false, k.remove(ctx, true)
	}
	return false, k.stop(ctx, e.grace, e.reason)
}

// idle reports whether the sandbox is up and has had no session for at least quiet.
// The caller holds mu.
func (k *Keeper) idle(quiet time.Duration) bool {
	return k.state == sandbox.Ready && k.commands == 0 && (quiet == 0 || k.held == 0 && time.Since(k.used) >= quiet)
}

// idleGrace is what processes get between TERM and KILL at an idle stop.
const idleGrace = 10 * time.Second

// stopIdle ends the sandbox when it has had no session for as long as its plan
// says, counted from the end of the last one or of the boot.
func (k *Keeper) stopIdle() {
	limit := time.Duration(k.Plan.IdleMillis) * time.Millisecond
	if limit <= 0 || k.Plan.LongRunning || k.Volatile {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case <-k.ended:
			return
		case <-k.unused:
			t.Reset(limit)
		case <-t.C:
			busy, err := k.shutdown(ending{ifIdle: true, quiet: limit, grace: idleGrace,
				reason: fmt.Sprintf("idle: no session for %v", limit)})
			if err != nil {
				k.log().Error("idle stop", "err", err)
			}
			if !busy {
				return
			}
			// The end of what keeps it busy is told on unused.
		}
	}
}

// stopping is a state of the keeper's own: callers see a sandbox that answers
// "not running" and soon is gone.
const stopping sandbox.State = "stopping"

// tell sends c the events of the boot from now on.
func (k *Keeper) tell(c *net.UnixConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchers = append(k.watchers, func(e sandbox.Event) {
		// A watcher that does not read must not stop a boot.
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_ = link.Send(c, link.Reply{Event: &e}, nil)
	})
}

// watch tells c the end of the boot. For a creator it stays until c hangs up or
// the sandbox ends, and calls creator in the first case.
func (k *Keeper) watch(c *net.UnixConn, creator func()) {
	defer c.Close()
	gone := hangup(c)
	select {
	case <-k.booted:
	case <-gone:
		if k.Volatile && creator != nil {
			k.abort()
		}
		<-k.booted
	}
	k.mu.Lock()
	err := k.bootErr
	k.mu.Unlock()
	if err == nil && creator == nil && !k.lives() {
		// Who asks whether the sandbox is up would be told of one that is
		// going down. Hanging up when it is down says what is true.
		select {
		case <-gone:
		case <-k.ended:
		}
		return
	}
	k.answer(c, link.Reply{OK: err == nil, Error: link.Failed(err), Status: k.status()})
	if creator == nil {
		return
	}
	select {
	case <-k.ended:
		return
	case <-gone:
	}
	creator()
}

// hold watches the boot for the creator, who holds the sandbox until it hangs
// up: between the making of a sandbox and its first session nobody is idle.
func (k *Keeper) hold(c *net.UnixConn) {
	if k.Volatile {
		k.watch(c, func() { k.Shutdown(0) })
		return
	}
	k.watch(c, func() {})
	k.mu.Lock()
	k.held--
	k.silent()
	k.mu.Unlock()
}

// silent starts the clock of the idle stop. The caller holds mu.
func (k *Keeper) silent() {
	if k.commands > 0 || k.held > 0 {
		return
	}
	k.used = time.Now()
	select {
	case k.unused <- struct{}{}:
	default:
	}
}

// errEnded is what callers get who asked a keeper for something while it ends.
func errEnded(name string) error {
	return fmt.Errorf("sandbox %s is stopping: %w", name, kiterr.ErrNotRunning)
}
