package keeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func lastNote(t *testing.T, dir string) (journal.Phase, string) {
	t.Helper()
	es, err := journal.Read(dir)
	if err != nil || len(es) == 0 {
		t.Fatalf("journal: %v, %v", es, err)
	}
	return es[len(es)-1].Phase, es[len(es)-1].Note
}

func TestASandboxThatNobodyUsesIsStoppedAndSaysWhy(t *testing.T) {
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.IdleMillis = 50
	x := w.live(t, dir, p, false, nil)
	if err := x.end(); err != nil {
		t.Fatal(err)
	}
	if phase, note := lastNote(t, dir); phase != journal.Stopped || !strings.HasPrefix(note, "idle") {
		t.Errorf("journal ends with %s %q", phase, note)
	}
}

func TestASessionKeepsASandboxAndItsEndStartsTheClock(t *testing.T) {
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.IdleMillis = 300
	x := w.live(t, dir, p, false, nil)
	s, err := x.client.Dial(bounded(t), false)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-x.k.Ended():
		t.Fatal("stopped under a session")
	case <-time.After(900 * time.Millisecond): // it is the silence that is under test
	}
	before := time.Now()
	s.Close()
	if err := x.end(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(before); d < 250*time.Millisecond {
		t.Errorf("stopped %v after the last session, want 300ms", d)
	}
}

