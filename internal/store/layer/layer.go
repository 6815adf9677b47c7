// Package layer keeps unpacked layers, one directory per diff id, and composes
// them: the answer to "which image" is a list of directories to be overlaid,
// and no content is ever copied for it.
//
// A layer is unpacked once, whoever asks, by package untar; owners and modes are
// the image's own (a driver shifts them with idmapped mounts). What lies in the
// directory is never written again.
package layer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/internal/store/untar"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Store is a directory of unpacked layers. Its methods can be called
// concurrently and by several processes.
type Store struct {
	dir string

	// Limits bound what one layer may hold. Zero fields mean the defaults.
	Limits untar.Limits
}

const metaVersion = 1

// A Meta describes an unpacked layer; it is stored beside it as meta.json.
type Meta struct {
	Version int           `json:"version"`
	DiffID  digest.Digest `json:"diffId"`
	Entries int           `json:"entries"`
	Bytes   int64         `json:"bytes"` // of file content

	// Implied are the directories that the tar needs and does not state,
	// parents first, relative without a leading slash; "." is the root.
	// Composed, they take owner and mode from the layers below.
	Implied []string `json:"implied,omitempty"`

	// OpaqueRoot means that nothing of the layers below shows.
	OpaqueRoot bool `json:"opaqueRoot,omitempty"`

	// Left out on purpose: device nodes below /dev, where every machine
	// mounts its own, and extended attributes that only mean something to
	// the machine that made the tar.
	SkippedDevices    []string `json:"skippedDevices,omitempty"`
	SkippedAttributes []string `json:"skippedAttributes,omitempty"`
}

// Open makes the directory if need be.
func Open(dir string) (*Store, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Store{dir: dir}, nil
}

// Dir is where layer id is unpacked, or would be.
func (s *Store) Dir(id digest.Digest) string {
	return filepath.Join(s.dir, id.Encoded(), "fs")
}

func (s *Store) lockFile() string { return filepath.Join(s.dir, ".lock") }

// slot is the lock of one layer among those of the lock file.
func slot(key string) uint64 {
	var b [8]byte
	copy(b[:], digest.FromString(key).Encoded())
	return binary.BigEndian.Uint64(b[:]) >> 2
}

// Has reports whether layer id is unpacked, and marks it as used.
func (s *Store) Has(ctx context.Context, id digest.Digest) (bool, error) {
	if err := valid(id); err != nil {
		return false, err
	}
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(id.Encoded()), durable.Shared)
	if err != nil {
		return false, err
	}
	defer l.Unlock()
	return s.whole(id.Encoded()), nil
}

// whole reports whether a directory of the store is there with all its content,
// and marks it as used. The caller holds the slot.
//
// Publishing does not wait for the disk: flushing a system's worth of files
// takes longer than unpacking them. Instead each directory names the boot of
// the machine in which it was made; after another boot it counts only if it had
// lain there long enough before, so that the kernel had written it.
func (s *Store) whole(name string) bool {
	dir := filepath.Join(s.dir, name)
	made, err := os.ReadFile(filepath.Join(dir, bootFile))
	if err != nil {
		return false
	}
	now := time.Now()
	if string(made) != settled {
		if string(made) != durable.Boot() {
			return false
		}
		if st, err := os.Stat(filepath.Join(dir, bootFile)); err == nil && now.Sub(st.ModTime()) > settleAfter {
			durable.WriteCache(filepath.Join(dir, bootFile), []byte(settled))
		}
	}
	return os.Chtimes(dir, now, now) == nil
}

const (
	bootFile = "boot"
	settled  = "settled"

	// settleAfter is some times what kernels wait before they write what was
	// changed (30 seconds).
	settleAfter = 3 * time.Minute
)

// discard removes what lies at name although it is not whole. The caller holds
// the slot exclusively.
func (s *Store) discard(name string) error {
	dir := filepath.Join(s.dir, name)
	tmp := filepath.Join(s.dir, durable.TempPrefix+"old-"+name)
	if err := os.Rename(dir, tmp); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return durable.Explain(dir, err)
	}
	return durable.Explain(tmp, durable.RemoveTree(tmp))
}

// Unpack makes sure that layer id is unpacked. If it is not, it calls open for
// the layer's blob (a tar, plain or compressed with gzip or zstd), unpacks it,
// and checks that the uncompressed tar has digest id. Several callers for one
// layer unpack once; the others wait, until ctx is done. After an error or a
// kill, nothing of the layer is visible.
//
// A tar that cannot be trusted is [kiterr.ErrRefused], with the entry's name.
func (s *Store) Unpack(ctx context.Context, id digest.Digest, open func() (io.ReadCloser, error)) error {
	if ok, err := s.Has(ctx, id); err != nil || ok {
		return err
	}
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(id.Encoded()), durable.Exclusive)
	if err != nil {
		return err
	}
	defer l.Unlock()
	if s.whole(id.Encoded()) {
		return nil // somebody else was faster
	}
	if err := s.discard(id.Encoded()); err != nil {
		return err
	}
	blob, err := open()
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	defer blob.Close()
	err = s.publish(id.Encoded(), func(tmp string) error {
		return s.unpackTo(ctx, tmp, id, blob)
	})
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	return nil
}

// publish fills a temporary directory and renames it to name. The caller holds
// the slot of name.
func (s *Store) publish(name string, fill func(tmp string) error) (err error) {
	tmp, err := os.MkdirTemp(s.dir, durable.TempPrefix+name[:min(12, len(name))]+"-*")
	if err != nil {
		return durable.Explain(s.dir, err)
	}
	defer func() {
		if err != nil {
			_ = durable.RemoveTree(tmp)
		}
	}()
	if err := os.Mkdir(filepath.Join(tmp, "fs"), 0o755); err != nil {
		return durable.Explain(s.dir, err)
	}
	if err := fill(tmp); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, bootFile), []byte(durable.Boot()), 0o600); err != nil {
		return durable.Explain(s.dir, err)
	}
	return durable.Explain(s.dir, os.Rename(tmp, filepath.Join(s.dir, name)))
}

