package keeper

import (
	"errors"
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
	w, dir, p := newWorld(), t.TempDir(), testPlan()
	p.IdleMillis = 1
	x := w.live(t, dir, p, false, nil)
	for range 200 {
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
	}
	if err := x.end(); err != nil {
		t.Fatal(err)
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
