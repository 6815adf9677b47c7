// Package vault keeps the secrets of one kitbox home: each in a file of its own,
// sealed with a key of the home that is kept beside them.
//
// The seal (AES-256-GCM) keeps secrets out of what reads files and does not know
// what they are: backups of some of the directory, search indexes, a grep, a
// listing on a shared screen; and it notices a file that was changed, or put in
// the place of another. It keeps nothing from who can read the key as well, which
// is the owner of the home and root.
//
// A vault knows no Kit. Which secret is whose is said by the [Scope] it is kept
// under; who may use one is decided by who asks.
package vault

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Version is the version of the files. A reader refuses any other.
const Version = 1

// Bounds of what a vault takes.
const (
	maxEntries = 4096
	maxFile    = 512 << 10
	maxService = 128
	maxName    = 4096
)

// The kinds of a [Scope], from the least specific to the most.
const (
	Global  = "global"
	Kit     = "kit"
	Sandbox = "sandbox"
)

// A Scope says whom a secret is for. Its zero value is no scope.
type Scope struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // identity of the Kit, name of the sandbox, or host of the registry; empty for Global
}

func (s Scope) String() string {
	if s.Kind == Global {
		return "all sandboxes"
	}
	return s.Kind + " " + s.Name
}

// The forms of a secret.
const (
	FormValue   = "value"   // the secret itself
	FormCommand = "command" // a command of the host that prints it
	FormOAuth   = "oauth"   // tokens that are refreshed
)

// An Entry is what may be shown of a secret.
type Entry struct {
	Service string    `json:"service"`
	Scope   Scope     `json:"scope"`
	Form    string    `json:"form"`
	Source  string    `json:"source"`           // where it came from, e.g. stdin
	Set     time.Time `json:"set"`              // by the operator
	Changed time.Time `json:"changed,omitzero"` // by kitbox since, e.g. refreshed
	Expires time.Time `json:"expires,omitzero"` // of tokens; zero: not known
}

// A Vault is the secrets in one directory. Its methods can be called
// concurrently, and several processes can use one directory.
type Vault struct {
	dir string

	mu  sync.Mutex
	key []byte // guarded by mu; nil until it is needed
}

// Open returns the vault in dir. It reads and makes nothing.
func Open(dir string) *Vault { return &Vault{dir: dir} }

// file is a sealed secret on disk.
type file struct {
	Version int    `json:"version"`
	Secret  Entry  `json:"secret"`
	Sealed  []byte `json:"sealed"`
}

// ValidService reports whether s can name a service: words of lower case letters
// and digits, joined by hyphens.
func ValidService(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1 && s[i-1] != '-':
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxService
}

func check(service string, s Scope) error {
	switch {
	case !ValidService(service):
		return fmt.Errorf("%q is not a service: use lower case letters, digits and inner hyphens, as in the Kit that asks for it", service)
	case s.Kind != Global && s.Kind != Kit && s.Kind != Sandbox && s.Kind != Registry, (s.Kind == Registry) && service != RegistryService:
		return fmt.Errorf("%q is no scope of a secret", s.Kind)
	case (s.Kind == Global) != (s.Name == ""), len(s.Name) > maxName, strings.ContainsAny(s.Name, "\x00\n"):
		return fmt.Errorf("%q cannot be the name of a scope", s.Name)
	}
	return nil
}

// path is where the secret of service for s is. Names of scopes may hold
// anything, so their hash stands for them.
func (v *Vault) path(service string, s Scope) string {
	return filepath.Join(v.dir, service+s.suffix())
}

// suffix is how the files of secrets for s end.
func (s Scope) suffix() string {
	end := "." + s.Kind
	if s.Name != "" {
		sum := sha256.Sum256([]byte(s.Name))
		end += "-" + hex.EncodeToString(sum[:16])
	}
	return end + suffix
}

const suffix = ".json"

// Put stores a secret in the place of the one there may be. Set is filled in.
func (v *Vault) Put(ctx context.Context, e Entry, s Secret) error {
	if err := check(e.Service, e.Scope); err != nil {
		return err
	}
	l, err := v.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	if es, err := os.ReadDir(v.dir); err == nil && len(es) > maxEntries {
		return fmt.Errorf("%s holds %d secrets, the most it may: remove some: %w", v.dir, maxEntries, kiterr.ErrRefused)
	}
	e.Set = time.Now().UTC().Round(0)
	return v.write(e, s)
}

// Update replaces a secret by what edit makes of it. One that is gone is
// [kiterr.ErrNotFound] and stays gone.
func (v *Vault) Update(ctx context.Context, service string, sc Scope, edit func(*Secret) error) error {
	l, err := v.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	e, s, err := v.Get(service, sc)
	if err != nil {
		return err
	}
	if err := edit(&s); err != nil {
		return err
	}
	e.Changed = time.Now().UTC().Round(0)
	return v.write(e, s)
}

// write seals and stores; the lock is held.
func (v *Vault) write(e Entry, s Secret) error {
	key, err := v.makeKey()
	if err != nil {
		return err
	}
	e.Form, e.Expires = s.form(), time.Time{}
	if s.Tokens != nil {
		e.Expires = s.Tokens.Expires
	}
	sealed, err := seal(key, e, s)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(file{Version, e, sealed}, "", "  ")
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return fmt.Errorf("secret %s: it is too long to keep: %w", e.Service, kiterr.ErrRefused)
	}
	return durable.WriteFile(v.path(e.Service, e.Scope), append(data, '\n'), 0o600)
}

