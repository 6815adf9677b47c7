// Package cover finds out which paths of a host directory are to be hidden from a
// machine or protected against it, now and while it runs.
//
// It reads the directory and decides; laying mounts over what it found is the
// business of the guest at boot (internal/guest/inside) and of the driver later.
// The directory belongs to the machine as much as to the host, so every look is
// taken below an open root, and no link leads out of it.
package cover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Found is one path to be covered.
type Found struct {
	Path string         `json:"path"` // below the root, without "." and ".."
	Kind plan.CoverKind `json:"kind"` // hide, keep or pin
	Dir  bool           `json:"dir,omitempty"`
}

// maxFound bounds what one mount can have covered: each is a mount of the
// machine's, and the kernel has a bound on those.
const maxFound = 8192

// Find returns what of root the rules are about, every directory before what is
// in it. A file that is to be hidden and has several names is hidden under all of
// them, and one that is a symbolic link is hidden where it leads to, unless that
// is outside of root, where the machine cannot follow.
func Find(root string, cs []plan.Cover) ([]Found, error) {
	s, err := newSearch(root, cs)
	if err != nil {
		return nil, err
	}
	defer s.root.Close()
	if err := s.walk("."); err != nil {
		return nil, err
	}
	if err := s.otherNames(); err != nil {
		return nil, err
	}
	return s.result(), nil
}

// A search is one look at a directory.
type search struct {
	root   *os.Root
	rules  []rule
	found  map[string]Found
	links  map[inode]int    // of hidden files with several names: how many names are not found yet
	linked map[inode]bool   // same, for the second walk
	enter  func(dir string) // told of every directory that is looked into; may be nil
}

type inode struct {
	dev, ino uint64
}

func newSearch(root string, cs []plan.Cover) (*search, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	var active []plan.Cover
	for _, c := range cs {
		if c.If != "" {
			if _, err := r.Lstat(c.If); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		active = append(active, c)
	}
	rs, err := parse(active)
	if err != nil {
		r.Close()
		return nil, err
	}
	return &search{root: r, rules: rs, found: map[string]Found{}, links: map[inode]int{}}, nil
}

// Make makes what rules say is to be there, so that it can be kept. A directory
// that it would be in and that is not there is not made.
func Make(root string, cs []plan.Cover) error {
	s, err := newSearch(root, cs)
	if err != nil {
		return err
	}
	defer s.root.Close()
	for _, c := range cs {
		if c.Make == "" {
			continue
		}
		if c.If != "" {
			if _, err := s.root.Lstat(c.If); err != nil {
				continue
			}
		}
		dir, base := path.Split(strings.Trim(c.Pattern, "/"))
		dirs, err := fs.Glob(s.root.FS(), path.Clean(dir))
		if err != nil {
			return err
		}
		for _, d := range dirs {
			if err := s.make(d, path.Join(d, base), c.Make); err != nil {
				return fmt.Errorf("making %s in %s: %w", path.Join(d, base), root, err)
			}
		}
	}
	return nil
}

func (s *search) make(dir, p, kind string) error {
	st, err := s.root.Lstat(dir)
	if err != nil || !st.IsDir() {
		return passing(err) // a file that leads to a repository, for example
	}
	if _, err := s.root.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
		return passing(err)
	}
	if kind == plan.MakeDir {
		err = s.root.Mkdir(p, 0o755)
	} else {
		var f *os.File
		if f, err = s.root.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.root.Lchown(p, int(sys.Uid), int(sys.Gid))
	}
	return nil
}

// walk looks into directory dir and at what is below it.
func (s *search) walk(dir string) error {
	if s.enter != nil {
		s.enter(dir)
	}
	f, err := s.root.Open(dir)
	if err != nil {
		return passing(err)
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return passing(err)
	}
	for _, e := range entries {
		rel := e.Name()
		if dir != "." {
			rel = dir + "/" + rel
		}
		covered, err := s.look(rel, e.IsDir())
		if err != nil {
			return err
		}
		if !e.IsDir() || covered || bulk(rel) || !s.into(rel) {
			continue
		}
		if err := s.walk(rel); err != nil {
			return err
		}
	}
	return nil
}

// bulk names a directory of Git's objects: nobody's names, and very many.
func bulk(rel string) bool {
	return path.Base(rel) == "objects" && strings.Contains("/"+rel, "/.git/")
}

func (s *search) into(rel string) bool {
	return slices.ContainsFunc(s.rules, func(r rule) bool { return r.below(rel) }) || s.linked != nil
}

