package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/killer"
)

// boots is the directory of a journal that this process, when it is set, writes boot
// after boot into, as keepers do, telling how far it is.
const boots = "KITBOX_TEST_BOOTS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(boots); dir != "" {
		es, err := journal.Read(dir)
		n := 0
		if err == nil && len(es) > 0 {
			n, _ = strconv.Atoi(es[len(es)-1].Note)
		}
		for err == nil {
			if es, err = journal.Read(dir); err == nil {
				err = journal.Compact(dir, es)
			}
			for _, p := range []journal.Phase{journal.Booting, journal.Running, journal.Stopping, journal.Stopped} {
				if err == nil {
					n++
					err = journal.Writer{Dir: dir}.Append(p, strconv.Itoa(n))
					fmt.Println(n)
				}
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func made(t *testing.T, dir string) []journal.Entry {
	t.Helper()
	for _, p := range []journal.Phase{journal.Creating, journal.Planned, journal.Booting, journal.InstallBegin, journal.InstallDone, journal.Running} {
		if err := (journal.Writer{Dir: dir}).Append(p, ""); err != nil {
			t.Fatal(err)
		}
	}
	es, err := journal.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return es
}

func TestALongJournalIsCutDownToWhatCounts(t *testing.T) {
	dir := t.TempDir()
	first := made(t, dir)
	w := journal.Writer{Dir: dir}
	if err := w.Append(journal.Recreating, "the only one"); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		for _, p := range []journal.Phase{journal.Stopped, journal.Booting, journal.Running} {
			if err := w.Append(p, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	before, err := journal.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Compact(dir, before); err != nil {
		t.Fatal(err)
	}
	es, err := journal.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, journal.Name)); err != nil || st.Size() > 32<<10 || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	count := func(p journal.Phase) (n int) {
		for _, e := range es {
			if e.Phase == p {
				n++
			}
		}
		return n
	}
	if es[0] != first[0] || !journal.Installed(es) || !journal.Whole(es) || es[len(es)-1] != before[len(before)-1] ||
		count(journal.InstallBegin) != 1 || count(journal.InstallDone) != 1 || count(journal.Planned) != 1 || count(journal.Recreating) != 1 {
		t.Errorf("what counts is gone: %v", es)
	}
	for i := 1; i < len(es); i++ {
		if es[i].Time.Before(es[i-1].Time) {
			t.Fatalf("out of order: %v", es)
		}
	}
	// It goes on as before, and a short one is left alone.
	if err := w.Append(journal.Stopped, "after"); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, journal.Name)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if es, err = journal.Read(dir); err != nil || es[len(es)-1].Note != "after" {
		t.Fatalf("%v, %v", es[len(es)-1], err)
	}
	if err := journal.Compact(dir, es); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(name); err != nil || string(again) != string(whole) {
		t.Errorf("a short journal was rewritten: %v", err)
	}
}

// A process that boots again and again is killed at any instant, in the middle of a
// compaction too: nothing that was written is lost, but what is old.
func TestAJournalSurvivesAKillWhileItIsCutDown(t *testing.T) {
	dir := t.TempDir()
	first := made(t, dir)
	killer.Victim{Env: boots + "=" + dir, Dir: dir, Name: journal.Name, Lines: 200, Within: 3 * time.Millisecond}.Kill(t, 40, func(line string) {
		said, _ := strconv.Atoi(line)
		es, err := journal.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		last, _ := strconv.Atoi(es[len(es)-1].Note)
		if last < said || last > said+1 || es[0] != first[0] || !journal.Installed(es) || len(es) > 250 {
			t.Fatalf("%d entries up to %d, and %d were said; installed: %v", len(es), last, said, journal.Installed(es))
		}
		for i := 1; i < 50; i++ {
			if n, _ := strconv.Atoi(es[len(es)-1-i].Note); n != last-i {
				t.Fatalf("entry %d is missing", last-i)
			}
		}
	})
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files: %v %v", files, err)
	}
}
