package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/journal"
)

func TestALineThatACrashCutShortNeverHappened(t *testing.T) {
	dir := t.TempDir()
	w := journal.Writer{Dir: dir}
	for _, p := range []journal.Phase{journal.Creating, journal.Planned, journal.InstallBegin} {
		if err := w.Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(dir, journal.Name)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(journal.InstallDone, "x"); err != nil {
		t.Fatal(err)
	}
	full, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// Cut the last line at every byte: all but the whole one must read as
	// if it had not been written, and the next line must still be read.
	for n := len(whole); n < len(full)-1; n++ {
		if err := os.WriteFile(name, full[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		es, err := journal.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := journal.Last(es); got != journal.InstallBegin {
			t.Fatalf("cut at %d of %d: last is %q", n, len(full), got)
		}
		if err := w.Append(journal.Stopped, ""); err != nil {
			t.Fatal(err)
		}
		if es, _ = journal.Read(dir); journal.Last(es) != journal.Stopped || journal.Installed(es) {
			t.Fatalf("cut at %d: after the next line last is %q, installed %v", n, journal.Last(es), journal.Installed(es))
		}
	}
}

func TestNoJournalIsNoEntries(t *testing.T) {
	es, err := journal.Read(t.TempDir())
	if err != nil || len(es) != 0 || journal.Last(es) != "" || journal.Installed(es) {
		t.Errorf("Read = %v, %v", es, err)
	}
}

func TestAVolatileJournalNamesItsCreator(t *testing.T) {
	dir := t.TempDir()
	if _, ok := journal.Volatile(nil); ok {
		t.Error("a sandbox that is none is volatile")
	}
	w := journal.Writer{Dir: dir, Volatile: true}
	for _, p := range []journal.Phase{journal.Creating, journal.Planned} {
		if err := w.Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	es, err := journal.Read(dir)
	if pid, ok := journal.Volatile(es); err != nil || !ok || pid != os.Getpid() {
		t.Errorf("%d, %v, %v", pid, ok, err)
	}
	es[0].Volatile = false
	if _, ok := journal.Volatile(es); ok {
		t.Error("only the first entry says so")
	}
}
