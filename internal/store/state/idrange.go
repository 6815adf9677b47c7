package state

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Host ids 0x70000000 to 0x7ffeffff are given out, 65536 to a sandbox. They lie
// above everything that systems hand to users, services, containers and subuid
// ranges, and below 2^31, which some programs take for negative.
const (
	idSize  = 1 << 16
	idFirst = 0x70000000
	idCount = 0xfff
)

// Who has which range is recorded in two files. The ranges of sandboxes that end
// with the process that made them need not survive a power cut, which ends them
// too, so that their record is written without waiting for the disk and counts
// only in the run of the kernel it was written in.
const (
	idsFile         = ".ids.json"
	volatileIDsFile = ".ids-volatile.json"
)

type idRanges struct {
	Version int               `json:"version"`
	Boot    string            `json:"boot,omitzero"` // of the volatile ones
	Base    map[string]uint32 `json:"base"`          // by sandbox id
}

// SomeIDs is a range as sandboxes get one, for judging what will have one. It is
// given to nobody.
func SomeIDs() plan.IDMap { return plan.IDMap{Base: idFirst, Size: idSize} }

// AllocateIDs gives the sandbox with this id a range of host ids that no other
// sandbox of this home has, and returns the same one again for the same id. The
// place to begin looking depends on the id, so that two homes on one machine
// seldom meet. The range of a volatile sandbox is free again after a power cut.
func (s *Store) AllocateIDs(ctx context.Context, id string, volatile bool) (plan.IDMap, error) {
	m := plan.IDMap{Size: idSize}
	err := s.updateIDs(ctx, func(lasting, passing *idRanges) error {
		for _, r := range []*idRanges{lasting, passing} {
			if base, ok := r.Base[id]; ok {
				m.Base = base
				return nil
			}
		}
		taken := map[uint32]bool{}
		for _, r := range []*idRanges{lasting, passing} {
			for _, b := range r.Base {
				taken[b] = true
			}
		}
		r := lasting
		if volatile {
			r = passing
		}
		h := fnv.New32a()
		h.Write([]byte(s.dir + "\x00" + id))
		start := h.Sum32() % idCount
		for n := range uint32(idCount) {
			base := uint32(idFirst) + (start+n)%idCount*idSize
			if !taken[base] {
				m.Base, r.Base[id] = base, base
				return nil
			}
		}
		return fmt.Errorf("all %d ranges of host ids are in use: remove sandboxes that are not needed: %w", idCount, kiterr.ErrUnavailable)
	})
	if err == nil && !volatile {
		err = durable.SyncDir(s.dir)
	}
	return m, err
}

// ReleaseIDs gives the range of sandbox id back. Nothing of the sandbox may run
// or be stored with host ids any more. Releasing twice does nothing. It is for
// [Sandbox.Remove] to make it survive a power cut, with the removal itself: if
// neither does, the next removal releases again.
func (s *Store) ReleaseIDs(ctx context.Context, id string) error {
	return s.updateIDs(ctx, func(lasting, passing *idRanges) error {
		delete(lasting.Base, id)
		delete(passing.Base, id)
		return nil
	})
}

// updateIDs changes the records under their lock; an unchanged one is not
// written. It is for the caller to sync the directory.
func (s *Store) updateIDs(ctx context.Context, change func(lasting, passing *idRanges) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := durable.AcquireLock(ctx, filepath.Join(s.dir, ".ids.lock"), durable.Exclusive)
	if err != nil {
		return err
	}
	defer l.Unlock()
	path := filepath.Join(s.dir, idsFile)
	lasting := idRanges{Version: Version}
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return durable.Explain(path, err)
	default:
		if err := json.Unmarshal(old, &lasting); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if lasting.Version != Version {
			return fmt.Errorf("%s has version %d, this kitbox reads version %d: %w", path, lasting.Version, Version, kiterr.ErrUnsupported)
		}
	}
	if lasting.Base == nil {
		lasting.Base = map[string]uint32{}
	}
	passing, oldPassing, err := s.readPassing()
	if err != nil {
		return err
	}
	if err := change(&lasting, &passing); err != nil {
		return err
	}
	data, err := encodeIDs(lasting)
	if err != nil {
		return err
	}
	if string(data) != string(old) {
		if err := durable.ReplaceAlone(path, data, 0o600); err != nil {
			return err
		}
	}
	if len(passing.Base) == 0 && oldPassing == nil {
		return nil
	}
	if data, err = encodeIDs(passing); err != nil || string(data) == string(oldPassing) {
		return err
	}
	return durable.WriteCacheAlone(filepath.Join(s.dir, volatileIDsFile), data)
}

// readPassing reads the record of volatile sandboxes and what it was read from.
// One of another run of the kernel, or that a power cut has torn, says nothing: no
// sandbox of it runs. One that cannot be read or understood is an error, since those
// that it names run, and nobody else may get what they have.
func (s *Store) readPassing() (idRanges, []byte, error) {
	none := idRanges{Version: Version, Boot: durable.Boot(), Base: map[string]uint32{}}
	path := filepath.Join(s.dir, volatileIDsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil, nil
	}
	if err != nil {
		return none, nil, durable.Explain(path, err)
	}
	var r idRanges
	if json.Unmarshal(data, &r) != nil {
		r = idRanges{} // torn
	}
	if r.Boot != none.Boot {
		return none, data, nil
	}
	if r.Version != Version {
		return none, nil, fmt.Errorf("%s has version %d, this kitbox reads version %d: %w", path, r.Version, Version, kiterr.ErrUnsupported)
	}
	if r.Base == nil {
		r.Base = map[string]uint32{}
	}
	return r, data, nil
}

func encodeIDs(r idRanges) ([]byte, error) {
	data, err := json.Marshal(r, json.Deterministic(true), jsontext.WithIndent("\t"))
	return append(data, '\n'), err
}
