package journal

import (
	"bytes"
	"encoding/json"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// A journal of more than maxEntries is cut down to newest ones and what has to be known
// for ever. That is 25 boots at the least, and some ten kilobytes, which every listing
// reads.
const (
	maxEntries = 200
	newest     = 100
)

// Compact rewrites the journal in dir, of which es are the entries, if it is long. What
// the functions here say of it stays the same. A kill leaves the old one or the new.
// Nobody may append meanwhile: the caller begins a boot, and whoever has started it
// holds the sandbox's lock.
func Compact(dir string, es []Entry) error {
	if len(es) <= maxEntries {
		return nil
	}
	var b bytes.Buffer
	for _, e := range kept(es) {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	name := filepath.Join(dir, Name)
	if err := durable.ReplaceAlone(name, b.Bytes(), 0o600); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

// kept returns the entries of es that say what was made, by whom and how far it came:
// the first, those of the creation, the last of each phase, and the newest.
func kept(es []Entry) (out []Entry) {
	last := map[Phase]int{}
	for i, e := range es {
		last[e.Phase] = i
	}
	for i, e := range es {
		switch {
		case i == 0, i >= len(es)-newest, i == last[e.Phase]:
		case e.Phase == Creating, e.Phase == Planned, e.Phase == InstallBegin, e.Phase == InstallDone:
		default:
			continue
		}
		out = append(out, e)
	}
	return out
}
