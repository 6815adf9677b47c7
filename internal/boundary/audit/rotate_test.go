package audit

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// read reads the log at path to its end.
func read(t *testing.T, path string) (ds []Decision) {
	t.Helper()
	for d, err := range Read(t.Context(), path, nil) {
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, d)
	}
	return ds
}

func files(t *testing.T, path string) (names []string) {
	t.Helper()
	es, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

func small(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Bytes, l.Window = 100<<10, time.Hour
	l.day = time.Now().Add(time.Hour) // as if the budget were that of a large log
	return l
}

func about(i int) Decision {
	return Decision{Schema: Schema, Count: 1, Sandbox: "t", Phase: "runtime", Kind: Request, Verdict: Allow, Host: fmt.Sprintf("%d.example", i%50), Port: 443,
		Method: "GET", Path: fmt.Sprint("/", i), Why: "allowed", Credential: map[bool]string{true: "github"}[i%50 == 7]}
}

// A log takes a bounded part of the disk, and of what left the sandbox every
// destination and every use of a credential stays in it, with how often.
func TestALargeLogIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	l := small(t, path)
	const n = 20000
	for i := range n {
		d := about(i)
		d.Time = time.Unix(int64(i), 0).UTC()
		l.mu.Lock()
		l.line(d) // without budgets
		l.mu.Unlock()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fold(path, Kept, func() bool { return false }); err != nil { // the last may have been told to end
		t.Fatal(err)
	}
	names := files(t, path)
	if len(names) != 2+Kept || !slices.Contains(names, "policy.jsonl") || !slices.ContainsFunc(names, func(s string) bool { return strings.HasSuffix(s, ".sum") }) {
		t.Errorf("the files are %q", names)
	}
	size := int64(0)
	for _, name := range names {
		fi, err := os.Stat(filepath.Join(filepath.Dir(path), name))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, fi.Mode())
		}
		size += fi.Size()
	}
	if size > 6*100<<10 {
		t.Errorf("the log has %d bytes", size)
	}
	ds := read(t, path)
	if total(ds) != n {
		t.Errorf("%d decisions are counted, want %d", total(ds), n)
	}
	hosts, presented := map[string]int{}, 0
	for i, d := range ds {
		hosts[d.Host] += d.Count
		if d.Credential != "" {
			presented += d.Count
		}
		if i > 0 && d.Time.Before(ds[i-1].Time) {
			t.Fatalf("line %d is older than that before it", i)
		}
	}
	if len(hosts) != 50 || presented != n/50 || slices.Max(slices.Collect(maps.Values(hosts))) != n/50 {
		t.Errorf("%d hosts, %d with a credential: %v", len(hosts), presented, hosts)
	}
	if last := ds[len(ds)-1]; last.Path != fmt.Sprint("/", n-1) {
		t.Errorf("the last is %+v", last)
	}
}

func TestReadFollowsThroughTheRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	const n = 5000 // a megabyte: ten files
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		l := small(t, path)
		defer l.Close()
		for i := range n {
			l.mu.Lock()
			l.line(about(i))
			l.mu.Unlock()
			if i%100 == 0 {
				select { // so that the reader is not left behind by more than is kept
				case turn <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	writing, next, waited := true, 0, 0
	for d, err := range Read(ctx, path, func() bool {
		waited++
		if _, ok := <-turn; !ok {
			was := writing
			writing = false
			return was
		}
		runtime.Gosched()
		return true
	}) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Path != fmt.Sprint("/", next) {
			t.Fatalf("decision %d is %+v", next, d)
		}
		next++
	}
	if next != n || waited < 2 {
		t.Errorf("%d of %d were read, with %d waits", next, n, waited)
	}
}

// A process that is killed while it folds leaves no decision out and counts none
// twice.
func TestFoldingThatWasKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.jsonl")
	put := func(name string, from, to int) {
		var b bytes.Buffer
		l := &Log{W: &b, Window: time.Hour}
		for i := from; i < to; i++ {
			l.Write(about(i))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 7 {
		put(fmt.Sprintf("policy.jsonl.%d", i+1), 10*i, 10*i+10)
	}
	put("policy.jsonl", 70, 80)
	put("policy.jsonl.sum", 0, 5) // that was not ended
	put("policy.jsonl.new", 0, 0) // a rotation, neither
	put("policy.jsonl.01", 0, 10) // somebody else's
	if ds := read(t, path); total(ds) != 80 {
		t.Fatalf("%d decisions before", total(ds))
	}
	if err := fold(path, Kept, func() bool { return true }); err == nil {
		t.Fatal("folded to the end")
	}
	if ds := read(t, path); total(ds) != 80 {
		t.Fatalf("%d decisions after a fold that was stopped", total(ds))
	}
	first, err := os.ReadFile(filepath.Join(dir, "policy.jsonl.2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := fold(path, Kept, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	// Killed after the sum had its name and before the rest was removed.
	if err := os.WriteFile(filepath.Join(dir, "policy.jsonl.2"), first, 0o600); err != nil {
		t.Fatal(err)
	}
	if ds := read(t, path); total(ds) != 80 {
		t.Fatalf("%d decisions with what a sum covers left over", total(ds))
	}
	l := small(t, path)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fold(path, Kept, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	if names := files(t, path); slices.Contains(names, "policy.jsonl.2") || slices.Contains(names, "policy.jsonl.sum") || !slices.Contains(names, "policy.jsonl.3.sum") {
		t.Errorf("left: %q", names)
	}
}

func TestASumIsBounded(t *testing.T) {
	s := sums{at: map[key]*Decision{}}
	const n = 40000
	for i := range n {
		s.count(Decision{Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Count: 1})
		s.count(Decision{Kind: Connect, Verdict: Allow, Host: fmt.Sprintf("%d.example", i), Count: 1})
	}
	s.count(Decision{Kind: Request, Verdict: Allow, Host: "last.example", Credential: "c", Count: 3})
	sum := 0
	for _, d := range s.order {
		sum += d.Count
	}
	if len(s.order) != maxRefused+maxReached+3 || sum != 2*n+3 {
		t.Errorf("%d lines that count %d", len(s.order), sum)
	}
	if last := s.order[len(s.order)-1]; last.Credential != "c" || last.Host != "last.example" {
		t.Errorf("%+v", last)
	}
}

// A file that cannot be put aside goes on growing, and nothing is lost.
func TestAFileThatCannotBePutAsideGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	l := small(t, path)
	// Nothing can be made in the place of the new file.
	if err := os.MkdirAll(filepath.Join(path+".new", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		l.mu.Lock()
		l.line(about(i))
		l.mu.Unlock()
	}
	if err := l.Failing(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		l.mu.Lock()
		l.line(about(1000 + i))
		l.mu.Unlock()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if names := files(t, path); !slices.Contains(names, "policy.jsonl.1") {
		t.Errorf("the files are %q", names)
	}
	if ds := read(t, path); total(ds) != 1200 {
		t.Errorf("%d decisions", total(ds))
	}
}

func BenchmarkWrite(b *testing.B) {
	for name, decision := range map[string]func(i int) Decision{
		"same":      func(int) Decision { return about(7) },
		"different": about,
		"refused": func(i int) Decision {
			return Decision{Sandbox: "t", Kind: DNS, Verdict: Deny, Host: fmt.Sprintf("%d.example", i), Why: "no rule"}
		},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := Open(filepath.Join(b.TempDir(), "policy.jsonl"))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.Write(decision(i))
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// Whatever has the name of a file of the log, nobody waits for it or follows it.
func TestWhatIsNoFileOfTheLogIsNamed(t *testing.T) {
	makers := map[string]func(name string) error{
		"a pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"a directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"a link":      func(name string) error { return os.Symlink("/etc/passwd", name) },
	}
	for what, make := range makers {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.jsonl")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if l, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("opened %v, %v", l, err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := make(path + ".1"); err != nil {
				t.Fatal(err)
			}
			for i := range Kept {
				if err := os.WriteFile(fmt.Sprint(path, ".", i+2), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l, err := Open(path) // which folds
			if err != nil {
				t.Fatal(err)
			}
			l.Write(about(1))
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			var said error
			for _, err := range Read(t.Context(), path, nil) {
				said = err
			}
			if said == nil || !strings.Contains(said.Error(), path+".1") {
				t.Errorf("reading says %v", said)
			}
		})
	}
}
