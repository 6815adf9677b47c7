package engine

import (
	"context"
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

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/storage"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// shared are the directories of Kits that their sandboxes share, one for each
// identity and path. They belong to no sandbox.
type shared struct{ dir string }

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

// place implements the host-mount handler's Place.
func (s shared) place(identity, path string) (handle, dir string) {
	sum := sha256.Sum256([]byte(identity + "\x00" + path))
	handle = hex.EncodeToString(sum[:8])
	return handle, filepath.Join(s.dir, handle, "data")
}

// identity is who a Kit is, for all its versions: the repository of an image, or
// the place of a local one. What a descriptor says of itself is no evidence. The
// first word keeps the kinds apart, so that no repository can claim a place.
func identity(k *fetch.Kit) (string, error) {
	switch k.Source {
	case fetch.Directory, fetch.Layout:
		place, err := filepath.Abs(k.Ref)
		if err != nil {
			return "", err
		}
		if k.Source == fetch.Layout {
			// A tag or digest may follow the directory.
			for place != "/" {
				if st, err := os.Stat(place); err == nil && st.IsDir() {
					break
				}
				cut := strings.LastIndexAny(place, ":@")
				if cut <= 0 {
					break
				}
				place = place[:cut]
			}
		}
		if real, err := filepath.EvalSymlinks(place); err == nil {
			place = real
		}
		return string(k.Source) + " " + place, nil
	}
	ref, _, _ := strings.Cut(k.Ref, "@")
	if algorithm, _, ok := strings.Cut(ref, ":"); ok && algorithm == "sha256" {
		return "image " + k.Digest.String(), nil // named by nothing but itself
	}
	if at := strings.LastIndexByte(ref, ':'); at > strings.LastIndexByte(ref, '/') {
		ref = ref[:at]
	}
	return "repository " + ref, nil
}

// prepare makes the directories that p needs and that do not exist. One that
// does keeps its owner, mode and contents. Several sandboxes may ask at once.
func (s shared) prepare(p *plan.Plan) error {
	for _, h := range p.HostMounts {
		final := filepath.Dir(h.Source)
		if _, err := os.Stat(final); err == nil {
			continue
		}
		if err := durable.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		fresh, err := os.MkdirTemp(s.dir, ".new-")
		if err != nil {
			return durable.Explain(s.dir, err)
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
		if err := durable.SyncDir(s.dir); err != nil {
			return err
		}
	}
	return nil
}

func (s shared) fill(dir string, h plan.HostMount, user plan.Identity) error {
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
func (s shared) read(handle string) (mountRecord, error) {
	var r mountRecord
	none := fmt.Errorf("host mount %s: %w: 'kitbox mount ls' shows what there is", handle, kiterr.ErrNotFound)
	if b, err := hex.DecodeString(handle); err != nil || len(b) != 8 {
		return r, none
	}
	b, err := os.ReadFile(filepath.Join(s.dir, handle, mountFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, none
	}
	if err != nil {
		return r, durable.Explain(s.dir, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("host mount %s: %w", handle, err)
	}
	if r.Version != mountVersion {
		return r, fmt.Errorf("host mount %s has version %d, this kitbox reads version %d", handle, r.Version, mountVersion)
	}
	return r, nil
}

// HostMounts implements [sandbox.HostMounter]. It makes nothing.
func (e *Engine) HostMounts(context.Context) ([]sandbox.HostMount, error) {
	out := []sandbox.HostMount{}
	entries, err := os.ReadDir(e.shared.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, durable.Explain(e.shared.dir, err)
	}
	users, err := e.mounted()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		r, err := e.shared.read(entry.Name())
		if errors.Is(err, kiterr.ErrNotFound) {
			continue // half made, or half removed
		}
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(e.shared.dir, entry.Name(), "data")
		out = append(out, sandbox.HostMount{Handle: entry.Name(), Identity: r.Identity, Path: r.Path, Dir: dir, Sandboxes: users[dir]})
	}
	return out, nil
}

// mounted says which sandboxes mount which host directories.
func (e *Engine) mounted() (map[string][]string, error) {
	users := map[string][]string{}
	if !e.exists() {
		return users, nil
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := e.openName(name)
		if errors.Is(err, kiterr.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p, err := b.plan()
		if errors.Is(err, kiterr.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err // rather than take what it may be using
		}
		for _, m := range p.Machine.Mounts {
			users[m.Source] = append(users[m.Source], name)
		}
	}
	return users, nil
}

// ReadHostMount implements [sandbox.HostMounter]. Links in the directory were
// made by sandboxes, so none is followed out of it.
func (e *Engine) ReadHostMount(_ context.Context, handle, file string) (io.ReadCloser, error) {
	if err := e.privilege(); err != nil {
		return nil, err
	}
	if _, err := e.shared.read(handle); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Join(e.shared.dir, handle, "data"))
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

// RemoveHostMount implements [sandbox.HostMounter].
func (e *Engine) RemoveHostMount(_ context.Context, handle string) error {
	if err := e.privilege(); err != nil {
		return err
	}
	if _, err := e.shared.read(handle); err != nil {
		return err
	}
	users, err := e.mounted()
	if err != nil {
		return err
	}
	dir := filepath.Join(e.shared.dir, handle)
	if names := users[filepath.Join(dir, "data")]; len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("host mount %s is used by %s; remove it first with 'kitbox rm'", handle, strings.Join(names, ", "))
	}
	// Out of sight at once, so that a kill half way leaves nothing half there.
	gone := filepath.Join(e.shared.dir, ".gone-"+handle)
	if err := os.RemoveAll(gone); err != nil {
		return durable.Explain(gone, err)
	}
	if err := os.Rename(dir, gone); err != nil {
		return durable.Explain(dir, err)
	}
	return durable.Explain(gone, os.RemoveAll(gone))
}
