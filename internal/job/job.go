// Package job keeps commands that run on when whoever asked for them has gone:
// one process for each, a re-execution of kitbox, which holds the session with
// the guest, and three files in the sandbox's state directory.
//
// A job depends on nothing but the sandbox: the end of its keeper does not end it.
// What a job does in the sandbox is package engine's business.
package job

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	recordVersion = 1

	// MaxOutput is how much of a job's output is kept, in bytes: the last of
	// it, at least half as much.
	MaxOutput = 2 << 20

	// maxKept is how many jobs of a sandbox are kept when they have ended.
	maxKept = 100
)

// A Record is what is known of a job.
type Record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Args    []string  `json:"args"`
	PID     int       `json:"pid"` // of the process that holds it, on the host
	Started time.Time `json:"started"`

	Ended    time.Time `json:"ended,omitzero"` // zero while it runs, and when nobody saw its end
	ExitCode int       `json:"exitCode"`
	Signal   string    `json:"signal,omitzero"`
	Error    string    `json:"error,omitzero"` // why no end was seen

	Running bool `json:"-"`
}

// A Dir is the directory of a sandbox's jobs.
type Dir string

func (d Dir) file(id, ext string) string { return filepath.Join(string(d), id+ext) }

// The files of a job.
const (
	recordExt = ".json"
	outExt    = ".out"
	olderExt  = ".out.1" // what was written before
	lockExt   = ".lock"  // held while the job's process lives
)

// newID is short enough to be typed and not in use.
func (d Dir) newID() (string, error) {
	if err := durable.MkdirAll(string(d), 0o700); err != nil {
		return "", err
	}
	for range 100 {
		id := strings.ToLower(rand.Text()[:6])
		f, err := os.OpenFile(d.file(id, lockExt), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return id, f.Close()
	}
	return "", errors.New("no free number for a job")
}

// validID keeps ids from being paths.
func validID(id string) bool {
	return len(id) == 6 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Get returns one job. An unknown one is [kiterr.ErrNotFound].
func (d Dir) Get(id string) (*Record, error) {
	missing := fmt.Errorf("job %s: %w: 'kitbox job ls NAME' shows what there is", id, kiterr.ErrNotFound)
	if !validID(id) {
		return nil, missing
	}
	b, err := os.ReadFile(d.file(id, recordExt))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	r := new(Record)
	if err := json.Unmarshal(b, r); err != nil || r.Version != recordVersion {
		return nil, fmt.Errorf("%s is damaged, or of another kitbox: %w", d.file(id, recordExt), kiterr.ErrUnsupported)
	}
	r.Running = r.Ended.IsZero() && d.held(id)
	if r.Ended.IsZero() && !r.Running && r.Error == "" {
		r.Error = "its process ended before it; what became of it is not known"
	}
	return r, nil
}

// held reports whether the job's process lives.
func (d Dir) held(id string) bool {
	f, err := os.OpenFile(d.file(id, lockExt), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// List returns all jobs, oldest first.
func (d Dir) List() ([]Record, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []Record
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), recordExt)
		if !ok {
			continue
		}
		if r, err := d.Get(id); err == nil {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return a.Started.Compare(b.Started) })
	return out, nil
}

// forget removes the oldest jobs that have ended, of which there are too many.
func (d Dir) forget() {
	rs, err := d.List()
	if err != nil {
		return
	}
	for _, r := range rs[:max(0, len(rs)-maxKept)] {
		if !r.Running {
			d.remove(r.ID)
		}
	}
}

// remove deletes the files of a job, the record last.
func (d Dir) remove(id string) {
	for _, ext := range []string{outExt, olderExt, lockExt, recordExt} {
		_ = os.Remove(d.file(id, ext))
	}
}

func (d Dir) write(r Record) error {
	r.Version = recordVersion
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// One that goes with its sandbox is not written back.
	if _, err := os.Stat(string(d)); err != nil {
		return err
	}
	return durable.WriteFile(d.file(r.ID, recordExt), append(b, '\n'), 0o600)
}

// Stop asks the process of a job to end it.
func (d Dir) Stop(id string) error {
	r, err := d.Get(id)
	if err != nil || !r.Running {
		return err
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !d.held(id) {
		return nil // it ended, and its number may be another's
	}
	return unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
}

// Output writes what is kept of a job's output to w, and goes on until more is
// false.
func (d Dir) Output(id string, w io.Writer, more func() bool) error {
	if _, err := d.Get(id); err != nil {
		return err
	}
	// The file that is written now is opened first: when it becomes the older
	// one meanwhile, nothing is missed and nothing comes twice.
	f, err := os.Open(d.file(id, outExt))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if older, err := os.Open(d.file(id, olderExt)); err == nil {
		same := false
		if f != nil {
			a, aerr := older.Stat()
			b, berr := f.Stat()
			same = aerr == nil && berr == nil && os.SameFile(a, b)
		}
		if !same {
			_, err = io.Copy(w, older)
		}
		older.Close()
		if err != nil {
			return errors.Join(err, closeIf(f))
		}
	}
	for {
		if f != nil {
			if _, err := io.Copy(w, f); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		next, err := os.Open(d.file(id, outExt))
		if err == nil {
			a, aerr := next.Stat()
			if f != nil {
				b, berr := f.Stat()
				if aerr == nil && berr == nil && os.SameFile(a, b) {
					next.Close()
					next = nil
				}
			}
			if next != nil {
				if f != nil {
					_, err = io.Copy(w, f) // what came before it was put away
					f.Close()
				}
				f = next
				if err != nil {
					return errors.Join(err, f.Close())
				}
				continue
			}
		}
		if !more() {
			return closeIf(f)
		}
	}
}

func closeIf(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// A keep is a writer of which the last [MaxOutput] bytes or fewer are kept.
type keep struct {
	dir  Dir
	id   string
	f    *os.File
	size int
}

// Write implements [io.Writer]. A disk that is full loses output and does not end
// the command.
func (k *keep) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if k.f == nil || k.size >= MaxOutput/2 {
			if k.f != nil {
				k.f.Close()
				_ = os.Rename(k.dir.file(k.id, outExt), k.dir.file(k.id, olderExt)) // else it is overwritten
			}
			k.f, _ = os.OpenFile(k.dir.file(k.id, outExt), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
			if k.f == nil {
				return len(b), nil
			}
			k.size = 0
		}
		n := min(len(rest), MaxOutput/2-k.size)
		_, _ = k.f.Write(rest[:n])
		k.size += n
		rest = rest[n:]
	}
	return len(b), nil
}
