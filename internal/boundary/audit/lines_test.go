package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// writes counts them.
type writes struct {
	strings.Builder
	n int
}

func (w *writes) Write(p []byte) (int, error) {
	w.n++
	return w.Builder.Write(p)
}

func cuts(n int) []Decision {
	ds := make([]Decision, n)
	for i := range ds {
		ds[i] = Decision{Time: time.Unix(1, 1).UTC(), Kind: Cut, Phase: plan.Runtime, Verdict: Deny, Host: "a.example", Path: fmt.Sprint("/", i), Why: "no rule"}
	}
	return ds
}

func TestWhatIsDecidedTogetherIsWrittenTogether(t *testing.T) {
	var w writes
	l := &Log{W: &w, Window: time.Hour}
	l.Write()
	if w.n != 0 {
		t.Errorf("nothing was written %d times", w.n)
	}
	ds := cuts(100)
	ds = append(ds, ds[7])
	l.Write(ds...)
	if lines := strings.Count(w.String(), "\n"); w.n != 1 || lines != 100 {
		t.Errorf("%d lines in %d writes", lines, w.n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(w.String(), "\n"); w.n != 2 || lines != 101 {
		t.Errorf("with the repeat %d lines in %d writes", lines, w.n)
	}
	if ds[0].Schema != 0 || ds[0].Count != 0 {
		t.Errorf("the decisions of the caller were changed: %+v", ds[0])
	}
}

// TestABatchIsBounded writes as many at once as nobody should hold in memory.
func TestABatchIsBounded(t *testing.T) {
	var w writes
	l := &Log{W: &w, Window: time.Hour}
	l.Write(cuts(3000)...)
	if least := w.Len() / maxBatch; w.n < least || w.n > least+1 {
		t.Errorf("%d bytes in %d writes", w.Len(), w.n)
	}
	if c := cap(l.batch.text); c > 4*maxBatch {
		t.Errorf("%d bytes are held", c)
	}
}

// TestABatchOfWhichAPartIsWritten has the file system fill up within one.
func TestABatchOfWhichAPartIsWritten(t *testing.T) {
	var w writes
	l := &Log{W: &w, Window: time.Hour}
	four := cuts(4)
	for i := range four {
		four[i].Time = time.Unix(1, 1) // not all are as long
	}
	l.Write(four[0])
	line := w.Len()
	for room := range 4 * line {
		w := &narrow{room: room}
		l := &Log{W: w, Window: time.Hour}
		l.Write(four...)
		if err := l.Failing(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Failing = %v with room for %d bytes", err, room)
		}
		w.room = 1 << 20
		l.Write(Decision{Sandbox: "box", Phase: plan.Install, Kind: DNS, Verdict: Deny, Host: "b.example", Why: "no rule"})
		l.Close()
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, w.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var whole, lost, torn int
		for _, d := range read(t, path) {
			switch {
			case d.Host == "a.example":
				whole++
			case strings.Contains(d.Why, "could not be written"):
				lost += d.Count
				if d.Sandbox != "box" || d.Phase != plan.Install {
					t.Errorf("of what is lost it is said: %+v", d)
				}
			case strings.Contains(d.Why, "not written to its end"):
				torn++
			}
		}
		if torn > 1 || torn > lost || whole+lost != 4 || whole < room/line || whole > room/(line-1) {
			t.Fatalf("with room for %d bytes %d lines are whole, %d are said to be lost and %d are none", room, whole, lost, torn)
		}
	}
}

// TestABatchIsPutAsideInTime writes at once what fills several files.
func TestABatchIsPutAsideInTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Window, l.Bytes = time.Hour, 4096
	l.Write(cuts(60)...)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	live, _, err := parts(path)
	if err != nil || len(live) == 0 {
		t.Fatalf("%v, %v", live, err)
	}
	n := 0
	for _, d := range read(t, path) {
		n += d.Count
	}
	if n != 60 {
		t.Errorf("the log has %d of 60", n)
	}
	for _, p := range live {
		if fi, err := os.Stat(p.path); err != nil || !p.sum && fi.Size() > 4096 {
			t.Errorf("%s: %v, %v", p.path, fi.Size(), err)
		}
	}
}