// Get returns a secret, or [kiterr.ErrNotFound].
func (v *Vault) Get(service string, s Scope) (Entry, Secret, error) {
	if err := check(service, s); err != nil {
		return Entry{}, Secret{}, err
	}
	path := v.path(service, s)
	f, err := read(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("secret %s for %s: %w", service, s, kiterr.ErrNotFound)
		}
		return Entry{}, Secret{}, err
	}
	if f.Secret.Service != service || f.Secret.Scope != s {
		return Entry{}, Secret{}, fmt.Errorf("%s holds the secret of something else; delete it", path)
	}
	key, err := v.readKey()
	if err != nil {
		return Entry{}, Secret{}, err
	}
	out, err := open(key, f)
	if err != nil {
		return Entry{}, Secret{}, fmt.Errorf("%s: %w", path, err)
	}
	return f.Secret, out, nil
}

func read(path string) (file, error) {
	st, err := os.Stat(path)
	if err != nil {
		return file{}, err
	}
	if st.Size() > 2*maxFile {
		return file{}, fmt.Errorf("%s is too long for a secret; delete it", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return file{}, durable.Explain(path, err)
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return file{}, fmt.Errorf("%s: %w; delete the file and set the secret again", path, err)
	}
	if f.Version != Version {
		return file{}, fmt.Errorf("%s: version %d is not one this kitbox knows: %w", path, f.Version, kiterr.ErrUnsupported)
	}
	return f, nil
}

// Find returns the most specific secret of service for a sandbox and a Kit:
// that of the sandbox, else that of the Kit, else that for all. An empty name
// matches nothing. Without any it is [kiterr.ErrNotFound].
func (v *Vault) Find(service, kit, sandbox string) (Entry, Secret, error) {
	for _, s := range []Scope{{Sandbox, sandbox}, {Kit, kit}, {Kind: Global}} {
		if s.Kind != Global && s.Name == "" {
			continue
		}
		e, out, err := v.Get(service, s)
		if err == nil || !errors.Is(err, kiterr.ErrNotFound) {
			return e, out, err
		}
	}
	return Entry{}, Secret{}, fmt.Errorf("secret %s: %w", service, kiterr.ErrNotFound)
}

// List returns what may be shown of all secrets, by service and from the most
// specific scope to the least. A file that cannot be read is an error that
// stands beside the others.
func (v *Vault) List() ([]Entry, error) {
	names, err := os.ReadDir(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, durable.Explain(v.dir, err)
	}
	var out []Entry
	var errs []error
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), suffix) || strings.HasPrefix(n.Name(), durable.TempPrefix) {
			continue
		}
		f, err := read(filepath.Join(v.dir, n.Name()))
		switch {
		case err == nil:
			out = append(out, f.Secret)
		case !errors.Is(err, fs.ErrNotExist): // removed since
			errs = append(errs, err)
		}
	}
	rank := map[string]int{Sandbox: 0, Kit: 1, Global: 2}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(rank[a.Scope.Kind], rank[b.Scope.Kind]), cmp.Compare(a.Scope.Name, b.Scope.Name))
	})
	return out, errors.Join(errs...)
}

// Remove deletes a secret; one that is not there is [kiterr.ErrNotFound].
func (v *Vault) Remove(ctx context.Context, service string, s Scope) error {
	if err := check(service, s); err != nil {
		return err
	}
	path := v.path(service, s)
	gone := fmt.Errorf("secret %s for %s: %w: 'kitbox secret ls' shows what there is", service, s, kiterr.ErrNotFound)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return gone // and a vault is not made for this
	}
	l, err := v.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return gone
	} else if err != nil {
		return durable.Explain(path, err)
	}
	return durable.SyncDir(v.dir)
}

// RemoveScope deletes every secret for s, also one that cannot be read. None is no
// error.
func (v *Vault) RemoveScope(ctx context.Context, s Scope) error {
	names, err := os.ReadDir(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return durable.Explain(v.dir, err)
	}
	var errs []error
	for _, n := range names {
		service, ok := strings.CutSuffix(n.Name(), s.suffix())
		if !ok || !ValidService(service) {
			continue
		}
		if err := v.Remove(ctx, service, s); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Reserve keeps others that reserve the same secret waiting until the lock is
// given back: tokens that can be refreshed once are refreshed once.
func (v *Vault) Reserve(ctx context.Context, service string, s Scope) (*durable.Lock, error) {
	if err := check(service, s); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(v.path(service, s)))
	return durable.AcquireSlot(ctx, filepath.Join(v.dir, "refresh.lock"), binary.LittleEndian.Uint64(sum[:]), durable.Exclusive)
}

// lock keeps other writers out and makes the directory.
func (v *Vault) lock(ctx context.Context) (*durable.Lock, error) {
	if err := durable.MkdirAll(v.dir, 0o700); err != nil {
		return nil, err
	}
	return durable.AcquireLock(ctx, filepath.Join(v.dir, "lock"), durable.Exclusive)
}
