package state_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func open(t *testing.T) *state.Store {
	t.Helper()
	s, err := state.Open(filepath.Join(t.TempDir(), "sandboxes"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "T", "0", "a.b_c-d", strings.Repeat("x", sandbox.MaxName)} {
		if err := state.ValidName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "-x", "_x", ".x", "a/b", "a b", "ä", "a\n", "a\x00", strings.Repeat("x", sandbox.MaxName+1)} {
		if err := state.ValidName(bad); !errors.Is(err, kiterr.ErrRefused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", bad, err)
		}
		s := open(t)
		if _, _, err := s.Create(bad, "test"); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Create(%q) = %v", bad, err)
		}
		if _, err := s.Sandbox(bad); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Sandbox(%q) = %v", bad, err)
		}
	}
}

func TestASandboxComesAndGoes(t *testing.T) {
	s := open(t)
	if _, err := s.Sandbox("t"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Sandbox before Create = %v", err)
	}
	sb := mustCreate(t, s, "t")
	if _, _, err := s.Create("t", "test"); !errors.Is(err, kiterr.ErrExists) {
		t.Errorf("second Create = %v", err)
	}
	if st, _ := os.Stat(sb.Dir()); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
	p := plan.Plan{Version: plan.Version, Name: "t", ID: state.NewID(), Hooks: []plan.Hook{{Argv: []string{"a", ""}}}, Surface: []byte(`{"network":[]}`)}
	if err := sb.Write("plan.json", p); err != nil {
		t.Fatal(err)
	}
	var got plan.Plan
	if err := sb.Read("plan.json", plan.Version, &got); err != nil || got.ID != p.ID || len(got.Hooks) != 1 || string(got.Surface) == "" {
		t.Errorf("Read = %+v, %v", got, err)
	}
	if names, err := s.List(); err != nil || !slices.Equal(names, []string{"t"}) {
		t.Errorf("List = %v, %v", names, err)
	}
	for range 2 {
		if err := sb.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := s.List(); err != nil || len(names) != 0 {
		t.Errorf("List after Remove = %v, %v", names, err)
	}
	if es, _ := os.ReadDir(filepath.Dir(sb.Dir())); len(es) != 0 {
		t.Errorf("%v left behind", es)
	}
}

func TestSweepDeletesWhatTheKilledLeft(t *testing.T) {
	s := open(t)
	sb := mustCreate(t, s, "t")
	parent := filepath.Dir(sb.Dir())
	old, fresh := sb.Path(".tmp-plan.json-1"), sb.Path(".tmp-plan.json-2")
	half := filepath.Join(parent, ".tmp-rm-x-abc")
	for _, p := range []string{old, fresh, sb.Path("plan.json"), filepath.Join(half, "keeper.log")} {
		os.MkdirAll(filepath.Dir(p), 0o700)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-2 * time.Hour)
	for _, p := range []string{old, sb.Path("plan.json")} {
		if err := os.Chtimes(p, then, then); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(time.Hour); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{old: false, half: false, fresh: true, sb.Path("plan.json"): true} {
		if _, err := os.Stat(p); (err == nil) != want {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestReadRefusesWhatItDoesNotKnow(t *testing.T) {
	sb := mustCreate(t, open(t), "t")
	type doc struct {
		Version int    `json:"version"`
		A       string `json:"a"`
	}
	for text, want := range map[string]string{
		`{"version":2,"a":"x"}`:         "has version 2, this kitbox reads version 1",
		`{"a":"x"}`:                     "no version",
		`{"version":1,"a":"x","b":1}`:   "b",
		`{"version":1,"A":"x"}`:         "A",
		`{"version":1,"a":"x"`:          "not a JSON document",
		`{"version":1,"a":"x","a":"y"}`: "duplicate",
		``:                              "not a JSON document",
	} {
		if err := os.WriteFile(sb.Path("d.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sb.Read("d.json", 1, new(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%s) = %v, want %q", text, err, want)
		}
	}
	if err := sb.Read("none.json", 1, new(doc)); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Read of nothing = %v", err)
	}
	if err := sb.Write("d.json", doc{}); err == nil {
		t.Error("a document without a version was written")
	}
}

func TestLockTellsWhoHasIt(t *testing.T) {
	s := open(t)
	sb, l, err := s.Create("t", "kitbox stop")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sb.Lock(ctx, "kitbox rm")
	if err == nil || !strings.Contains(err.Error(), "sandbox t is in use by pid") || !strings.Contains(err.Error(), "(kitbox stop)") {
		t.Errorf("Lock = %v", err)
	}
	if _, err := s.List(); err != nil { // a listing does not wait
		t.Error(err)
	}
	// Whoever waited for a sandbox that was removed and made again must not
	// think that it holds the new one's lock.
	got := make(chan error)
	go func() {
		l, err := sb.Lock(t.Context(), "waiter")
		if err == nil {
			defer l.Unlock()
			if !l.Guards(sb.Path("lock")) {
				err = errors.New("the lock guards nothing")
			}
		}
		got <- err
	}()
	if err := sb.Remove(); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, "t")
	l.Unlock()
	if err := <-got; err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Lock after removal = %v", err)
	}
}

func TestIDRangesAreUniqueAndStable(t *testing.T) {
	s := open(t)
	seen := map[uint32]string{}
	for i := range 50 {
		id := fmt.Sprint("id", i)
		m, err := s.AllocateIDs(t.Context(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		if m.Size != 65536 || m.Base%65536 != 0 || m.Base < 0x70000000 || m.Base > 0x7fff0000-65536 {
			t.Errorf("range %#x+%d", m.Base, m.Size)
		}
		if other, ok := seen[m.Base]; ok {
			t.Errorf("%s and %s share %#x", id, other, m.Base)
		}
		seen[m.Base] = id
		if again, err := s.AllocateIDs(t.Context(), id, false); err != nil || again != m {
			t.Errorf("again: %v, %v", again, err)
		}
	}
	for range 2 {
		if err := s.ReleaseIDs(t.Context(), "id0"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIDRangesRunOut(t *testing.T) {
	s := open(t)
	text := `{"version":1,"base":{`
	for i := range 0xfff {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(`"x%d":%d`, i, 0x70000000+i*65536)
	}
	dir := filepath.Dir(mustCreate(t, s, "t").Dir())
	if err := os.WriteFile(filepath.Join(dir, ".ids.json"), []byte(text+"}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AllocateIDs(t.Context(), "one-more", false); !errors.Is(err, kiterr.ErrUnavailable) {
		t.Errorf("AllocateIDs = %v", err)
	}
	if err := s.ReleaseIDs(t.Context(), "x77"); err != nil {
		t.Fatal(err)
	}
	if m, err := s.AllocateIDs(t.Context(), "one-more", false); err != nil || m.Base != 0x70000000+77*65536 {
		t.Errorf("AllocateIDs = %#x, %v", m.Base, err)
	}
}

func mustCreate(t *testing.T, s *state.Store, name string) *state.Sandbox {
	t.Helper()
	sb, l, err := s.Create(name, "test")
	if err != nil {
		t.Fatal(err)
	}
	l.Unlock()
	return sb
}

// A sandbox is never seen without its maker's lock, and nobody who loses the race for
// a name touches what is the winner's.
func TestANameThatManyWantIsOneMakersAtATime(t *testing.T) {
	s := open(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { // makes it and works on it
			for range 100 {
				sb, l, err := s.Create("t", "create")
				if errors.Is(err, kiterr.ErrExists) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(sb.Path("mine"), nil, 0o600); err != nil {
					t.Errorf("its maker: %v", err)
				}
				if !l.Guards(sb.Path("lock")) {
					t.Error("the directory is not the maker's any more")
				}
				l.Unlock()
			}
		})
		wg.Go(func() { // removes it
			for range 100 {
				sb, err := s.Sandbox("t")
				if err != nil {
					continue
				}
				l, err := sb.Lock(t.Context(), "rm")
				if err != nil {
					if !errors.Is(err, kiterr.ErrNotFound) {
						t.Error(err)
					}
					continue
				}
				if _, err := os.Stat(sb.Path("mine")); err != nil {
					t.Errorf("locked while it was being made: %v", err)
				}
				if err := sb.Remove(); err != nil {
					t.Error(err)
				}
				l.Unlock()
			}
		})
		wg.Go(func() { // a creation on the way sweeps
			for range 100 {
				if err := s.Sweep(time.Hour); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if sb, err := s.Sandbox("t"); err == nil {
		if err := sb.Remove(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(mustCreate(t, s, "t").Dir())); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

type record struct {
	Version int    `json:"version"`
	N       int    `json:"n"`
	Pad     string `json:"pad"`
}

// TestMain lets the test binary be the process that is killed: it writes a
// document and a journal line for each number and says so afterwards.
func TestMain(m *testing.M) {
	dir := os.Getenv("STATE_TEST_WRITER")
	if dir == "" {
		os.Exit(m.Run())
	}
	s, err := state.Open(dir)
	if err != nil {
		panic(err)
	}
	sb, err := s.Sandbox("t")
	if err != nil {
		panic(err)
	}
	l, err := sb.Lock(context.Background(), "writer")
	if err != nil {
		panic(err)
	}
	defer l.Unlock()
	var last record
	if err := sb.Read("doc.json", 1, &last); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		panic(err)
	}
	for n := last.N + 1; ; n++ {
		r := record{Version: 1, N: n, Pad: strings.Repeat("x", n%7*5000)}
		line, err := json.Marshal(r)
		if err == nil {
			err = durable.AppendLine(sb.Path("journal.jsonl"), line)
		}
		if err != nil {
			panic(err)
		}
		if err := sb.Write("doc.json", r); err != nil {
			panic(err)
		}
		if _, err := s.AllocateIDs(context.Background(), fmt.Sprint("id", n%5), false); err != nil {
			panic(err)
		}
		if n%3 == 0 {
			if err := s.ReleaseIDs(context.Background(), fmt.Sprint("id", n%5)); err != nil {
				panic(err)
			}
		}
		fmt.Println(n)
	}
}

// A writer is killed many times, each time at another point. What it had said
// is there, whatever it was doing is whole, and the next writer goes on.
func TestKillNineLeavesWholeFiles(t *testing.T) {
	s := open(t)
	sb := mustCreate(t, s, "t")
	dir := filepath.Dir(sb.Dir())
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	said := 0
	for round := range rounds {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), "STATE_TEST_WRITER="+dir)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 1 + rand.IntN(6) {
			if !lines.Scan() {
				t.Fatalf("round %d: the writer ended by itself", round)
			}
			fmt.Sscan(lines.Text(), &said)
		}
		for range rand.IntN(200_000) { // some point of the next write; no clock is that fine
		}
		cmd.Process.Kill()
		for lines.Scan() {
			fmt.Sscan(lines.Text(), &said)
		}
		cmd.Wait()

		var r record
		if err := sb.Read("doc.json", 1, &r); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if r.N < said || r.N > said+1 || len(r.Pad) != r.N%7*5000 {
			t.Fatalf("round %d: document %d with %d bytes, the writer had said %d", round, r.N, len(r.Pad), said)
		}
		ls, err := durable.Lines(sb.Path("journal.jsonl"))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var last record
		for _, l := range ls {
			if err := json.Unmarshal(l, &last); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if n := last.N; n < r.N || n > r.N+1 {
			t.Fatalf("round %d: journal ends with %d, document is %d", round, n, r.N)
		}
		said = r.N
		ctx, cancel := context.WithCancel(t.Context())
		l, err := sb.Lock(ctx, "test") // the dead do not hold locks
		cancel()
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		l.Unlock()
		if _, err := s.AllocateIDs(t.Context(), "another", false); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// What a power cut ends anyway is not written as if it had to survive one, and
// counts for nothing after it.
func TestVolatileIDRangesEndWithTheRunOfTheKernel(t *testing.T) {
	s := open(t)
	lasting, err := s.AllocateIDs(t.Context(), "lasting", false)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(mustCreate(t, s, "t").Dir())
	before, err := os.ReadFile(filepath.Join(dir, ".ids.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]bool{lasting.Base: true}
	for i := range 50 {
		m, err := s.AllocateIDs(t.Context(), fmt.Sprint("v", i), true)
		if err != nil {
			t.Fatal(err)
		}
		if seen[m.Base] {
			t.Errorf("v%d has %#x, which another has", i, m.Base)
		}
		seen[m.Base] = true
		for _, volatile := range []bool{true, false} {
			if again, err := s.AllocateIDs(t.Context(), fmt.Sprint("v", i), volatile); err != nil || again != m {
				t.Errorf("again: %v, %v", again, err)
			}
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, ".ids.json")); err != nil || string(after) != string(before) {
		t.Errorf("the lasting record was written, %v: %s", err, after)
	}
	// A power cut may tear the record, or bring back one of another boot.
	passing := filepath.Join(dir, ".ids-volatile.json")
	b, err := os.ReadFile(passing)
	if err != nil {
		t.Fatal(err)
	}
	for name, left := range map[string]string{
		"torn": string(b[:len(b)/2]), "empty": "",
		"of another boot": strings.Replace(string(b), `"boot": "`, `"boot": "x`, 1),
	} {
		if err := os.WriteFile(passing, []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AllocateIDs(t.Context(), "new", true); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := os.ReadFile(passing)
		if err != nil || strings.Contains(string(got), `"v1"`) || !strings.Contains(string(got), `"new"`) {
			t.Errorf("%s: the record is %s, %v", name, got, err)
		}
	}
	// One that was killed while it wrote leaves a file, which the next takes away.
	if err := os.WriteFile(filepath.Join(dir, durable.TempPrefix+".ids-volatile.json"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseIDs(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, durable.TempPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if got, err := os.ReadFile(passing); err != nil || strings.Contains(string(got), "new") {
		t.Errorf("after the release the record is %s, %v", got, err)
	}
	if m, err := s.AllocateIDs(t.Context(), "lasting", false); err != nil || m != lasting {
		t.Errorf("the lasting range is %v, %v; was %v", m, err, lasting)
	}
}

// What cannot be read may name sandboxes that run.
func TestARecordOfVolatileIDRangesThatCannotBeReadGivesNothingAway(t *testing.T) {
	s := open(t)
	if _, err := s.AllocateIDs(t.Context(), "v", true); err != nil {
		t.Fatal(err)
	}
	passing := filepath.Join(filepath.Dir(mustCreate(t, s, "t").Dir()), ".ids-volatile.json")
	b, err := os.ReadFile(passing)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(b), `"version": 1`, `"version": 2`, 1)
	if newer == string(b) {
		t.Fatalf("the record is %s", b)
	}
	for name, spoil := range map[string]func() error{
		"of a newer kitbox": func() error { return os.WriteFile(passing, []byte(newer), 0o600) },
		"unreadable":        func() error { return errors.Join(os.RemoveAll(passing), os.Mkdir(passing, 0o700)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		for _, volatile := range []bool{true, false} {
			if m, err := s.AllocateIDs(t.Context(), "new", volatile); err == nil || !strings.Contains(err.Error(), passing) {
				t.Errorf("%s: a range is given out: %v, %v", name, m, err)
			}
		}
		if name == "of a newer kitbox" {
			if got, err := os.ReadFile(passing); err != nil || string(got) != newer {
				t.Errorf("the record became %s, %v", got, err)
			}
		}
		_ = os.Remove(passing)
	}
}
