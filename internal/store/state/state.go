// Package state keeps what is known of sandboxes: one directory for each, named
// as the user named it, holding small JSON documents, journals and a lock. Every
// document says its version and is replaced whole; every journal has one JSON
// value a line. All of it can be read with cat and jq.
//
// The package knows how, not what: plan.json is internal/plan's, the journals
// belong to the engine and the keeper.
package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Version is the version of the documents written by [Sandbox.Write] for values
// that have none of their own. A reader refuses any other.
const Version = 1

// Dir is the directory of a home in which sandboxes are.
const Dir = "sandboxes"

// LockWait is how long [Sandbox.Lock] waits unless its context ends sooner.
const LockWait = 60 * time.Second

// A Store is a directory of sandboxes. Its methods can be called concurrently
// and by several processes.
type Store struct{ dir string }

// Open makes the directory if need be.
func Open(dir string) (*Store, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Store{dir: dir}, nil
}

// ValidName refuses what cannot name a sandbox; see [sandbox.CheckName].
func ValidName(s string) error {
	if err := sandbox.CheckName(s); err != nil {
		return fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	return nil
}

// NewID returns a fresh opaque id: 16 characters of a-z and 2-7, 80 random bits.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// A Sandbox is the directory of one sandbox.
type Sandbox struct {
	Name string
	dir  string
}

// newPrefix starts the name of a directory that is about to be a sandbox.
const newPrefix = durable.TempPrefix + "new-"

// Create makes the directory of a new sandbox and holds its lock as [Sandbox.Lock]
// does with what; the caller calls Unlock. A name that is taken is
// [kiterr.ErrExists]. The directory survives a power cut once
// [Store.AllocateIDs] has allocated, or [Store.Sync] has returned.
//
// It gets its name with the lock held. If it had it before, whoever came in between
// would take it for the remains of a killed command and remove it, and a third might
// have the name by then: the first two would work on what is the third's.
func (s *Store) Create(name, what string) (*Sandbox, *durable.Lock, error) {
	sb, err := s.at(name)
	if err != nil {
		return nil, nil, err
	}
	tmp := filepath.Join(s.dir, newPrefix+name+"-"+NewID())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, nil, durable.Explain(tmp, err)
	}
	now, cancel := context.WithCancel(context.Background())
	cancel() // nobody else knows of it
	l, err := durable.AcquireLock(now, filepath.Join(tmp, "lock"), durable.Exclusive)
	if err == nil {
		l.Sign(what)
		// Over a directory that holds anything it fails, and all sandboxes hold a lock.
		if err = os.Rename(tmp, sb.dir); err == nil {
			return sb, l, nil
		}
		l.Unlock()
	}
	rerr := durable.RemoveTree(tmp)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil, fmt.Errorf("sandbox %s: %w: 'kitbox attach %s' runs it again; choose another name, or remove it with 'kitbox rm %s'", name, kiterr.ErrExists, name, name)
	}
	return nil, nil, errors.Join(durable.Explain(sb.dir, err), rerr)
}

// Sync makes sandboxes that were created survive a power cut.
func (s *Store) Sync() error { return durable.SyncDir(s.dir) }

// Sandbox returns the sandbox called name. An unknown one is
// [kiterr.ErrNotFound].
func (s *Store) Sandbox(name string) (*Sandbox, error) {
	sb, err := s.at(name)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(sb.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return nil, fmt.Errorf("sandbox %s: %w: 'kitbox ls' shows what there is", name, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, durable.Explain(sb.dir, err)
	}
	return sb, nil
}

func (s *Store) at(name string) (*Sandbox, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	return &Sandbox{Name: name, dir: filepath.Join(s.dir, name)}, nil
}

// List returns the names of all sandboxes, sorted. It takes no lock: a sandbox
// that is being made or removed may or may not be there.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, durable.Explain(s.dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Sweep deletes what killed processes left behind: sandboxes half removed, and
// temporary files, and sandboxes to be, that nobody has touched within grace.
func (s *Store) Sweep(grace time.Duration) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return durable.Explain(s.dir, err)
	}
	limit := time.Now().Add(-grace)
	var errs []error
	for _, e := range entries {
		p := filepath.Join(s.dir, e.Name())
		if strings.HasPrefix(e.Name(), durable.TempPrefix) {
			half := e.IsDir() && !strings.HasPrefix(e.Name(), newPrefix)
			if st, err := e.Info(); err == nil && (half || st.ModTime().Before(limit)) {
				errs = append(errs, durable.Explain(p, durable.RemoveTree(p)))
			}
			continue
		}
		files, _ := filepath.Glob(filepath.Join(p, durable.TempPrefix+"*"))
		for _, f := range files {
			if st, err := os.Lstat(f); err == nil && st.ModTime().Before(limit) {
				errs = append(errs, durable.Explain(f, durable.RemoveTree(f)))
			}
		}
	}
	return errors.Join(errs...)
}

