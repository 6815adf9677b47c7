package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestWriteFileReplacesWholeFiles(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "", strings.Repeat("two", 100_000)} {
		if err := durable.WriteFile(p, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(p)
		if err != nil || string(got) != text {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
	if st, _ := os.Stat(p); st.Mode() != 0o640 {
		t.Errorf("mode %v", st.Mode())
	}
	if es, _ := os.ReadDir(filepath.Dir(p)); len(es) != 1 {
		t.Errorf("%v left behind", es)
	}
}

func TestAReaderNeverSeesHalfAWrite(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	a, b := bytes.Repeat([]byte("a"), 50_000), bytes.Repeat([]byte("b"), 70_000)
	if err := durable.WriteFile(p, a, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		defer done.Store(true)
		for i := range 30 {
			if err := durable.WriteFile(p, [][]byte{a, b}[i%2], 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	for !done.Load() {
		got, err := os.ReadFile(p)
		if err != nil || !bytes.Equal(got, a) && !bytes.Equal(got, b) {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
	wg.Wait()
}

func TestJournalLinesStayWhole(t *testing.T) {
	p := filepath.Join(t.TempDir(), "j")
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 25 {
				if err := durable.AppendLine(p, fmt.Appendf(nil, "%d/%d", w, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	lines, err := durable.Lines(p)
	if err != nil || len(lines) != 100 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	next := map[string]int{}
	for _, l := range lines {
		w, i, _ := strings.Cut(string(l), "/")
		if i != fmt.Sprint(next[w]) {
			t.Fatalf("writer %s: line %s, want %d", w, i, next[w])
		}
		next[w]++
	}
	if err := durable.AppendLine(p, []byte("a\nb")); err == nil {
		t.Error("a line with a newline was accepted")
	}
}

func TestATornLastLineIsNotReadAndThenCutOff(t *testing.T) {
	for _, torn := range []string{`{"half":`, strings.Repeat("x", 10_000)} {
		for _, whole := range []string{"", "first\nsecond\n", strings.Repeat("y", 5000) + "\n"} {
			p := filepath.Join(t.TempDir(), "j")
			if err := os.WriteFile(p, []byte(whole+torn), 0o600); err != nil {
				t.Fatal(err)
			}
			before, err := durable.Lines(p)
			if err != nil || len(before) != strings.Count(whole, "\n") {
				t.Fatalf("%d lines, %v", len(before), err)
			}
			if err := durable.AppendLine(p, []byte("next")); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(p); string(got) != whole+"next\n" {
				t.Errorf("journal is %.40q…", got)
			}
		}
	}
	if lines, err := durable.Lines(filepath.Join(t.TempDir(), "none")); lines != nil || err != nil {
		t.Errorf("Lines of nothing = %v, %v", lines, err)
	}
}

func TestLocksExclude(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	for name, acquire := range map[string]func(context.Context, durable.LockMode) (*durable.Lock, error){
		"file": func(ctx context.Context, m durable.LockMode) (*durable.Lock, error) {
			return durable.AcquireLock(ctx, p, m)
		},
		"slot": func(ctx context.Context, m durable.LockMode) (*durable.Lock, error) {
			return durable.AcquireSlot(ctx, p, 7, m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			now, cancel := context.WithCancel(t.Context())
			cancel() // a context that is done tries once
			a, err := acquire(now, durable.Shared)
			if err != nil {
				t.Fatal(err)
			}
			b, err := acquire(now, durable.Shared)
			if err != nil {
				t.Fatal(err)
			}
			var busy *durable.BusyError
			if _, err := acquire(now, durable.Exclusive); !errors.As(err, &busy) || !errors.Is(err, context.Canceled) {
				t.Fatalf("exclusive beside shared = %v", err)
			}
			a.Unlock()
			b.Unlock()
			c, err := acquire(t.Context(), durable.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error)
			go func() {
				d, err := acquire(t.Context(), durable.Shared)
				if err == nil {
					d.Unlock()
				}
				got <- err
			}()
			c.Unlock()
			c.Unlock()
			if err := <-got; err != nil {
				t.Errorf("waiting for the lock: %v", err)
			}
		})
	}
	// Slots of one file are independent.
	a, err := durable.AcquireSlot(t.Context(), p, 1, durable.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Unlock()
	b, err := durable.AcquireSlot(t.Context(), p, 2, durable.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	b.Unlock()
}

func TestBusyNamesALivingHolder(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	l, err := durable.AcquireLock(t.Context(), p, durable.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	l.Sign("kitbox create")
	_, err = durable.AcquireLock(done, p, durable.Exclusive)
	if want := fmt.Sprintf("pid %d (kitbox create)", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v does not name %s", err, want)
	}
	// What a dead process wrote is not believed.
	if err := os.WriteFile(p, []byte("2147483646 kitbox create\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = durable.AcquireLock(done, p, durable.Exclusive); err == nil || strings.Contains(err.Error(), "2147483646") {
		t.Errorf("error %v names a dead process", err)
	}
}

func TestGuardsNoticesAReplacedFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	l, err := durable.AcquireLock(t.Context(), p, durable.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if !l.Guards(p) {
		t.Error("the lock does not guard its own file")
	}
	os.Remove(p)
	if l.Guards(p) {
		t.Error("the lock guards a file that is gone")
	}
	os.WriteFile(p, nil, 0o600)
	if l.Guards(p) {
		t.Error("the lock guards another file")
	}
}

func TestExplainNamesThePathAndTheNextStep(t *testing.T) {
	for errno, advice := range map[unix.Errno]string{
		unix.ENOSPC: "free space", unix.EROFS: "writable", unix.EACCES: "writable", unix.ENOTDIR: "move that file",
	} {
		err := durable.Explain("/home/x/kitbox", &os.PathError{Op: "open", Path: "/home/x/kitbox/.tmp-123", Err: errno})
		text := err.Error()
		if !errors.Is(err, kiterr.ErrUnavailable) || !errors.Is(err, errno) || !strings.Contains(text, advice) ||
			!strings.HasPrefix(text, "/home/x/kitbox: ") || strings.ContainsAny(text, "\n") || strings.Contains(text, ".tmp-") {
			t.Errorf("%v: %q", errno, text)
		}
		if again := durable.Explain("/other", err); again != err {
			t.Errorf("explained twice: %v", again)
		}
	}
	if durable.Explain("/x", nil) != nil {
		t.Error("Explain(nil) is an error")
	}
	if err := durable.Explain("/x", os.ErrNotExist); errors.Is(err, kiterr.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file is %v", err)
	}
}
