// Package store opens a kitbox home: the one directory below which all that
// kitbox keeps lies, whatever the process. Each part has a package of its own
// below this one: layout (images), layer (unpacked layers and their
// composition), state (sandboxes) and durable (how all of them write).
//
// Several processes use one home at once; nothing here needs a daemon.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/internal/store/place"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Home is a directory of kitbox's own. Its methods can be called
// concurrently and from several processes.
type Home struct{ dir string }

// DefaultDir returns the home that env asks for: see [place.Dir].
func DefaultDir(env func(string) string) (string, error) { return place.Dir(env) }

// Open makes the home at dir, an absolute path, if need be (mode 0700) and
// checks that it can be written. The subdirectories are made on first use.
func Open(dir string) (*Home, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("home %s is not an absolute path: set KITBOX_HOME to one: %w", dir, kiterr.ErrUnavailable)
	}
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := ours(dir); err != nil {
		return nil, err
	}
	// Mkdir of something that exists tells a read-only file system and a
	// foreign directory apart from a usable one without writing anything.
	marker := filepath.Join(dir, "layers")
	if err := os.Mkdir(marker, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, durable.Explain(dir, err)
	} else if err != nil {
		if err := access(dir); err != nil {
			return nil, durable.Explain(dir, err)
		}
	}
	return &Home{dir: dir}, nil
}

// ours refuses a home that somebody else can change: what lies in it decides
// which directories of the host a sandbox is given, and with whose rights.
func ours(dir string) error {
	fault, remedy, err := Exposed(dir)
	if err != nil {
		return durable.Explain(dir, err)
	}
	if fault != "" {
		return fmt.Errorf("home %s: %s: %w", fault, remedy, kiterr.ErrUnavailable)
	}
	return nil
}

// Exposed says why the directory dir cannot be a home, since somebody else can
// change it, and what to do about that. Both are empty if nobody can.
func Exposed(dir string) (fault, remedy string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", "", err
	}
	switch {
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Sprintf("%s belongs to user %d and not to %d, who runs this", dir, st.Uid, os.Geteuid()), "set KITBOX_HOME to a directory of your own", nil
	case st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && int(st.Gid) != os.Getegid():
		return dir + " can be changed by other users", "take that away with 'chmod go-w " + dir + "'", nil
	}
	return "", "", nil
}

// Dir is the home itself. The others are its parts; those that return a path
// do not make it.
func (h *Home) Dir() string       { return h.dir }
func (h *Home) ImagesDir() string { return filepath.Join(h.dir, "images") }

// BuilderDir is the root of kit-builder.
func (h *Home) BuilderDir() string { return filepath.Join(h.dir, "builder") }

// BuildsDir holds one record per source key.
func (h *Home) BuildsDir() string { return filepath.Join(h.dir, "builds") }

// MachinesDir is the driver's.
func (h *Home) MachinesDir() string { return filepath.Join(h.dir, "machines") }

// LayersDir holds one directory per unpacked layer.
func (h *Home) LayersDir() string { return filepath.Join(h.dir, "layers") }

// SandboxesDir holds one directory per sandbox name.
func (h *Home) SandboxesDir() string { return filepath.Join(h.dir, state.Dir) }

// VolumesDir holds block storage, per sandbox name.
func (h *Home) VolumesDir() string { return filepath.Join(h.dir, "volumes") }

// Images opens the image store.
func (h *Home) Images() (*layout.Store, error) { return layout.Open(h.ImagesDir()) }

// Layers opens the layer store, which unpacks blobs of images.
func (h *Home) Layers() (*layer.Store, error) { return layer.Open(h.LayersDir()) }

// Sandboxes opens the sandboxes' state.
func (h *Home) Sandboxes() (*state.Store, error) { return state.Open(h.SandboxesDir()) }

// Swept says what a sweep deleted.
type Swept struct {
	Blobs, Layers int
	Bytes         int64
}

// Sweep deletes blobs and unpacked layers that nothing refers to and that were
// not touched within grace: neither a tag nor a build record leads to them,
// nor, for layers, does a stored plan. It is safe beside other processes, which
// touch what they use; a grace shorter than the longest build or pull is not.
func (h *Home) Sweep(ctx context.Context, grace time.Duration) (Swept, error) {
	images, err := h.Images()
	if err != nil {
		return Swept{}, err
	}
	h.forgetBuilds(time.Now())
	roots, err := h.builtImages()
	if err != nil {
		return Swept{}, err
	}
	blobs, diffs, err := images.Sweep(ctx, roots, grace)
	if err != nil {
		return Swept{}, err
	}
	used, err := h.plannedLayers()
	if err != nil {
		return Swept{}, err
	}
	layers, err := h.Layers()
	if err != nil {
		return Swept{}, err
	}
	n, freed, err := layers.Sweep(ctx, func(dir string, id digest.Digest) bool {
		return used[dir] || diffs[id]
	}, grace)
	return Swept{Blobs: blobs.Count, Layers: n, Bytes: blobs.Bytes + freed}, err
}

// buildMemory is how long a build that nobody asks for is remembered, and so how
// long its image survives without a tag.
const buildMemory = 30 * 24 * time.Hour

// forgetBuilds deletes old build records, records of file hashes and checked out
// trees; all are touched when they are used. It is no matter if it fails: what is kept is
// larger than need be, nothing else.
func (h *Home) forgetBuilds(now time.Time) {
	for _, pattern := range []string{"*.json", "files/*.json", "git/*/*"} {
		names, _ := filepath.Glob(filepath.Join(h.BuildsDir(), pattern))
		for _, n := range names {
			if st, err := os.Stat(n); err == nil && now.Sub(st.ModTime()) > buildMemory {
				os.RemoveAll(n)
			}
		}
	}
}

// builtImages returns the manifests that build records name.
func (h *Home) builtImages() ([]digest.Digest, error) {
	names, err := filepath.Glob(filepath.Join(h.BuildsDir(), "*.json"))
	if err != nil {
		return nil, err
	}
	var out []digest.Digest
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			continue // deleted since
		}
		var rec struct {
			Digest digest.Digest `json:"digest"`
		}
		// A record that does not parse protects nothing and is rebuilt.
		if json.Unmarshal(data, &rec) == nil && rec.Digest.Validate() == nil {
			out = append(out, rec.Digest)
		}
	}
	return out, nil
}

// plannedLayers returns the layer directories that stored plans and machines
// name. It looks for their paths in the text rather than decode it, so that a
// plan of another version still protects what it uses.
func (h *Home) plannedLayers() (map[string]bool, error) {
	used := map[string]bool{}
	prefix := h.LayersDir() + "/"
	for _, pattern := range []string{filepath.Join(h.SandboxesDir(), "*", "*.json"), filepath.Join(h.MachinesDir(), "*", "*.json")} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, durable.Explain(f, err) // not knowing is no licence to delete
			}
			for text := string(data); ; {
				_, rest, ok := strings.Cut(text, prefix)
				if !ok {
					break
				}
				name := rest
				if i := strings.IndexAny(rest, "/\"\\ \n"); i >= 0 {
					name = rest[:i]
				}
				used[prefix+name] = true
				text = rest
			}
		}
	}
	return used, nil
}
