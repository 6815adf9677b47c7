// Package hostmount keeps the directories of Kits that their sandboxes share,
// one for each identity of a Kit and path in it. They belong to no sandbox.
//
// What of the host's own a user mounts is another thing: internal/workspace.
package hostmount

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/storage"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Store keeps the directories in Dir, which it makes when it needs to.
type Store struct{ Dir string }

const (
	mountFile    = "mount.json"
	mountVersion = 1
)

// A mountRecord says whose a directory is.
type mountRecord struct {
	Version  int    `json:"version"`
	Identity string `json:"identity"`
	Path     string `json:"path"`
}

// Place implements the host-mount handler's Place.
func (s Store) Place(identity, path string) (handle, dir string) {
	sum := sha256.Sum256([]byte(identity + "\x00" + path))
	handle = hex.EncodeToString(sum[:8])
	return handle, filepath.Join(s.Dir, handle, "data")
}

// Prepare makes the directories that p needs and that do not exist. One that
// does keeps its owner, mode and contents. Several sandboxes may ask at once.
func (s Store) Prepare(p *plan.Plan) error {
	for _, h := range p.HostMounts {
		final := filepath.Dir(h.Source)
		if _, err := os.Stat(final); err == nil {
			continue
		}
		if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
			return err
		}
		fresh, err := os.MkdirTemp(s.Dir, ".new-")
		if err != nil {
			return durable.Explain(s.Dir, err)
		}
		err = s.fill(fresh, h, p.Launch.User)
		if err == nil {
			err = os.Rename(fresh, final)
			if errors.Is(err, fs.ErrExist) || err != nil && exists(final) {
				err = nil // another sandbox of the Kit was faster
			}
		}
		os.RemoveAll(fresh)
		if err != nil {
			return durable.Explain(final, err)
		}
		if err := durable.SyncDir(s.Dir); err != nil {
			return err
		}
	}
	return nil
}

func (s Store) fill(dir string, h plan.HostMount, user plan.Identity) error {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.Chown(data, int(user.UID), int(user.GID)); err != nil {
		return err
	}
	if err := os.Chmod(data, storage.Mode(h.Mode)); err != nil {
		return err
	}
	b, err := json.Marshal(mountRecord{mountVersion, h.Identity, h.Path})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, mountFile), append(b, '\n'), 0o600)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// read returns the record of a handle.
func (s Store) read(handle string) (mountRecord, error) {
	var r mountRecord
	none := fmt.Errorf("host mount %s: %w: 'kitbox mount ls' shows what there is", handle, kiterr.ErrNotFound)
	if b, err := hex.DecodeString(handle); err != nil || len(b) != 8 {
		return r, none
	}
	b, err := os.ReadFile(filepath.Join(s.Dir, handle, mountFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, none
	}
	if err != nil {
		return r, durable.Explain(s.Dir, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("host mount %s: %w", handle, err)
	}
	if r.Version != mountVersion {
		return r, fmt.Errorf("host mount %s has version %d, this kitbox reads version %d", handle, r.Version, mountVersion)
	}
	return r, nil
}

// List returns what there is, by handle. It makes nothing. users says which
// sandboxes mount which directories; it is asked only if there are any.
func (s Store) List(users func() (map[string][]string, error)) ([]sandbox.HostMount, error) {
	out := []sandbox.HostMount{}
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, durable.Explain(s.Dir, err)
	}
	mounted, err := users()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		r, err := s.read(entry.Name())
		if errors.Is(err, kiterr.ErrNotFound) {
			continue // half made, or half removed
		}
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(s.Dir, entry.Name(), "data")
		out = append(out, sandbox.HostMount{Handle: entry.Name(), Identity: r.Identity, Path: r.Path, Dir: dir, Sandboxes: mounted[dir]})
	}
	return out, nil
}

// Open opens one file of a directory, by its path there. Links in the directory
// were made by sandboxes, so none is followed out of it.
func (s Store) Open(handle, file string) (io.ReadCloser, error) {
	if _, err := s.read(handle); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Join(s.Dir, handle, "data"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// The kind first: opening a pipe would wait for a writer.
	st, err := root.Stat(file)
	if err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("host mount %s: %s is not an ordinary file", handle, file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("host mount %s has no file %s: %w", handle, file, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("host mount %s: %w", handle, err)
	}
	f, err := root.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("host mount %s: %w", handle, err)
	}
	return f, nil
}

// Remove deletes a directory that no sandbox uses; one that is used is
// [kiterr.ErrRefused]. users are as for List.
func (s Store) Remove(handle string, users func() (map[string][]string, error)) error {
	if _, err := s.read(handle); err != nil {
		return err
	}
	mounted, err := users()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.Dir, handle)
	if names := mounted[filepath.Join(dir, "data")]; len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("host mount %s is used by %s; 'kitbox rm %s' comes first: %w", handle, strings.Join(names, ", "), strings.Join(names, " "), kiterr.ErrRefused)
	}
	// Out of sight at once, so that a kill half way leaves nothing half there.
	gone := filepath.Join(s.Dir, ".gone-"+handle)
	if err := os.RemoveAll(gone); err != nil {
		return durable.Explain(gone, err)
	}
	if err := os.Rename(dir, gone); err != nil {
		return durable.Explain(dir, err)
	}
	return durable.Explain(gone, os.RemoveAll(gone))
}
