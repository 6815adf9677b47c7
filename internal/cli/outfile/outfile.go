// Package outfile writes files that users name, so that there is never half of one.
package outfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write makes the file name of what write puts into f, which stands beside it and is
// renamed once it is whole. f can be read and written by its owner unless write gives
// it another mode. On error what was there before is as it was, and errors that speak
// of a file speak of name.
func Write(name string, write func(f *os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return named(name, err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	if err := errors.Join(write(f), f.Close()); err != nil {
		return named(name, err)
	}
	return named(name, os.Rename(f.Name(), name))
}

// named makes an error of the file beside name, which nobody has heard of, one of
// name.
func named(name string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p) && strings.HasPrefix(filepath.Base(p.Path), "."+filepath.Base(name)+"-"):
		return &fs.PathError{Op: p.Op, Path: name, Err: p.Err}
	case errors.As(err, &l):
		return &fs.PathError{Op: l.Op, Path: name, Err: l.Err}
	}
	return err
}
