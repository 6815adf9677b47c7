package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The files of a log at PATH: PATH is written to, PATH.1, PATH.2 and so on were put
// aside in that order, and PATH.n.sum is what all up to and including n were folded
// into.

// A part is a file that was put aside.
type part struct {
	path string
	n    int
	sum  bool
}

// parts lists the files of the log at path that were put aside, the oldest first,
// without those that a sum covers, which are returned apart.
func parts(path string) (live, covered []part, err error) {
	dir, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	var all []part
	folded := 0
	for _, e := range dir {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if !ok {
			continue
		}
		number, sum := strings.CutSuffix(rest, ".sum")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || strconv.Itoa(n) != number {
			continue
		}
		all = append(all, part{filepath.Join(filepath.Dir(path), e.Name()), n, sum})
		if sum {
			folded = max(folded, n)
		}
	}
	slices.SortFunc(all, func(a, b part) int { return a.n - b.n })
	for _, p := range all {
		if p.n > folded || p.sum && p.n == folded {
			live = append(live, p)
		} else {
			covered = append(covered, p)
		}
	}
	return live, covered, nil
}

// openPart opens a file of the log. What is none is neither followed nor waited for: a
// pipe under its name would hold up for ever who reads, and a keeper that folds or
// writes.
func openPart(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link and no file of the log; move it away", path)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file of the log; move it away", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// rotate puts the file aside and begins another. If that cannot be done the file
// grows on for a while; l.mu is held.
func (l *Log) rotate() {
	f, err := replace(l.path)
	if err != nil {
		l.aside = l.held + l.size()/8
		return
	}
	if l.torn {
		_, _ = l.file.Write([]byte{'\n'}) // else a reader waits for its end
	}
	l.file.Close()
	l.W, l.file, l.held, l.aside, l.torn = f, f, 0, 0, false
	l.foldOld()
}

// replace gives the file at path the next number and returns a new one in its place.
// On error nothing has changed.
func replace(path string) (*os.File, error) {
	live, _, err := parts(path)
	if err != nil {
		return nil, err
	}
	n := 1
	if len(live) > 0 {
		n = live[len(live)-1].n + 1
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(fresh, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	aside := fmt.Sprintf("%s.%d", path, n)
	if err = os.Rename(path, aside); err == nil {
		if err = os.Rename(fresh, path); err != nil {
			err = errors.Join(err, os.Rename(aside, path))
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(fresh))
	}
	return f, nil
}

// foldOld folds what is too much, beside all else, and not twice at a time.
func (l *Log) foldOld() {
	if !l.busy.CompareAndSwap(false, true) {
		return
	}
	l.folding.Go(func() {
		defer l.busy.Store(false)
		_ = fold(l.path, Kept, l.ending.Load) // else the next does
	})
}
