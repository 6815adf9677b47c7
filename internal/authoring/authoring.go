// Package authoring knows how the files of a Kit are named (§3): which one of a
// directory is its descriptor, and what belongs to that by name.
//
// It reads no descriptor, which package spec does, and builds nothing, which
// internal/frontend does: a program can find a Kit's files without linking a
// builder.
package authoring

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Syntax begins the references of the frontend that builds Kits, as written in
// a file's "# syntax=" line; a tag follows.
const Syntax = "docker/sandbox-kit"

// RecipeSuffix is the extension of a companion recipe (§3.1).
const RecipeSuffix = ".dockerfile"

// Stem returns the name of a descriptor's file without its extension. It names
// the Kit's companion and its directory of staged sources.
func Stem(file string) string {
	base := path.Base(filepath.ToSlash(file))
	switch ext := path.Ext(base); strings.ToLower(ext) {
	case ".yaml", ".yml", RecipeSuffix:
		base = strings.TrimSuffix(base, ext)
	}
	return base
}

// Companion returns the conventional recipe of a descriptor's file.
func Companion(file string) string {
	return path.Join(path.Dir(filepath.ToSlash(file)), Stem(file)+RecipeSuffix)
}

// schemaVersion is how a file shows itself to be a descriptor of any version.
var schemaVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^["']?schemaVersion["']?[ \t]*:`) })

// Find returns the descriptor's file in dir: the one named after the directory,
// or kit.yaml, or the only file that is a descriptor. None is
// [kiterr.ErrNotFound], or [fs.ErrPermission] if this user cannot look; several are
// refused with their names, and so is one that is too large.
func Find(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("%s cannot be read: %w", dir, fs.ErrPermission)
	} else if err != nil {
		return "", err
	}
	var found []string
	closed := "" // a file that could be one, and this user cannot read
	large := ""  // a file that would be one if it were not so large
	for _, e := range entries {
		shows := IsComment
		switch ext := strings.ToLower(filepath.Ext(e.Name())); {
		case ext == ".yaml", ext == ".yml":
			shows = schemaVersion().Match
		case ext == RecipeSuffix, e.Name() == "Dockerfile":
		default:
			continue
		}
		data, err := Read(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrPermission) && closed == "":
			closed = e.Name()
		case err != nil || !shows(data):
		case len(data) <= enough:
			found = append(found, e.Name())
		case large == "":
			large = e.Name()
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	for _, name := range []string{filepath.Base(abs), "kit"} {
		for _, ext := range []string{".yaml", ".yml", RecipeSuffix} {
			if slices.Contains(found, name+ext) {
				return name + ext, nil
			}
		}
	}
	if len(found) == 0 && closed != "" {
		return "", fmt.Errorf("%s cannot be read: %w", filepath.Join(dir, closed), fs.ErrPermission)
	}
	if len(found) == 0 && large != "" {
		return "", fmt.Errorf("%s has more than %d bytes, and a descriptor at most 524288: move large texts into the content: %w", filepath.Join(dir, large), enough, kiterr.ErrRefused)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no Kit descriptor in %s: it would be a .yaml file with a schemaVersion, such as %s.yaml: %w",
			dir, filepath.Base(abs), kiterr.ErrNotFound)
	}
	return "", ambiguous(dir, found)
}

// enough is what is read of a file to see whether it is a descriptor, in bytes.
const enough = 1 << 20

// Open opens a file of a Kit to be read. Its directory may be one that a sandbox
// writes to: what is a pipe there is not waited for, but is [kiterr.ErrRefused] like
// all that is no regular file. Whoever reads it has to have a bound.
func Open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", name, kiterr.ErrRefused)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read reads what may be a descriptor, or the beginning of what is too large to be
// one, as [Open] opens it.
func Read(name string) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, enough+1))
}

// IsComment reports whether data is a recipe whose head holds a descriptor
// (§3.3): the comments before its first instruction include the line "# kit:".
// Package spec takes such a file apart.
func IsComment(data []byte) bool {
	if schemaVersion().Match(data) {
		return false // a YAML descriptor, whatever its comments say
	}
	for l := range bytes.Lines(data) {
		text := strings.TrimRight(string(l), " \t\r\n")
		if text == "# kit:" {
			return true
		}
		if text != "" && !strings.HasPrefix(text, "#") {
			return false
		}
	}
	return false
}
