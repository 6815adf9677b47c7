// Package lockfile reads and writes the file of a lock, and has the options of commands
// that take one.
//
// Directories stand in the file as seen from its own directory, and in a
// [sandbox.Lock] as seen from the working directory. What a lock says is read by
// package sandbox.
package lockfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/outfile"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Name is the file of a lock unless another is named.
const Name = "kitbox.lock"

// isPathRef reports whether a Kit is named by where it is.
func isPathRef(ref string) bool {
	return ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../")
}

// moved returns l with its relative directories, which are seen from one
// directory, as seen from another.
func moved(l *sandbox.Lock, from, to string) (*sandbox.Lock, error) {
	out := *l
	out.Kits = slices.Clone(l.Kits)
	for i, k := range out.Kits {
		if !isPathRef(k.Ref) {
			continue
		}
		a, err := filepath.Abs(filepath.Join(from, k.Ref))
		if err != nil {
			return nil, err
		}
		b, err := filepath.Abs(to)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(b, a)
		if err != nil {
			return nil, err
		}
		if rel = filepath.ToSlash(rel); !isPathRef(rel) {
			rel = "./" + rel
		}
		out.Kits[i].Ref = rel
	}
	return &out, nil
}

// Write writes l to the file name. A file that says the same already is left alone; one
// that cannot be written is left as it was.
func Write(name string, l *sandbox.Lock) error {
	l, err := moved(l, ".", filepath.Dir(name))
	if err != nil {
		return err
	}
	b, err := l.Encode()
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(name); err == nil && string(old) == string(b) {
		return nil // whoever watches the file has nothing to do
	}
	return outfile.Write(name, func(f *os.File) error {
		_, err := f.Write(b)
		return errors.Join(err, f.Chmod(0o644), f.Sync())
	})
}

// Read reads the lock in the file name. One that is not there is [kiterr.ErrNotFound].
// A pipe is read if the caller names it; under the usual name it is whoever can write
// the directory, such as a sandbox, who made one, and it is [kiterr.ErrRefused].
func Read(name string) (*sandbox.Lock, error) {
	how := os.O_RDONLY
	if name == Name {
		how |= syscall.O_NONBLOCK // no writer is waited for
	}
	f, err := os.OpenFile(name, how, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s: 'kitbox lock KIT' writes one: %w", name, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && !st.Mode().IsRegular() && name == Name {
		return nil, fmt.Errorf("%s is not a regular file: 'kitbox lock KIT' writes one: %w", name, kiterr.ErrRefused)
	}
	l, err := sandbox.DecodeLock(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return moved(l, filepath.Dir(name), ".")
}

// Choice are the options of commands that take a lock.
type Choice struct {
	file   string
	locked bool
}

// Flags adds --lock and --locked to cmd.
func (k *Choice) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.file, "lock", "", "make it of exactly the Kits in the lock `FILE`; KIT can be left out")
	cmd.Flags().BoolVar(&k.locked, "locked", false, "the same with "+Name+" in this directory")
}

// Read returns the lock that was asked for, or nil.
func (k *Choice) Read(cmd *cobra.Command) (*sandbox.Lock, error) {
	switch {
	case k.locked && k.file != "":
		return nil, argument.Mistake(cmd, "--locked is --lock %s; give one of them", Name)
	case k.locked:
		return Read(Name)
	case k.file != "":
		return Read(k.file)
	}
	return nil, nil
}

// Spelled returns how the lock writes ref, which may be another way to a
// directory.
func Spelled(l *sandbox.Lock, ref string) (string, bool) {
	for _, k := range l.Kits {
		if k.Ref == ref || isPathRef(k.Ref) && isPathRef(ref) && filepath.Clean(k.Ref) == filepath.Clean(ref) {
			return k.Ref, true
		}
	}
	return ref, false
}