// passing drops the error of something that went away meanwhile, or that even
// the host may not read: then the machine, which has fewer rights, may not.
func passing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// look judges one path and reports whether all below it is covered with it.
func (s *search) look(rel string, dir bool) (bool, error) {
	if s.linked != nil {
		if st, err := s.root.Lstat(rel); err == nil && !dir && s.linked[inodeOf(st)] {
			return false, s.add(rel, plan.CoverHide, false)
		}
		return false, nil
	}
	kind := plan.CoverKind("")
	for _, r := range s.rules {
		if r.kind != plan.CoverForbid && r.matches(rel, dir) && rank(r.kind) > rank(kind) {
			kind = r.kind
		}
	}
	if kind == "" {
		return false, nil
	}
	st, err := s.root.Lstat(rel)
	if err != nil {
		return false, passing(err)
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		// Mounts cannot be laid over a link, and it holds no content.
		if kind != plan.CoverHide {
			return false, fmt.Errorf("%s is a symbolic link, which cannot be protected: %w", rel, kiterr.ErrRefused)
		}
		return false, s.follow(rel)
	}
	if kind == plan.CoverPin && !st.IsDir() {
		kind = plan.CoverKeep
	}
	if kind == plan.CoverHide && st.Mode().IsRegular() {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink > 1 {
			if _, seen := s.links[inodeOf(st)]; !seen {
				s.links[inodeOf(st)] = int(sys.Nlink)
			}
		}
	}
	if err := s.add(rel, kind, st.IsDir()); err != nil {
		return false, err
	}
	return kind == plan.CoverHide || kind == plan.CoverKeep, nil
}

// rank orders the kinds: where two rules are about one path, the stricter holds.
func rank(k plan.CoverKind) int {
	return slices.Index([]plan.CoverKind{"", plan.CoverPin, plan.CoverKeep, plan.CoverHide}, k)
}

// follow hides what the link rel leads to, if that is below the root.
func (s *search) follow(rel string) error {
	base, err := filepath.EvalSymlinks(s.root.Name())
	if err != nil {
		return passing(err)
	}
	target, err := filepath.EvalSymlinks(filepath.Join(base, rel))
	if err != nil {
		return passing(err) // it leads nowhere
	}
	at, err := filepath.Rel(base, target)
	if err != nil {
		return err
	}
	if at == ".." || strings.HasPrefix(at, "../") {
		return nil
	}
	if at == "." {
		return fmt.Errorf("%s is a symbolic link to all of the directory and cannot be hidden; name what is to be hidden: %w", rel, kiterr.ErrRefused)
	}
	st, err := s.root.Lstat(at)
	if err != nil {
		return passing(err)
	}
	return s.add(at, plan.CoverHide, st.IsDir())
}

func (s *search) add(rel string, kind plan.CoverKind, dir bool) error {
	if have, ok := s.found[rel]; ok && rank(have.Kind) >= rank(kind) {
		return nil
	}
	s.found[rel] = Found{Path: rel, Kind: kind, Dir: dir}
	if kind == plan.CoverKeep || kind == plan.CoverPin {
		// A directory on the way could be renamed, and another made in its
		// place.
		for up := path.Dir(rel); up != "."; up = path.Dir(up) {
			if _, ok := s.found[up]; !ok {
				s.found[up] = Found{Path: up, Kind: plan.CoverPin, Dir: true}
			}
		}
	}
	if len(s.found) > maxFound {
		return fmt.Errorf("more than %d files and directories are to be covered; narrow the patterns: %w", maxFound, kiterr.ErrRefused)
	}
	return nil
}

// otherNames finds hidden files again under names that no rule is about.
func (s *search) otherNames() error {
	if len(s.links) == 0 {
		return nil
	}
	s.linked = map[inode]bool{}
	for i := range s.links {
		s.linked[i] = true
	}
	s.enter = nil
	err := s.walk(".")
	s.linked = nil
	return err
}

func (s *search) result() []Found {
	var out []Found
	for rel, f := range s.found {
		hidden := false
		for up := path.Dir(rel); up != "."; up = path.Dir(up) {
			if have, ok := s.found[up]; ok && have.Kind == plan.CoverHide {
				hidden = true
			}
		}
		if !hidden {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b Found) int {
		if d := strings.Count(a.Path, "/") - strings.Count(b.Path, "/"); d != 0 {
			return d
		}
		return strings.Compare(a.Path, b.Path)
	})
	return out
}

func inodeOf(st fs.FileInfo) inode {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}
	}
	return inode{sys.Dev, sys.Ino}
}
