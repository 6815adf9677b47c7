package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lines decodes what was written and fails on anything that is not one whole
// decision per line.
func lines(t *testing.T, b []byte) []Decision {
	t.Helper()
	var ds []Decision
	for _, l := range bytes.SplitAfter(b, []byte("\n")) {
		if len(l) == 0 {
			continue
		}
		var d Decision
		if err := json.Unmarshal(l, &d); err != nil || l[len(l)-1] != '\n' {
			t.Fatalf("line %q: %v", l, err)
		}
		if d.Schema != Schema || d.Count < 1 || d.Time.IsZero() || d.Time.Location() != time.UTC {
			t.Errorf("line %q lacks something", l)
		}
		if len(l) > 4096 {
			t.Errorf("a line of %d bytes", len(l))
		}
		ds = append(ds, d)
	}
	return ds
}

func total(ds []Decision) (n int) {
	for _, d := range ds {
		n += d.Count
	}
	return n
}

func TestRepeatsAreFoldedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := &Log{W: &b}
		written := func() []Decision { l.mu.Lock(); defer l.mu.Unlock(); return lines(t, b.Bytes()) }
		deny := Decision{Sandbox: "s", Phase: "runtime", Kind: Connect, Verdict: Deny, Host: "a.example", Port: 80, Why: "no rule"}
		other := deny
		other.Port = 81
		for range 100 {
			l.Write(deny)
		}
		l.Write(other)
		if ds := written(); len(ds) != 2 || total(ds) != 2 {
			t.Fatalf("at once: %+v", ds)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ds := written(); len(ds) != 3 || total(ds) != 101 || ds[2].Count != 99 {
			t.Fatalf("after the window: %+v", ds)
		}
		// A new window begins with a line at once, and Close ends it.
		l.Write(deny)
		l.Write(deny)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if ds := written(); len(ds) != 5 || total(ds) != 103 {
			t.Fatalf("after Close: %+v", ds)
		}
		l.Write(deny)
		if ds := written(); len(ds) != 5 {
			t.Error("written after Close")
		}
	})
}

func TestAllowancesGetLinesOfTheirOwn(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b, Window: time.Hour}
	for range 100 {
		l.Write(Decision{Kind: Connect, Verdict: Allow, Host: "a.example", Why: "allowed"})
	}
	l.Close()
	if ds := lines(t, b.Bytes()); len(ds) != freeAllows+1 || total(ds) != 100 {
		t.Errorf("%d lines that count %d, want %d and 100", len(ds), total(ds), freeAllows+1)
	}
}

func TestTooManyDifferentDecisionsAreCounted(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b, Window: time.Hour, PerWindow: 10}
	for i := range 1000 {
		l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Why: "no rule"})
		l.Write(Decision{Kind: Connect, Verdict: Deny, Host: "same.example", Why: "no rule"})
	}
	l.Close()
	ds := lines(t, b.Bytes())
	if len(ds) != 12 || total(ds) != 2000 {
		t.Errorf("%d lines that count %d, want 12 and 2000", len(ds), total(ds))
	}
	last := ds[10:]
	if last[0].Kind != Overflow {
		last[0], last[1] = last[1], last[0]
	}
	if last[0].Kind != Overflow || last[0].Protocol != "dns" || last[0].Count != 991 || last[1].Count != 999 {
		t.Errorf("the last lines are %+v", last)
	}
}

// A sandbox that is refused for weeks must not fill the disk with it, and still
// nothing goes uncounted.
func TestALongLogGrowsSlowly(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b, Window: time.Hour, PerWindow: 1000, Held: Ample - 1000}
	for i := range 5000 {
		l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Why: "no rule"})
		l.Write(Decision{Kind: Connect, Verdict: Allow, Host: "same.example", Why: "allowed"})
	}
	l.Close()
	ds := lines(t, b.Bytes())
	if len(ds) > 20 || total(ds) != 10000 {
		t.Errorf("%d lines that count %d, want few that count 10000", len(ds), total(ds))
	}
}

func TestLinesAreBoundedAndWhole(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b}
	l.Write(Decision{Kind: DNS, Verdict: Deny, Host: strings.Repeat("\x00\"\n", 1000), Why: strings.Repeat("é\xff", 1000), Rule: strings.Repeat("<", 5000)})
	l.Close()
	if ds := lines(t, b.Bytes()); len(ds) != 1 || !strings.HasPrefix(ds[0].Host, "\x00\"\n") {
		t.Errorf("%+v", ds)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestCloseTellsThatTheLogIsBroken(t *testing.T) {
	l := &Log{W: broken{}}
	l.Write(Decision{Kind: DNS, Verdict: Deny})
	if err := l.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close = %v", err)
	}
}

func TestFileOnlyGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	for i := range 3 {
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for j := range 25 {
					l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.%d.example", w, j)})
				}
			})
		}
		wg.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(lines(t, b)); n != 100*(i+1) {
			t.Errorf("%d lines after %d times", n, i+1)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if _, err := Open(filepath.Join(path, "no")); err == nil {
		t.Error("Open below a file succeeded")
	}
}
