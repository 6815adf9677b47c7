package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/store/state"
)

// What is removed may be what the disk is full of.
func TestASandboxCanBeRemovedFromAFullDisk(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	for name, log := range map[string]string{"its logs make room": "what a keeper said\n", "nothing makes room": ""} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k,mode=700"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
			s, err := state.Open(filepath.Join(disk, "sandboxes"))
			if err != nil {
				t.Fatal(err)
			}
			sb, l, err := s.Create("t", "test")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Unlock()
			w := journal.Writer{Dir: sb.Dir()}
			for _, p := range []journal.Phase{journal.Creating, journal.InstallDone, journal.Stopped} {
				if err := w.Append(p, ""); err != nil {
					t.Fatal(err)
				}
			}
			if log != "" {
				if err := os.WriteFile(sb.Path(link.LogName), []byte(log), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// To the end of its page, so that an entry needs another.
			f, err := os.OpenFile(sb.Path(journal.Name), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(bytes.Repeat([]byte{'\n'}, os.Getpagesize()-int(st.Size()))); err != nil {
				t.Fatal(err)
			}
			filler, err := os.Create(filepath.Join(disk, "filler"))
			if err != nil {
				t.Fatal(err)
			}
			defer filler.Close()
			for b := make([]byte, 512); err == nil; {
				_, err = filler.Write(b)
			}
			if err := w.Append(journal.Stopped, ""); err == nil {
				t.Fatal("the disk is not full")
			}

			es, err := journal.Read(sb.Dir())
			if err != nil {
				t.Fatal(err)
			}
			if err := (&box{sb: sb}).noReturn(es); err != nil {
				t.Error(err)
			}
			es, err = journal.Read(sb.Dir())
			if err != nil || (journal.Last(es) == journal.Removing) != (log != "") {
				t.Errorf("the journal ends in %s, %v", journal.Last(es), err)
			}
		})
	}
}
