package layer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/inventory"
)

// A Member is one Kit of a composition.
type Member struct {
	Name   string          // how clashes name it
	Layers []digest.Digest // diff ids, lowest first
}

// setPrefix starts the names of the records of compositions in the store.
const setPrefix = "set-"

// setRecord is a composition that was found good: diff ids do not change, so
// neither does the verdict.
type setRecord struct {
	Version int      `json:"version"`
	Dirs    []string `json:"dirs"` // names in the store, lowest first
}

// Overlay is [Store.Compose] for Kits, the lowest first: members may share
// layers, and must agree on the files that they bring; if they do not, it returns
// what they clash over and no directories. A layer that a member below has too
// counts as that member's. Layers must be unpacked. What was composed once is
// only looked up.
func (s *Store) Overlay(ctx context.Context, members []Member) ([]string, []inventory.Clash, error) {
	if dirs := s.Recall(ctx, members); dirs != nil {
		return dirs, nil, nil
	}
	var ids []digest.Digest
	seen := map[digest.Digest]bool{}
	stacks := make([]inventory.Stack, len(members))
	for i, m := range members {
		stacks[i].Name = m.Name
		var own []digest.Digest
		for _, id := range m.Layers {
			if !seen[id] {
				own = append(own, id)
			}
		}
		for _, id := range own {
			seen[id] = true
			inv, err := s.Inventory(id)
			if err != nil {
				return nil, nil, err
			}
			stacks[i].Layers = append(stacks[i].Layers, inv)
		}
		ids = append(ids, own...)
	}
	if clashes := inventory.Clashes(stacks); len(clashes) > 0 {
		return nil, clashes, nil
	}
	dirs, err := s.Compose(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	rec := setRecord{Version: metaVersion}
	for _, d := range dirs {
		rec.Dirs = append(rec.Dirs, filepath.Base(filepath.Dir(d)))
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return nil, nil, err
	}
	return dirs, nil, durable.WriteCache(s.record(members), data)
}

// record is where the composition of members is remembered.
func (s *Store) record(members []Member) string {
	key := sha256.New()
	for _, m := range members {
		fmt.Fprintf(key, "kit %d\n", len(m.Layers))
		for _, id := range m.Layers {
			fmt.Fprintln(key, id)
		}
	}
	return filepath.Join(s.dir, setPrefix+hex.EncodeToString(key.Sum(nil))+".json")
}

// Recall returns what Overlay returned for members before, all of it marked as
// used, or nil if they were never composed or a layer of theirs is gone.
func (s *Store) Recall(ctx context.Context, members []Member) []string {
	data, err := os.ReadFile(s.record(members))
	if err != nil {
		return nil
	}
	var rec setRecord
	if json.Unmarshal(data, &rec) != nil || rec.Version != metaVersion {
		return nil
	}
	slots := make([]uint64, len(rec.Dirs))
	for i, name := range rec.Dirs {
		slots[i] = slot(name)
	}
	l, err := durable.AcquireSlots(ctx, s.lockFile(), slots, durable.Shared)
	if err != nil {
		return nil
	}
	defer l.Unlock()
	dirs := make([]string, len(rec.Dirs))
	for i, name := range rec.Dirs {
		if !s.whole(name) {
			return nil
		}
		dirs[i] = filepath.Join(s.dir, name, "fs")
	}
	return dirs
}
