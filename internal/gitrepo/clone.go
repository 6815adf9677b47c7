package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Cloneable says why r cannot be cloned, before anything is made of it.
func (r *Repo) Cloneable() error {
	if r.Head == "" {
		return fmt.Errorf("%s cannot be cloned: it has no commit yet: %w", r.Dir, kiterr.ErrRefused)
	}
	return nil
}

// Whole says whether r has all that a clone of it would. What may lack something is a
// partial clone, which has packs that say so; others are not gone through. One that
// lacks something is [kiterr.ErrRefused].
func (r *Repo) Whole(ctx context.Context) error {
	packs, err := os.ReadDir(filepath.Join(r.Common, "objects", "pack"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !slices.ContainsFunc(packs, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".promisor") }) {
		return nil
	}
	own, err := borrow(ctx, r)
	if err != nil {
		return err
	}
	defer os.RemoveAll(own)
	tips := r.Head + "\n"
	for _, name := range r.Names(kept...) {
		tips += r.Refs[name] + "\n"
	}
	first := &absent{}
	err = git(ctx, own, strings.NewReader(tips), first, nil, "rev-list", "--objects", "--missing=print", "--stdin")
	switch {
	case first.id != "":
		return fmt.Errorf("%s cannot be cloned: %s: %w", r.Dir, lacking, kiterr.ErrRefused)
	case err != nil:
		return r.explain(err)
	}
	return nil
}

// lacking is why a partial clone cannot be cloned, and what can be done.
const lacking = "it lacks objects, as a partial clone does; 'git fetch --refetch --no-filter' there gets them"

// An absent finds the first object that rev-list says is missing, and then ends it.
type absent struct {
	id   string
	line []byte // of which no end has come, as far as it matters
}

// Write implements [io.Writer].
func (a *absent) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c != '\n':
			if len(a.line) < 65 {
				a.line = append(a.line, c)
			}
		case len(a.line) > 0 && a.line[0] == '?':
			a.id = string(a.line[1:])
			return 0, io.ErrShortWrite
		default:
			a.line = a.line[:0]
		}
	}
	return len(b), nil
}

// kept are the references that a clone has: what people call branches and tags,
// and not what tools keep beside them, such as stashes.
var kept = []string{"refs/heads/", "refs/tags/"}

// Clone makes a repository in the directory to, which does not exist, with the
// branches, the tags and their history, and the files of HEAD. It has no remote:
// nothing in it leads back to the host. Nothing that is not committed comes along,
// and no filter runs, so files that Git LFS keeps elsewhere stay references.
// On error the caller removes to.
func (r *Repo) Clone(ctx context.Context, to string) error {
	if err := r.Cloneable(); err != nil {
		return err
	}
	own := filepath.Join(to, ".git")
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if err := git(ctx, own, nil, nil, nil, "init", "-q", "--template=", "--object-format="+r.format()); err != nil {
		return err
	}
	if err := lend(own, r); err != nil {
		return err
	}
	if err := copyShallow(own, r); err != nil {
		return err
	}
	var refs strings.Builder
	for _, name := range r.Names(kept...) {
		fmt.Fprintf(&refs, "create %s %s\n", name, r.Refs[name])
	}
	if r.Branch != "" {
		if err := git(ctx, own, nil, nil, nil, "symbolic-ref", "HEAD", r.Branch); err != nil {
			return r.explain(err)
		}
	}
	if err := git(ctx, own, strings.NewReader(refs.String()), nil, nil, "update-ref", "--stdin"); err != nil {
		return r.explain(err)
	}
	if r.Branch == "" {
		if err := os.WriteFile(filepath.Join(own, "HEAD"), []byte(r.Head+"\n"), 0o644); err != nil {
			return err
		}
	}
	// Everything reachable is copied, and nothing else of what was lent.
	if err := git(ctx, own, nil, nil, nil, "repack", "-a", "-d", "-q"); err != nil {
		return r.explain(err)
	}
	if err := os.Remove(filepath.Join(own, alternates)); err != nil {
		return err
	}
	work := []string{"GIT_WORK_TREE=" + to}
	if err := git(ctx, own, nil, nil, work, "reset", "-q", "--hard"); err != nil {
		return r.explain(err)
	}
	return nil
}

func (r *Repo) explain(err error) error {
	if strings.Contains(err.Error(), "missing") || strings.Contains(err.Error(), "unable to read") || strings.Contains(err.Error(), "bad object") || strings.Contains(err.Error(), "nonexistent object") {
		return fmt.Errorf("%s cannot be cloned: %s: %w: %w", r.Dir, lacking, err, kiterr.ErrRefused)
	}
	return fmt.Errorf("cloning %s: %w", r.Dir, err)
}

// borrow makes a repository of our own in a temporary directory that can read the
// objects of rs. The caller removes it.
func borrow(ctx context.Context, rs ...*Repo) (own string, err error) {
	tmp, err := os.MkdirTemp("", "kitbox-git-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err = git(ctx, tmp, nil, nil, nil, "init", "-q", "--bare", "--template=", "--object-format="+rs[0].format()); err != nil {
		return "", err
	}
	if err = lend(tmp, rs...); err != nil {
		return "", err
	}
	return tmp, copyShallow(tmp, rs...)
}

