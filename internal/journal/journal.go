// Package journal records the life of one sandbox, phase by phase, so that a
// command that finds a sandbox after a crash knows what to continue and what to
// clean up.
//
// It is one JSON object a line, appended to, and rewritten by [Compact] alone. The last
// whole line counts: a line that a crash cut short never happened.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// A Phase is a point in a sandbox's life that a crash can leave it in.
type Phase string

const (
	Creating     Phase = "creating"      // the name is taken, nothing else is certain
	Planned      Phase = "planned"       // plan.json is complete; a machine may or may not exist
	Booting      Phase = "booting"       // a keeper starts the machine
	InstallBegin Phase = "install-begin" // install hooks run, once in a life
	InstallDone  Phase = "install-done"  // they all succeeded; they never run again
	Running      Phase = "running"       // the boot is over, startup hooks included
	Stopping     Phase = "stopping"      // processes are being ended
	Stopped      Phase = "stopped"       // nothing runs, files are kept
	Recreating   Phase = "recreating"    // the writable layer goes and another plan comes; continued by whoever finds it
	Removing     Phase = "removing"      // storage is being deleted; there is no way back
)

// lasting are the phases that have to be known after a power cut, each with what
// came before it. The others say what processes do, and those do not survive one
// either.
var lasting = map[Phase]bool{
	Creating:     true, // or what is kept by id is never given back
	InstallBegin: true, // or hooks that may have run would run again
	InstallDone:  true,
	Recreating:   true,
	Removing:     true,
}

// An Entry is one line.
type Entry struct {
	Time  time.Time `json:"time"`
	Phase Phase     `json:"phase"`
	PID   int       `json:"pid"`           // of the process that wrote it
	Note  string    `json:"note,omitzero"` // for people

	// Volatile is the writer's; see [Volatile].
	Volatile bool `json:"volatile,omitzero"`
}

// Reached is called, when it is set, before and after each entry is written: the
// points where a kill must do no harm. Tests stop processes there; no program sets
// it.
var Reached func(p Phase, written bool)

// Name is the file's name in a sandbox's state directory.
const Name = "journal.jsonl"

// A Writer appends to the journal in Dir. Several processes may append; each
// line is one write. Its methods can be called concurrently.
type Writer struct {
	Dir string

	// Volatile skips fsync. A sandbox that is removed when its creator ends
	// does not outlive a power cut, so its journal need not either.
	Volatile bool
}

// Append records that p begins, or has been reached.
func (w Writer) Append(p Phase, note string) error {
	if Reached != nil {
		Reached(p, false)
		defer Reached(p, true)
	}
	line, err := json.Marshal(Entry{Time: time.Now().UTC(), Phase: p, PID: os.Getpid(), Note: note, Volatile: w.Volatile})
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	name := filepath.Join(w.Dir, Name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", durable.Explain(name, err))
	}
	defer f.Close()
	// A newline in front as well: if the line before was cut short, this one
	// must not be glued to it. Read skips the empty lines.
	if _, err := f.Write(append(append([]byte{'\n'}, line...), '\n')); err != nil {
		return fmt.Errorf("journal: %w", durable.Explain(name, err))
	}
	if w.Volatile || !lasting[p] {
		return nil
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Read returns the entries in dir, oldest first; none if there is no journal.
// Lines that are not whole are left out.
func Read(dir string) ([]Entry, error) {
	b, err := os.ReadFile(filepath.Join(dir, Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var es []Entry
	for line := range bytes.SplitSeq(b, []byte{'\n'}) {
		var e Entry
		if len(line) > 0 && json.Unmarshal(line, &e) == nil && e.Phase != "" {
			es = append(es, e)
		}
	}
	return es, nil
}

// Last returns the phase of the newest entry; empty without entries.
func Last(es []Entry) Phase {
	if len(es) == 0 {
		return ""
	}
	return es[len(es)-1].Phase
}

// Volatile reports whether the sandbox was made to end with the process that made
// it, which is returned.
func Volatile(es []Entry) (creator int, ok bool) {
	if len(es) == 0 || !es[0].Volatile {
		return 0, false
	}
	return es[0].PID, true
}

// Installed reports whether the install hooks have run to their end.
func Installed(es []Entry) bool {
	for _, e := range es {
		if e.Phase == InstallDone {
			return true
		}
	}
	return false
}

// Whole reports whether the sandbox came to be, and neither is to be removed nor
// abandoned.
func Whole(es []Entry) bool {
	return Installed(es) && Last(es) != Removing && !Abandoned(es)
}

// Abandoned reports whether the sandbox was made to end with a command that has
// ended. As long as a keeper lives, that one sees to it.
func Abandoned(es []Entry) bool {
	creator, ok := Volatile(es)
	// A number that was given to another process keeps the sandbox until that
	// ends as well, which is no harm.
	return ok && errors.Is(unix.Kill(creator, 0), unix.ESRCH)
}