func (s *Store) unpackTo(ctx context.Context, tmp string, id digest.Digest, blob io.Reader) error {
	r, err := untar.Unpack(ctx, filepath.Join(tmp, "fs"), blob, s.Limits)
	if err != nil {
		return explain(s.dir, err)
	}
	if r.DiffID != id {
		return fmt.Errorf("its content has diff id %s: the image is damaged or not what its config says", r.DiffID)
	}
	data, err := json.MarshalIndent(Meta{
		Version: metaVersion, DiffID: id, Entries: len(r.Entries), Bytes: r.Bytes, Implied: r.Implied, OpaqueRoot: r.OpaqueRoot,
		SkippedDevices: r.SkippedDevices, SkippedAttributes: r.SkippedAttributes,
	}, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "inventory"), r.Entries.Encode(), 0o600); err != nil {
		return durable.Explain(s.dir, err)
	}
	return durable.Explain(s.dir, os.WriteFile(filepath.Join(tmp, "meta.json"), data, 0o600))
}

// explain keeps refusals as they are and explains what the disk said.
func explain(dir string, err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) || errors.Is(err, unix.ENOSPC) {
		return durable.Explain(dir, err)
	}
	return err
}

// Meta reads the description of the unpacked layer id. A layer that is not
// unpacked is [kiterr.ErrNotFound].
func (s *Store) Meta(id digest.Digest) (Meta, error) {
	if err := valid(id); err != nil {
		return Meta{}, err
	}
	path := filepath.Join(s.dir, id.Encoded(), "meta.json")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Meta{}, fmt.Errorf("layer %s: %w in %s", id, kiterr.ErrNotFound, s.dir)
	}
	if err != nil {
		return Meta{}, durable.Explain(path, err)
	}
	var m Meta
	if err := json.Unmarshal(data, &m); err != nil {
		return Meta{}, fmt.Errorf("%s is damaged: %w; delete %s", path, err, filepath.Dir(path))
	}
	if m.Version != metaVersion {
		return Meta{}, fmt.Errorf("%s has version %d, this program reads %d; delete %s", path, m.Version, metaVersion, filepath.Dir(path))
	}
	return m, nil
}

// Inventory reads the sorted list of what the unpacked layer id holds.
func (s *Store) Inventory(id digest.Digest) (inventory.List, error) {
	if err := valid(id); err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, id.Encoded(), "inventory")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("layer %s: %w in %s", id, kiterr.ErrNotFound, s.dir)
	}
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	inv, err := inventory.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; delete %s", path, err, filepath.Dir(path))
	}
	return inv, nil
}

// Sweep deletes layers and skeletons that keep does not want, temporary
// directories of killed processes, and nothing that was used within grace. keep
// is given the directory inside the store and, for a layer, its diff id.
func (s *Store) Sweep(ctx context.Context, keep func(dir string, id digest.Digest) bool, grace time.Duration) (count int, freed int64, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, 0, durable.Explain(s.dir, err)
	}
	limit := time.Now().Add(-grace)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return count, freed, err
		}
		dir := filepath.Join(s.dir, e.Name())
		var id digest.Digest
		if d := digest.NewDigestFromEncoded(digest.SHA256, e.Name()); d.Validate() == nil {
			id = d
		}
		if strings.HasPrefix(e.Name(), setPrefix) || !e.IsDir() && strings.HasPrefix(e.Name(), durable.TempPrefix) {
			// Found again at the cost of a composition.
			if st, err := e.Info(); err == nil && st.ModTime().Before(limit) {
				os.Remove(dir)
			}
			continue
		}
		if !e.IsDir() || !strings.HasPrefix(e.Name(), durable.TempPrefix) && keep(dir, id) {
			continue
		}
		gone, n, err := s.remove(ctx, e.Name(), limit)
		if err != nil {
			return count, freed, err
		}
		if gone {
			count++
			freed += n
		}
	}
	return count, freed, nil
}

// remove deletes one directory of the store unless it was used after limit. It
// is renamed first, so that a kill leaves rubbish and not half a layer.
func (s *Store) remove(ctx context.Context, name string, limit time.Time) (bool, int64, error) {
	l, err := durable.AcquireSlot(ctx, s.lockFile(), slot(name), durable.Exclusive)
	if err != nil {
		return false, 0, err
	}
	defer l.Unlock()
	dir := filepath.Join(s.dir, name)
	st, err := os.Stat(dir)
	if err != nil || st.ModTime().After(limit) {
		return false, 0, nil
	}
	size := int64(0)
	if data, err := os.ReadFile(filepath.Join(dir, "meta.json")); err == nil {
		var m Meta
		if json.Unmarshal(data, &m) == nil {
			size = m.Bytes
		}
	}
	if !strings.HasPrefix(name, durable.TempPrefix) {
		tmp := filepath.Join(s.dir, durable.TempPrefix+"del-"+name)
		if err := os.Rename(dir, tmp); err != nil {
			return false, 0, durable.Explain(dir, err)
		}
		dir = tmp
	}
	if err := durable.RemoveTree(dir); err != nil {
		return false, 0, durable.Explain(dir, err)
	}
	return true, size, nil
}

func valid(id digest.Digest) error {
	if err := id.Validate(); err != nil || id.Algorithm() != digest.SHA256 {
		return fmt.Errorf("diff id %q is not sha256: and 64 hex digits: %w", string(id), kiterr.ErrRefused)
	}
	return nil
}
