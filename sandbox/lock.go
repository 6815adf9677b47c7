package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// LockVersion is that of the form of a lock.
const LockVersion = 1

// A Lock pins a composition of Kits: what was referenced, what that stood for,
// with which args, and what it asks of a host. It holds nothing of the machine
// that made it, so that the same Kits give the same bytes everywhere. STABILITY.md
// promises its form.
type Lock struct {
	Version int               `json:"version"`
	Kits    []LockedKit       `json:"kits"` // in composition order
	Args    map[string]string `json:"args,omitempty"`

	// Surface is all that the Kits ask, optional requests included, in its
	// canonical form. Whether a host grants it is not in it.
	Surface json.RawMessage `json:"surface"`
}

// A LockedKit is one member of a lock.
type LockedKit struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"` // of the index, or of the manifest where there is none
	Kind   string `json:"kind"`

	// Commit is what the ref of a git source stood for.
	Commit string `json:"commit,omitempty"`
}

// A Locker pins compositions. Use [ManageLocks].
type Locker interface {
	// Lock resolves the Kits of o, as [CreateOptions.Pull] says, and makes no
	// sandbox. Building a Kit that is given as a directory is not a change.
	Lock(ctx context.Context, o CreateOptions) (*Lock, error)

	// CompareLocks says what the composition of b may do and that of a may
	// not, and the reverse.
	CompareLocks(a, b *Lock) (LockChanges, error)
}

// ManageLocks returns what pins compositions of r. A runtime that cannot answers
// [kiterr.ErrUnsupported].
func ManageLocks(r Runtime) (Locker, error) {
	return able[Locker](r, "locks")
}

// LockChanges are the differences of two locks.
type LockChanges struct {
	Kits       []LockChange `json:"kits"`
	Widenings  []Change     `json:"widenings"`  // new authority, which needs approval
	Narrowings []Change     `json:"narrowings"` // authority that is given up
}

// A LockChange is a Kit that stands for something else, is new (From is empty)
// or is gone (To is empty).
type LockChange struct {
	Ref  string `json:"ref"`
	From string `json:"from,omitempty"` // digest
	To   string `json:"to,omitempty"`   // digest
}

// Encode returns the one text of l: equal locks are equal bytes.
func (l *Lock) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	if err := e.Encode(l); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// maxLock bounds the text of a lock, in bytes.
const maxLock = 16 << 20

// DecodeLock reads such a text strictly. One of another version is
// [kiterr.ErrUnsupported].
func DecodeLock(r io.Reader) (*Lock, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxLock+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxLock {
		return nil, fmt.Errorf("it has more than %d bytes", maxLock)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("it is no lock: %w", err)
	}
	if head.Version != LockVersion {
		return nil, fmt.Errorf("its version is %d, this kitbox reads %d: %w", head.Version, LockVersion, kiterr.ErrUnsupported)
	}
	l := new(Lock)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(l); err != nil {
		return nil, fmt.Errorf("it is no lock: %w", err)
	}
	if d.More() {
		return nil, errors.New("there is something behind the lock")
	}
	if len(l.Kits) == 0 || len(l.Surface) == 0 {
		return nil, errors.New("it names no Kits, or not what they ask")
	}
	for _, k := range l.Kits {
		if hex, ok := strings.CutPrefix(k.Digest, "sha256:"); k.Ref == "" || !ok || len(hex) != 64 {
			return nil, fmt.Errorf("kit %q has the digest %q, which is none", k.Ref, k.Digest)
		}
	}
	return l, nil
}