func TestLongRunningAndForeverAreNotStoppedForSilence(t *testing.T) {
	for name, long := range map[string]bool{"long-running": true, "0": false} {
		t.Run(name, func(t *testing.T) {
			w, dir, p := newWorld(), t.TempDir(), testPlan()
			if p.LongRunning = long; long {
				p.IdleMillis = 50
			}
			x := w.live(t, dir, p, false, nil)
			s, err := x.client.Dial(bounded(t), false)
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			select {
			case <-x.k.Ended():
				t.Fatal("stopped")
			case <-time.After(400 * time.Millisecond): // it is the silence that is under test
			}
			busy, err := x.client.Stop(bounded(t), link.StopRequest{IfIdle: true})
			if err != nil || busy != long {
				t.Errorf("a stop of what nobody uses: kept %v, %v", busy, err)
			}
			if _, err := x.client.Stop(bounded(t), link.StopRequest{}); err != nil && !errors.Is(err, link.ErrNone) {
				t.Errorf("an explicit stop: %v", err)
			}
			if err := x.end(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Sessions that come and go around the moment of the stop either work or are
// told that the sandbox stops; none is cut.
func TestSessionsNeverRaceTheIdleStop(t *testing.T) {
	served := 0
	for range 50 {
		w, dir, p := newWorld(), t.TempDir(), testPlan()
		p.IdleMillis = 1
		x := w.live(t, dir, p, false, nil)
		for {
			s, err := x.client.Dial(bounded(t), false)
			if err != nil {
				if !errors.Is(err, link.ErrNone) && !errors.Is(err, kiterr.ErrNotRunning) {
					t.Fatal(err)
				}
				break
			}
			if _, err := s.Conn.Write([]byte("x")); err != nil {
				t.Fatalf("a session was cut: %v", err)
			}
			var b [1]byte
			if _, err := s.Conn.Read(b[:]); err != nil {
				t.Fatalf("a session was cut: %v", err)
			}
			s.Close()
			// Until the moment of the stop, and across it.
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			if served++; served > 100000 {
				t.Fatal("never stopped")
			}
		}
		if err := x.end(); err != nil {
			t.Fatal(err)
		}
	}
	if served == 0 {
		t.Error("no session ever came before the stop")
	}
}

// Whoever asks for a stop of what nobody uses, while it stops for that, is told when
// it has stopped.
func TestAStopThatIsGoingOnIsWaitedFor(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	begun, go_ := make(chan struct{}), make(chan struct{})
	w.stopping = func() { close(begun); <-go_ }
	x := w.live(t, dir, testPlan(), false, nil)
	<-x.k.Booted()
	first := make(chan error, 1)
	go func() { _, err := x.client.Stop(bounded(t), link.StopRequest{}); first <- err }()
	<-begun
	second := make(chan error, 1)
	go func() {
		busy, err := x.client.Stop(bounded(t), link.StopRequest{IfIdle: true})
		if err == nil && busy {
			err = errors.New("it is said to be used")
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Errorf("answered before it had stopped: %v", err)
	case <-time.After(100 * time.Millisecond): // that nothing comes is under test
	}
	close(go_)
	for _, ch := range []chan error{first, second} {
		if err := <-ch; err != nil && !errors.Is(err, link.ErrNone) {
			t.Error(err)
		}
	}
}

func TestTheCreatorHoldsASandboxUntilItHangsUp(t *testing.T) {
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.IdleMillis = 50
	ours, theirs := packetPair(t)
	x := w.live(t, dir, p, false, theirs)
	<-x.k.Booted()
	select {
	case <-x.k.Ended():
		t.Fatal("stopped before its creator could use it")
	case <-time.After(400 * time.Millisecond): // it is the silence that is under test
	}
	ours.Close()
	if err := x.end(); err != nil {
		t.Fatal(err)
	}
}

// orphaned is a sandbox whose keeper was killed while it was running.
func orphaned(t *testing.T, w *world, dir string) {
	t.Helper()
	w.Create(t.Context(), testPlan().Machine)
	w.Start(t.Context(), "m")
	for _, p := range []journal.Phase{journal.Creating, journal.Planned, journal.Booting, journal.InstallBegin, journal.InstallDone, journal.Running} {
		if err := (journal.Writer{Dir: dir}).Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAKeeperAsksWhoUsesTheMachineItFound(t *testing.T) {
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.IdleMillis = 50
	orphaned(t, w, dir)
	asked := 0
	first, second := make(chan struct{}), make(chan struct{})
	w.guests = func(ctx context.Context, told func(n int)) error {
		switch asked++; asked {
		case 1:
			told(2)
			<-first
			return nil
		case 2: // one that was still on its way when it was asked first
			told(1)
			<-second
			return nil
		}
		told(0)
		return nil
	}
	x := w.live(t, dir, p, false, nil)
	<-x.k.Booted()
	for _, end := range []chan struct{}{first, second} {
		select {
		case <-x.k.Ended():
			t.Fatal("stopped under a session")
		case <-time.After(300 * time.Millisecond): // it is the silence that is under test
		}
		if busy, err := x.client.Stop(bounded(t), link.StopRequest{IfIdle: true}); err != nil || !busy {
			t.Errorf("a stop of what nobody uses: kept %v, %v", busy, err)
		}
		close(end)
	}
	if err := x.end(); err != nil {
		t.Fatal(err)
	}
	if phase, note := lastNote(t, dir); phase != journal.Stopped || !strings.HasPrefix(note, "idle") {
		t.Errorf("journal ends with %s %q", phase, note)
	}
}

// Whoever is inside may have taken over the guest. It can keep its sandbox up, and
// hold up nobody.
func TestAGuestThatDoesNotSayWhoUsesItIsIdle(t *testing.T) {
	for name, guests := range map[string]func(ctx context.Context, told func(n int)) error{
		"silent":   func(ctx context.Context, _ func(int)) error { <-ctx.Done(); return ctx.Err() },
		"hangs up": func(context.Context, func(int)) error { return errors.New("the guest hung up") },
		"says one and hangs up": func(_ context.Context, told func(int)) error {
			told(1)
			return errors.New("the guest hung up")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir, p := newWorld(), t.TempDir(), testPlan()
			p.IdleMillis = 50
			orphaned(t, w, dir)
			over := false
			w.guests = func(ctx context.Context, told func(n int)) error {
				if over && name == "says one and hangs up" {
					told(0) // or it would be busy for ever
					return nil
				}
				over = true
				return guests(ctx, told)
			}
			if err := w.live(t, dir, p, false, nil).end(); err != nil {
				t.Fatal(err)
			}
			if phase, note := lastNote(t, dir); phase != journal.Stopped || !strings.HasPrefix(note, "idle") {
				t.Errorf("journal ends with %s %q", phase, note)
			}
		})
	}
	t.Run("says one for ever", func(t *testing.T) {
		w, dir, p := newWorld(), t.TempDir(), testPlan()
		p.IdleMillis = 50
		orphaned(t, w, dir)
		w.guests = func(ctx context.Context, told func(n int)) error { told(1); <-ctx.Done(); return ctx.Err() }
		x := w.live(t, dir, p, false, nil)
		<-x.k.Booted()
		if s, err := x.client.Status(bounded(t)); err != nil || s.State != "busy" || s.Commands != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		if _, err := x.client.Stop(bounded(t), link.StopRequest{}); err != nil && !errors.Is(err, link.ErrNone) {
			t.Errorf("an explicit stop: %v", err)
		}
		if err := x.end(); err != nil {
			t.Fatal(err)
		}
	})
}
