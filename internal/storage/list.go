package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Piece is storage that exists.
type Piece struct {
	Name  string // of its sandboxes
	Place string // on the host: a directory, or the file of a bounded one
	Terms plan.Volume

	// UsedBytes is what it takes of the disk; -1 when that is not known
	// without looking at every file.
	UsedBytes int64
}

// List returns the storage of one name, or of all when name is empty, in order
// of name and path. It makes nothing.
func (s Store) List(name string) ([]Piece, error) {
	names := []string{name}
	if name == "" {
		var err error
		if names, err = entries(s.Dir); err != nil {
			return nil, err
		}
	}
	var out []Piece
	for _, name := range names {
		paths, err := entries(filepath.Join(s.Dir, name))
		if err != nil {
			return nil, err
		}
		for _, escaped := range paths {
			path, err := url.PathUnescape(escaped)
			if err != nil {
				continue
			}
			v, ok, err := s.Retained(name, path)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue // half made, or half removed
			}
			p := Piece{Name: name, Place: s.Place(name, path, v.Bounded), Terms: v, UsedBytes: -1}
			if v.Bounded {
				if used, err := loopfs.Used(p.Place); err == nil {
					p.UsedBytes = used
				}
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// entries lists a directory that may be missing, without hidden names.
func entries(dir string) ([]string, error) {
	es, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, durable.Explain(dir, err)
	}
	var names []string
	for _, e := range es {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Remove deletes the storage of name at path, or all of that name when path is
// empty. used reports which places a sandbox has; it is asked when nobody can
// begin to use the storage any more, and one that is used ends the removal before
// anything is deleted. What is not there is not missed.
func (s Store) Remove(ctx context.Context, name, path string, used func() (map[string][]string, error)) error {
	if _, err := os.Stat(filepath.Join(s.Dir, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := s.hold(ctx, name)
	if err != nil {
		return err
	}
	defer l.Unlock()
	users, err := used()
	if err != nil {
		return err
	}
	// What a kill left without terms goes as well, so not only what is listed.
	escaped, err := entries(filepath.Join(s.Dir, name))
	if err != nil {
		return err
	}
	var paths []string
	for _, e := range escaped {
		p, err := url.PathUnescape(e)
		if err != nil || path != "" && p != path {
			continue
		}
		if len(users[s.Place(name, p, false)])+len(users[s.Place(name, p, true)]) > 0 {
			return &InUseError{Name: name, Path: p}
		}
		paths = append(paths, p)
	}
	for _, p := range paths {
		if err := s.delete(name, p); err != nil {
			return err
		}
	}
	return nil
}

// An InUseError says that a sandbox has the storage, running or stopped. It matches
// [kiterr.ErrRefused].
type InUseError struct{ Name, Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("volume %s of %s is mounted in that sandbox; remove it first with 'kitbox rm %s'", e.Path, e.Name, e.Name)
}

func (e *InUseError) Is(target error) bool { return target == kiterr.ErrRefused }
