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
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
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

func TestTooManyDifferentRefusalsAreCounted(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b, Window: time.Hour, PerWindow: 10}
	for i := range 1000 {
		l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Why: "no rule"})
		l.Write(Decision{Kind: Connect, Verdict: Deny, Host: "same.example", Why: "no rule"})
	}
	l.Close()
	ds := lines(t, b.Bytes())
	if total(ds) != 2000 {
		t.Errorf("%d decisions are counted", total(ds))
	}
	// Ten one by one, one more destination on a line of its own, and the rest.
	if len(ds) != 13 {
		t.Fatalf("%d lines", len(ds))
	}
	if d := ds[10]; d.Kind != DNS || d.Host != "9.example" {
		t.Errorf("one destination more: %+v", d)
	}
	var over, again bool
	for _, d := range ds[11:] {
		over = over || d.Kind == Overflow && d.Protocol == "dns" && d.Count == 990
		again = again || d.Host == "same.example" && d.Count == 999
	}
	if !over || !again {
		t.Errorf("the last lines are %+v", ds[11:])
	}
}

// What a sandbox is refused, at whatever rate, hides nothing that leaves it.
func TestRefusalsHideNothing(t *testing.T) {
	for name, held := range map[string]int{"a new log": 0, "a day in which much was refused": 10000} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			l := &Log{W: &b, Window: time.Hour, Bytes: 1 << 20}
			for i := range held {
				l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Why: strings.Repeat("x", 200)})
				if i%1000 == 999 {
					l.Flush()
				}
			}
			for i := range 5000 {
				l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.flood.example", i), Why: "no rule"})
			}
			before := b.Len()
			l.Write(Decision{Kind: Request, Verdict: Allow, Host: "api.example", Method: "POST", Path: "/leak", Credential: "github"})
			l.Write(Decision{Kind: Connect, Verdict: Failed, Host: "failed.example"})
			l.Write(Decision{Kind: Cut, Verdict: Deny, Host: "cut.example"})
			ds := lines(t, b.Bytes()[before:])
			if len(ds) != 3 || ds[0].Path != "/leak" || ds[0].Credential != "github" || ds[1].Host != "failed.example" || ds[2].Kind != Cut {
				t.Errorf("written at once: %+v", ds)
			}
			l.Close()
			if got, want := total(lines(t, b.Bytes())), held+5000+3; got != want {
				t.Errorf("%d decisions are counted, want %d", got, want)
			}
		})
	}
}

func TestEveryDestinationThatWasReachedHasALine(t *testing.T) {
	var b bytes.Buffer
	l := &Log{W: &b, Window: time.Hour, PerWindow: 10}
	const paths, hosts = 3000, 2 * maxSeen
	for i := range paths {
		l.Write(Decision{Kind: Request, Verdict: Allow, Host: "registry.example", Method: "GET", Path: fmt.Sprint("/", i), Why: "allowed"})
	}
	for i := range hosts {
		l.Write(Decision{Kind: Connect, Verdict: Allow, Host: fmt.Sprintf("%d.example", i), Why: "allowed"})
	}
	l.Write(Decision{Kind: Request, Verdict: Allow, Host: "registry.example", Method: "GET", Path: "/", Credential: "npm"})
	ds := lines(t, b.Bytes())
	if d := ds[len(ds)-1]; d.Host != "registry.example" || d.Credential != "npm" {
		t.Errorf("the use of a credential: %+v", d)
	}
	l.Close()
	ds = lines(t, b.Bytes())
	if total(ds) != paths+hosts+1 {
		t.Errorf("%d decisions are counted, want %d", total(ds), paths+hosts+1)
	}
	named := map[string]bool{}
	for _, d := range ds {
		if d.Kind == Overflow {
			t.Errorf("%+v", d)
		}
		named[d.Host] = true
	}
	if len(named) != hosts+1 {
		t.Errorf("%d destinations are named, want %d", len(named), hosts+1)
	}
	if len(ds) > hosts+60 {
		t.Errorf("%d lines", len(ds))
	}
}

