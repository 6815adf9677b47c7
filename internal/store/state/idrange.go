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

// idsFile records who has which range.
const idsFile = ".ids.json"

type idRanges struct {
	Version int               `json:"version"`
	Base    map[string]uint32 `json:"base"` // by sandbox id
}

// SomeIDs is a range as sandboxes get one, for judging what will have one. It is
// given to nobody.
func SomeIDs() plan.IDMap { return plan.IDMap{Base: idFirst, Size: idSize} }

// AllocateIDs gives the sandbox with this id a range of host ids that no other
// sandbox of this home has, and returns the same one again for the same id. The
// place to begin looking depends on the id, so that two homes on one machine
// seldom meet.
func (s *Store) AllocateIDs(ctx context.Context, id string) (plan.IDMap, error) {
	m := plan.IDMap{Size: idSize}
	err := s.updateIDs(ctx, true, func(r *idRanges) error {
		if base, ok := r.Base[id]; ok {
			m.Base = base
			return nil
		}
		taken := map[uint32]bool{}
		for _, b := range r.Base {
			taken[b] = true
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
	return m, err
}

// ReleaseIDs gives the range of sandbox id back. Nothing of the sandbox may run
// or be stored with host ids any more. Releasing twice does nothing. It is for
// [Sandbox.Remove] to make it survive a power cut, with the removal itself: if
// neither does, the next removal releases again.
func (s *Store) ReleaseIDs(ctx context.Context, id string) error {
	return s.updateIDs(ctx, false, func(r *idRanges) error {
		delete(r.Base, id)
		return nil
	})
}

// updateIDs changes the record under its lock; an unchanged one is not written.
// sync is whether the change has to survive a power cut by itself.
func (s *Store) updateIDs(ctx context.Context, sync bool, change func(*idRanges) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := durable.AcquireLock(ctx, filepath.Join(s.dir, ".ids.lock"), durable.Exclusive)
	if err != nil {
		return err
	}
	defer l.Unlock()
	path := filepath.Join(s.dir, idsFile)
	r := idRanges{Version: Version}
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return durable.Explain(path, err)
	default:
		if err := json.Unmarshal(old, &r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if r.Version != Version {
			return fmt.Errorf("%s has version %d, this kitbox reads version %d: %w", path, r.Version, Version, kiterr.ErrUnsupported)
		}
	}
	if r.Base == nil {
		r.Base = map[string]uint32{}
	}
	if err := change(&r); err != nil {
		return err
	}
	data, err := json.Marshal(r, json.Deterministic(true), jsontext.WithIndent("\t"))
	if err != nil {
		return err
	}
	if data = append(data, '\n'); string(data) == string(old) {
		return nil
	}
	if err := durable.ReplaceAlone(path, data, 0o600); err != nil || !sync {
		return err
	}
	return durable.SyncDir(s.dir)
}
