package fetch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// hashes remembers the digests of the files of one build context, so that an
// unchanged Kit costs a stat for each file. It is a cache: losing it, or racing
// with another process for it, costs time only.
type hashes struct {
	path string // of the record
	dir  string // of the context
	now  time.Time

	known   map[string]fileHash
	used    map[string]fileHash
	changed bool
}

// A fileHash is what a file was when it was read. Any change of its content
// changes the inode's change time, which no program can set back; only a change
// within the clock tick of reading could hide, which Settled rules out.
type fileHash struct {
	Size    int64    `json:"size"`
	Inode   uint64   `json:"inode"`
	Device  uint64   `json:"device"`
	Mtime   int64    `json:"mtime"` // nanoseconds, like Ctime
	Ctime   int64    `json:"ctime"`
	Settled bool     `json:"settled"` // had not changed for a while when it was read
	Sum     string   `json:"sum"`
	Bases   []string `json:"bases,omitzero"` // local images that its text names
}

const (
	// settle is longer than the tick of any file system's clock that keeps
	// fractions of a second; those of whole seconds are read every time.
	settle = 2 * time.Second

	// maxScan bounds the size of a file that is searched for image names.
	maxScan = 1 << 20
)

func openHashes(dir, context string) (*hashes, error) {
	sum := sha256.Sum256([]byte(context))
	h := &hashes{path: filepath.Join(dir, hex.EncodeToString(sum[:16])+".json"), dir: context, now: time.Now(), used: map[string]fileHash{}}
	if data, err := os.ReadFile(h.path); err == nil {
		if json.Unmarshal(data, &h.known) != nil {
			h.known = nil
		}
	}
	return h, nil
}

// hash returns the digest of the file at rel, which info describes.
func (h *hashes) hash(rel string, info fs.FileInfo) (fileHash, error) {
	want := describe(info, h.now)
	if k, ok := h.known[rel]; ok && k.Settled && want.same(k) {
		h.used[rel] = k
		return k, nil
	}
	h.changed = true
	p := filepath.Join(h.dir, rel)
	f, err := authoring.Open(p)
	if err != nil {
		return fileHash{}, durable.Explain(p, err)
	}
	defer f.Close()
	// What was opened may not be what was listed.
	if info, err = f.Stat(); err != nil {
		return fileHash{}, durable.Explain(p, err)
	}
	e := describe(info, h.now)
	sum := sha256.New()
	if e.Size <= maxScan {
		data, err := io.ReadAll(io.LimitReader(f, maxScan))
		if err != nil {
			return fileHash{}, durable.Explain(p, err)
		}
		sum.Write(data)
		if bytes.Contains(data, []byte(LocalDomain)) {
			e.Bases = localNames(data)
		}
	}
	if _, err := io.Copy(sum, f); err != nil {
		return fileHash{}, durable.Explain(p, err)
	}
	e.Sum = hex.EncodeToString(sum.Sum(nil))
	// A file that is being written is not settled, whatever it was before.
	if after, err := f.Stat(); err != nil || !describe(after, h.now).same(e) {
		e.Settled = false
	}
	h.used[rel] = e
	return e, nil
}

func describe(info fs.FileInfo, now time.Time) fileHash {
	e := fileHash{Size: info.Size(), Mtime: info.ModTime().UnixNano()}
	changed := info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Inode, e.Device, e.Ctime = st.Ino, st.Dev, st.Ctim.Nano()
		if c := time.Unix(st.Ctim.Unix()); c.After(changed) {
			changed = c
		}
	}
	e.Settled = now.Sub(changed) > settle && e.Ctime != 0
	return e
}

func (e fileHash) same(o fileHash) bool {
	return e.Size == o.Size && e.Inode == o.Inode && e.Device == o.Device && e.Mtime == o.Mtime && e.Ctime == o.Ctime
}

// save stores what was used, if something was read or is gone.
func (h *hashes) save() {
	if !h.changed && len(h.used) == len(h.known) {
		return
	}
	data, err := json.Marshal(h.used, json.Deterministic(true))
	if err != nil {
		return
	}
	if os.MkdirAll(filepath.Dir(h.path), 0o700) == nil {
		durable.WriteCache(h.path, data)
	}
}