// However much a sandbox asks for in a day, one by one it gets half of a file for
// what it was refused and half for the rest, and the next day again.
func TestADayHasABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		const size, windows, each = 256 << 10, 40, 500
		l := &Log{W: &b, Bytes: size}
		written := func() int { l.mu.Lock(); defer l.mu.Unlock(); return b.Len() }
		day := func() {
			for i := range windows {
				for j := range each {
					l.Write(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.%d.example", i, j), Why: "no rule"})
					l.Write(Decision{Kind: Request, Verdict: Allow, Host: "same.example", Path: fmt.Sprintf("/%d/%d", i, j), Why: "allowed"})
				}
				time.Sleep(11 * time.Second)
				synctest.Wait()
			}
		}
		day()
		first := written()
		if first < size || first > 2*size {
			t.Errorf("%d bytes in a day", first)
		}
		time.Sleep(24 * time.Hour)
		day()
		if second := written() - first; second < first*9/10 {
			t.Errorf("%d bytes on the next day, %d on the first", second, first)
		}
		l.Close()
		if n := total(lines(t, b.Bytes())); n != 2*2*windows*each {
			t.Errorf("%d decisions are counted", n)
		}
	})
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

// A narrow takes as many bytes as there is room for.
type narrow struct {
	bytes.Buffer
	room int
}

func (n *narrow) Write(p []byte) (int, error) {
	if len(p) <= n.room {
		n.room -= len(p)
		return n.Buffer.Write(p)
	}
	short, _ := n.Buffer.Write(p[:n.room])
	n.room = 0
	return short, syscall.ENOSPC
}

func TestALogThatCannotBeWrittenSaysSo(t *testing.T) {
	w := &narrow{room: 1 << 20}
	l := &Log{W: w, Window: time.Hour}
	deny := Decision{Kind: DNS, Verdict: Deny, Host: "a.example", Why: "no rule"}
	l.Write(deny)
	if err := l.Failing(); err != nil {
		t.Errorf("Failing = %v", err)
	}
	w.room = 10 // not enough for a line
	l.Write(Decision{Kind: DNS, Verdict: Deny, Host: "b.example"})
	if err := l.Failing(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Failing = %v", err)
	}
	for range 3 { // what would be folded is tried as well
		l.Write(deny)
	}
	w.room = 1 << 20
	l.Write(deny)
	if err := l.Failing(); err != nil {
		t.Errorf("Failing = %v with room again", err)
	}
	if err := l.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close = %v", err)
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, w.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	ds := read(t, path)
	if len(ds) != 4 || ds[1].Kind != Overflow || ds[2].Host != "a.example" || ds[3].Kind != Overflow || ds[3].Count != 4 || !strings.Contains(ds[3].Why, "no space left") {
		t.Errorf("%+v", ds)
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

// FuzzLine compares a line with what package json makes of it.
func FuzzLine(f *testing.F) {
	f.Add(int64(0), "a.example", "GET", "/", uint16(443), 1)
	f.Add(int64(1<<62), "", "<&>", "\x00\u2028\xff\"\\é", uint16(0), -1)
	f.Add(int64(1700000000123456789), "sandbox", "\x7f", "/a b", uint16(1), 0)
	f.Fuzz(func(t *testing.T, ns int64, one, two, three string, port uint16, count int) {
		d := Decision{Schema: Schema, Time: time.Unix(ns/1e9, ns%1e9).UTC(), Sandbox: one, Phase: plan.Phase(two), Kind: Kind(three), Verdict: one, Host: two, Port: port,
			Protocol: three, Method: two, Path: three, Rule: one, Source: two, Why: three, Credential: one, Dialled: two, Count: count}
		line, err := appendLine(nil, &d)
		want, other := json.Marshal(d)
		if (err == nil) != (other == nil) || err == nil && string(line) != string(want)+"\n" {
			t.Errorf("%s, %v\n%s, %v", line, err, want, other)
		}
	})
}

func BenchmarkLine(b *testing.B) {
	d := Decision{Schema: Schema, Time: time.Now().UTC(), Sandbox: "one", Phase: plan.Install, Kind: Cut, Verdict: Deny, Host: "www.example.com", Port: 443,
		Protocol: "http", Method: "GET", Path: "/ok/12", Rule: "www.example.com", Source: "kit example.com/a@sha256:0123", Why: "no runtime rule allows it", Count: 1}
	b.Run("ours", func(b *testing.B) {
		var line []byte
		for b.Loop() {
			line, _ = appendLine(line[:0], &d)
		}
	})
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			_, _ = json.Marshal(d)
		}
	})
}
