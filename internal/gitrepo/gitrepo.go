// Package gitrepo reads Git repositories that nobody trusts: the one that a
// workspace is cloned from, and the clone once a sandbox has written to it.
//
// A repository can make the host's git run programs in many ways, all of them
// through its configuration, its hooks or its location. So git is never run *in*
// such a repository: references are read here, and git gets a repository of our
// own, with an empty configuration, that only borrows the objects.
package gitrepo

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// The bounds on what is read of a repository.
const (
	maxSmall = 4 << 10  // a reference, a link to a directory, in bytes
	maxRefs  = 16 << 20 // packed references, in bytes
	maxCount = 50_000   // references
)

// A Repo is a repository as its files say.
type Repo struct {
	Dir    string            // its working tree
	Common string            // where objects and references are
	Own    string            // where HEAD is; differs from Common in a linked working tree
	Head   string            // the object that is checked out; empty before the first commit
	Branch string            // full name of the reference that HEAD stands for; empty when detached
	Refs   map[string]string // object ids by full name, e.g. refs/heads/main
}

// Linked reports whether r is one of several working trees of a repository.
func (r *Repo) Linked() bool { return r.Common != r.Own }

// Shallow reports whether history is cut off.
func (r *Repo) Shallow() bool {
	_, err := os.Lstat(filepath.Join(r.Common, "shallow"))
	return err == nil
}

// Open reads the repository whose working tree is dir. One that is none, or that
// cannot be read here, is [kiterr.ErrRefused] with the reason.
func Open(dir string) (*Repo, error) {
	r := &Repo{Dir: dir, Own: filepath.Join(dir, ".git"), Refs: map[string]string{}}
	st, err := os.Lstat(r.Own)
	if errors.Is(err, fs.ErrNotExist) {
		why := "it is not a Git repository; without --clone the directory itself is given"
		for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
			if _, err := os.Lstat(filepath.Join(up, ".git")); err == nil {
				why = "it lies within the Git repository " + up + "; name that"
				break
			}
			if up == filepath.Dir(up) {
				break
			}
		}
		return nil, fmt.Errorf("%s cannot be cloned: %s: %w", dir, why, kiterr.ErrRefused)
	}
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		text, err := small(r.Own)
		if err != nil {
			return nil, err
		}
		to, ok := strings.CutPrefix(text, "gitdir: ")
		if !ok {
			return nil, fmt.Errorf("%s cannot be cloned: its .git leads to no repository: %w", dir, kiterr.ErrRefused)
		}
		r.Own = from(dir, to)
	}
	r.Common = r.Own
	if to, err := small(filepath.Join(r.Own, "commondir")); err == nil {
		r.Common = from(r.Own, to)
	}
	if st, err := os.Stat(filepath.Join(r.Common, "objects")); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("%s cannot be cloned: its repository %s is not there or not whole: %w", dir, r.Common, kiterr.ErrRefused)
	}
	return r, r.read()
}

// Bare opens the repository directory dir, whose working tree is work. It follows
// nothing that the directory says of others.
func Bare(dir, work string) (*Repo, error) {
	r := &Repo{Dir: work, Own: dir, Common: dir, Refs: map[string]string{}}
	return r, r.read()
}

func from(dir, to string) string {
	if filepath.IsAbs(to) {
		return filepath.Clean(to)
	}
	return filepath.Join(dir, to)
}

func (r *Repo) read() error {
	if _, err := os.Lstat(filepath.Join(r.Common, "reftable")); err == nil {
		return fmt.Errorf("%s cannot be read: it keeps its references in reftables, which kitbox does not read; 'git refs migrate --ref-format=files' changes that: %w", r.Dir, kiterr.ErrRefused)
	}
	root, err := os.OpenRoot(r.Common)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := r.packed(root); err != nil {
		return err
	}
	if err := r.loose(root, "refs"); err != nil {
		return err
	}
	head, err := small(filepath.Join(r.Own, "HEAD"))
	if err != nil {
		return fmt.Errorf("%s: reading HEAD: %w", r.Dir, err)
	}
	if name, ok := strings.CutPrefix(head, "ref: "); ok {
		if name = strings.TrimSpace(name); !strings.HasPrefix(name, "refs/heads/") {
			return fmt.Errorf("%s: HEAD is %q, which is no branch: %w", r.Dir, name, kiterr.ErrRefused)
		}
		r.Branch, r.Head = name, r.Refs[name]
	} else if isID(head) {
		r.Head = head
	} else {
		return fmt.Errorf("%s: HEAD is damaged: %w", r.Dir, kiterr.ErrRefused)
	}
	return nil
}

// packed reads the references that are kept in one file.
func (r *Repo) packed(root *os.Root) error {
	f, err := open(root, "packed-refs")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(io.LimitReader(f, maxRefs))
	for s.Scan() {
		if id, name, ok := strings.Cut(s.Text(), " "); ok && isID(id) {
			if err := r.add(name, id); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

// loose reads the references that are a file each, below dir. A symbolic one, such
// as that of a remote's default branch, leads to others that are read anyway.
func (r *Repo) loose(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return nil //nolint:nilerr // gone meanwhile, or not a directory
	}
	entries, err := d.ReadDir(maxCount)
	d.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		if e.IsDir() {
			if strings.Count(name, "/") < 64 {
				if err := r.loose(root, name); err != nil {
					return err
				}
			}
			continue
		}
		f, err := open(root, name)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(f, maxSmall))
		f.Close()
		if err != nil {
			return err
		}
		if id := strings.TrimSpace(string(b)); isID(id) {
			if err := r.add(name, id); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Repo) add(name, id string) error {
	if !strings.HasPrefix(name, "refs/") || strings.ContainsAny(name, "\n\x00 ") {
		return nil
	}
	if r.Refs[name] = id; len(r.Refs) > maxCount {
		return fmt.Errorf("%s has more than %d references: %w", r.Dir, maxCount, kiterr.ErrRefused)
	}
	return nil
}

// Names are the references below one of prefixes, sorted.
func (r *Repo) Names(prefixes ...string) []string {
	var out []string
	for name := range r.Refs {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// open opens an ordinary file, without waiting for anything.
func open(root *os.Root, name string) (*os.File, error) {
	st, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not an ordinary file: %w", name, fs.ErrNotExist)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it can be a pipe by now
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is not an ordinary file: %w", name, fs.ErrNotExist)
	}
	return f, nil
}

// small reads a file of one line.
func small(p string) (string, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a sandbox may have made it a pipe
	if err != nil {
		return "", err
	}
	defer f.Close()
	notGits := fmt.Errorf("%s is not what Git puts there: %w", p, kiterr.ErrRefused)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", cmp.Or(err, notGits)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if len(b) > maxSmall {
		return "", notGits
	}
	return strings.TrimSpace(string(b)), err
}

// isID reports whether s is an object id, SHA-1 or SHA-256.
func isID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}