// A Commit is one that exists nowhere else.
type Commit struct {
	ID      string
	Subject string // one line, printable
}

// An Unsaved is what would be lost with a clone.
type Unsaved struct {
	Commits []Commit // newest first, at most [MaxUnsaved]
	More    bool     // there are more commits
	Files   []string // changed and not committed, or new and not ignored; at most [MaxUnsaved]
}

// MaxUnsaved bounds the lists of an [Unsaved].
const MaxUnsaved = 100

// Unsaved finds what clone has and neither known, the ids of commits that it was
// made with, nor source lead to. A nil source is one that is gone.
func (clone *Repo) Unsaved(ctx context.Context, known []string, source *Repo) (Unsaved, error) {
	var u Unsaved
	lenders := []*Repo{clone}
	if source != nil && source.format() == clone.format() {
		lenders = append(lenders, source)
		for _, name := range source.Names("refs/") {
			known = append(known, source.Refs[name])
		}
		if source.Head != "" {
			known = append(known, source.Head)
		}
	}
	own, err := borrow(ctx, lenders...)
	if err != nil {
		return u, err
	}
	defer os.RemoveAll(own)
	tips := []string{}
	for _, name := range clone.Names("refs/") {
		tips = append(tips, clone.Refs[name])
	}
	if clone.Head != "" {
		tips = append(tips, clone.Head)
	}
	var in strings.Builder
	for _, id := range tips {
		in.WriteString(id + "\n")
	}
	known, err = there(ctx, own, known)
	if err != nil {
		return u, err
	}
	for _, id := range known {
		in.WriteString("^" + id + "\n")
	}
	var out bytes.Buffer
	if len(tips) > 0 {
		err = git(ctx, own, strings.NewReader(in.String()), &out, nil, "log", "--stdin", "--topo-order", fmt.Sprintf("--max-count=%d", MaxUnsaved+1), "--no-color", "--format=%H %<(200,trunc)%s")
		if err != nil {
			return u, err
		}
	}
	for line := range strings.Lines(out.String()) {
		id, subject, _ := strings.Cut(line, " ")
		if len(u.Commits) == MaxUnsaved {
			u.More = true
			break
		}
		u.Commits = append(u.Commits, Commit{ID: id, Subject: strings.TrimSpace(printable(strings.TrimRight(subject, "\n")))})
	}
	if clone.Head == "" {
		return u, nil
	}
	// The clone's own index may say anything; one of ours is made from HEAD.
	if err := os.WriteFile(filepath.Join(own, "HEAD"), []byte(clone.Head+"\n"), 0o600); err != nil {
		return u, err
	}
	env := []string{"GIT_WORK_TREE=" + clone.Dir, "GIT_INDEX_FILE=" + filepath.Join(own, "index")}
	if err := git(ctx, own, nil, nil, env, "read-tree", clone.Head); err != nil {
		return u, err
	}
	out.Reset()
	if err := git(ctx, own, nil, &limited{&out, 1 << 20}, env, "-C", clone.Dir, "-c", "core.bare=false", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=all"); err != nil {
		return u, err
	}
	for _, e := range strings.Split(out.String(), "\x00") {
		if len(e) > 3 && len(u.Files) < MaxUnsaved {
			u.Files = append(u.Files, printable(e[3:]))
		}
	}
	return u, nil
}

// there returns those of ids that own can read as commits.
func there(ctx context.Context, own string, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var out bytes.Buffer
	err := git(ctx, own, strings.NewReader(strings.Join(ids, "\n")+"\n"), &out, nil, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return nil, err
	}
	var have []string
	for line := range strings.Lines(out.String()) {
		if id, kind, _ := strings.Cut(strings.TrimSpace(line), " "); kind == "commit" || kind == "tag" {
			have = append(have, id)
		}
	}
	return have, nil
}

// Bundle writes the branches, the tags and HEAD of clone to w as a Git bundle,
// which 'git fetch' reads: a file, in which nothing can make git run a program.
func (clone *Repo) Bundle(ctx context.Context, w io.Writer) error {
	own, err := borrow(ctx, clone)
	if err != nil {
		return err
	}
	defer os.RemoveAll(own)
	var refs strings.Builder
	names := clone.Names(kept...)
	for _, name := range names {
		fmt.Fprintf(&refs, "create %s %s\n", name, clone.Refs[name])
	}
	if clone.Head != "" {
		if clone.Branch == "" {
			if err := os.WriteFile(filepath.Join(own, "HEAD"), []byte(clone.Head+"\n"), 0o600); err != nil {
				return err
			}
		} else if err := git(ctx, own, nil, nil, nil, "symbolic-ref", "HEAD", clone.Branch); err != nil {
			return err
		}
		names = append(names, "HEAD")
	}
	if len(names) == 0 {
		return fmt.Errorf("the workspace has no commit: %w", kiterr.ErrNotFound)
	}
	if err := git(ctx, own, strings.NewReader(refs.String()), nil, nil, "update-ref", "--stdin"); err != nil {
		return err
	}
	return git(ctx, own, strings.NewReader(strings.Join(names, "\n")+"\n"), w, nil, "bundle", "create", "-q", "-", "--stdin")
}