// Dir is the sandbox's directory. Sockets in it must be bound and dialled
// through a descriptor of it: the path may be longer than a socket's may be.
func (sb *Sandbox) Dir() string { return sb.dir }

// Path is the path of one file of the sandbox.
func (sb *Sandbox) Path(file string) string { return filepath.Join(sb.dir, file) }

// Lock excludes other changes to this sandbox. It waits until ctx is done, at
// most [LockWait], and says then who holds it; what names the holder for others
// ("create", "stop"). The caller calls Unlock; the end of its process does too.
// A sandbox that was removed meanwhile is [kiterr.ErrNotFound].
func (sb *Sandbox) Lock(ctx context.Context, what string) (*durable.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, LockWait)
	defer cancel()
	l, err := durable.AcquireLock(ctx, sb.Path("lock"), durable.Exclusive)
	if busy := (*durable.BusyError)(nil); errors.As(err, &busy) {
		holder := busy.Holder
		if holder == "" {
			holder = "another kitbox process"
		}
		return nil, fmt.Errorf("sandbox %s is in use by %s: try again when that is done: %w", sb.Name, holder, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sandbox %s: %w", sb.Name, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	// Between opening and locking, a removal may have moved the directory
	// away: the lock would be on a file that nobody else sees.
	if !l.Guards(sb.Path("lock")) {
		l.Unlock()
		return nil, fmt.Errorf("sandbox %s: %w", sb.Name, kiterr.ErrNotFound)
	}
	l.Sign(what)
	return l, nil
}

// Remove deletes the sandbox's directory. It disappears at once; a kill during
// the deletion leaves only what [Store.Sweep] deletes. Removing it again does
// nothing. The caller holds the lock.
func (sb *Sandbox) Remove() error { return sb.remove(true) }

// RemoveVolatile is Remove for a sandbox that a power cut would have ended too:
// after one it may be back, whole or in part, for the next command to remove.
func (sb *Sandbox) RemoveVolatile() error { return sb.remove(false) }

func (sb *Sandbox) remove(sync bool) error {
	parent := filepath.Dir(sb.dir)
	tmp := filepath.Join(parent, durable.TempPrefix+"rm-"+sb.Name+"-"+NewID())
	err := os.Rename(sb.dir, tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return durable.Explain(sb.dir, err)
	}
	if sync {
		if err := durable.SyncDir(parent); err != nil {
			return err
		}
	}
	return durable.Explain(tmp, durable.RemoveTree(tmp))
}

// Write replaces the document file by the JSON form of v, which must have a
// member "version". On error the old document is untouched.
func (sb *Sandbox) Write(file string, v any) error {
	data, err := json.Marshal(v, json.Deterministic(true), jsontext.WithIndent("\t"))
	if err != nil {
		return fmt.Errorf("%s: %w", sb.Path(file), err)
	}
	if _, err := version(data); err != nil {
		return fmt.Errorf("%s: %w", sb.Path(file), err)
	}
	return durable.WriteFile(sb.Path(file), append(data, '\n'), 0o600)
}

// Read decodes the document file into v. A missing one is [kiterr.ErrNotFound];
// one of another version than want, or with a member that v does not have, is an
// error that says so: guessing what an older or newer kitbox meant could grant
// something.
func (sb *Sandbox) Read(file string, want int, v any) error {
	path := sb.Path(file)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s of sandbox %s: %w", file, sb.Name, kiterr.ErrNotFound)
	}
	if err != nil {
		return durable.Explain(path, err)
	}
	got, err := version(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if got != want {
		return sb.foreign(file, got, want)
	}
	if err := json.Unmarshal(data, v, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Part decodes of the document file what v, a pointer to a structure, has members
// for; version is the one for "version". Otherwise it is like Read.
func (sb *Sandbox) Part(file string, want int, v any, version *int) error {
	path := sb.Path(file)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s of sandbox %s: %w", file, sb.Name, kiterr.ErrNotFound)
	}
	if err != nil {
		return durable.Explain(path, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if *version != want {
		return sb.foreign(file, *version, want)
	}
	return nil
}

func (sb *Sandbox) foreign(file string, got, want int) error {
	return fmt.Errorf("%s has version %d, this kitbox reads version %d: recreate the sandbox, or use the kitbox that made it: %w", sb.Path(file), got, want, kiterr.ErrUnsupported)
}

// version reads a document's version, whatever else it holds.
func version(data []byte) (int, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return 0, fmt.Errorf("not a JSON document: %w", err)
	}
	if head.Version == 0 {
		return 0, errors.New("the document has no version")
	}
	return head.Version, nil
}
