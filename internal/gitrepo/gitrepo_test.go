package gitrepo

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/juggler"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// run is the user's own git, for making what is judged.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_CONFIG_NOSYSTEM=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func put(t *testing.T, p, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// source makes a repository of two commits, a tag, a second branch, a stash, and
// files that are not committed.
func source(t *testing.T) string {
	t.Helper()
	needs.Program(t, "git", "apt-get install git")
	dir := filepath.Join(t.TempDir(), "src")
	run(t, filepath.Dir(dir), "init", "-q", dir)
	for _, n := range []string{"one", "two"} {
		put(t, filepath.Join(dir, n), n)
		run(t, dir, "add", n)
		run(t, dir, "commit", "-q", "-m", n)
	}
	run(t, dir, "tag", "v1")
	run(t, dir, "branch", "side")
	put(t, filepath.Join(dir, "one"), "stashed secret")
	run(t, dir, "stash", "-q")
	put(t, filepath.Join(dir, ".env"), "secret")
	put(t, filepath.Join(dir, "two"), "not committed")
	run(t, dir, "pack-refs", "--all")
	return dir
}

func cloned(t *testing.T, dir string) (*Repo, string) {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "clone")
	if err := r.Clone(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	c, err := Bare(filepath.Join(to, ".git"), to)
	if err != nil {
		t.Fatal(err)
	}
	return c, to
}

func TestACloneHasWhatIsCommittedAndNothingElse(t *testing.T) {
	dir := source(t)
	c, to := cloned(t, dir)
	if c.Branch != "refs/heads/main" || strings.Join(c.Names("refs/"), " ") != "refs/heads/main refs/heads/side refs/tags/v1" {
		t.Errorf("%+v", c)
	}
	if b, err := os.ReadFile(filepath.Join(to, "two")); err != nil || string(b) != "two" {
		t.Errorf("two: %q %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(to, ".env")); err == nil {
		t.Error("a file that is not committed came along")
	}
	if out := run(t, to, "fsck", "--full"); strings.Contains(out, "missing") {
		t.Error(out)
	}
	stash := run(t, dir, "rev-parse", "stash")
	if err := exec.Command("git", "-C", to, "cat-file", "-e", stash).Run(); err == nil {
		t.Error("the stash came along")
	}
	config, err := os.ReadFile(filepath.Join(to, ".git/config"))
	if err != nil || strings.Contains(string(config), dir) || strings.Contains(string(config), "remote") {
		t.Errorf("%s %v", config, err)
	}
	if _, err := os.Stat(filepath.Join(to, ".git", alternates)); err == nil {
		t.Error("it leads back to its source")
	}
}

func TestShallowAndLinkedTreesCanBeCloned(t *testing.T) {
	dir := source(t)
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(t, "/", "clone", "-q", "--depth", "1", "file://"+dir, shallow)
	c, to := cloned(t, shallow)
	if !c.Shallow() || run(t, to, "rev-list", "--count", "HEAD") != "1" {
		t.Error("a shallow clone is not shallow")
	}
	linked := filepath.Join(t.TempDir(), "linked")
	run(t, dir, "worktree", "add", "-q", linked, "side")
	r, err := Open(linked)
	if err != nil || !r.Linked() {
		t.Fatalf("%+v %v", r, err)
	}
	if c, _ = cloned(t, linked); c.Branch != "refs/heads/side" {
		t.Errorf("%s is checked out", c.Branch)
	}
	run(t, linked, "checkout", "-q", "--detach")
	if c, _ = cloned(t, linked); c.Branch != "" || c.Head != run(t, dir, "rev-parse", "side") {
		t.Errorf("detached: %+v", c)
	}
}

func TestWhatCannotBeClonedIsRefusedWithTheReason(t *testing.T) {
	dir := source(t)
	empty, plain, lacks := t.TempDir(), t.TempDir(), source(t)
	run(t, empty, "init", "-q")
	put(t, filepath.Join(dir, "sub/x"), "")
	blob := run(t, lacks, "rev-parse", "HEAD:one")
	run(t, lacks, "repack", "-q", "-a", "-d")
	_ = os.Chmod(filepath.Join(lacks, ".git/objects", blob[:2]), 0o755)
	for _, c := range []struct{ dir, why string }{{empty, "no commit"}, {plain, "not a Git repository"}, {filepath.Join(dir, "sub"), dir}} {
		r, err := Open(c.dir)
		if err == nil {
			err = r.Cloneable()
		}
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", c.dir, err, c.why)
		}
	}
	partial := filepath.Join(t.TempDir(), "partial")
	run(t, lacks, "config", "uploadpack.allowFilter", "true")
	run(t, "/", "clone", "-q", "--no-checkout", "--filter=blob:none", "file://"+lacks, partial)
	r, err := Open(partial)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Clone(t.Context(), filepath.Join(t.TempDir(), "c")); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "lacks objects") {
		t.Errorf("a partial clone: %v", err)
	}
	// That is said before anything is made of it, and what is to be done about it helps.
	run(t, lacks, "config", "uploadpack.allowAnySHA1InWant", "true")
	if err := r.Whole(t.Context()); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "'git fetch --refetch --no-filter'") {
		t.Errorf("a partial clone is whole: %v", err)
	}
	run(t, partial, "fetch", "-q", "--refetch", "--no-filter")
	if r, err = Open(partial); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Whole(t.Context()), r.Clone(t.Context(), filepath.Join(t.TempDir(), "c"))); err != nil {
		t.Errorf("a partial clone that has it all by now: %v", err)
	}
}

// hostile makes a repository run a program in every way that we know of.
func hostile(t *testing.T, gitDir, work string) (ran string) {
	t.Helper()
	ran = filepath.Join(t.TempDir(), "ran")
	script := filepath.Join(t.TempDir(), "evil")
	put(t, script, "#!/bin/sh\necho \"$0 $*\" >>"+ran+"\n")
	put(t, filepath.Join(gitDir, "config"), "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "+script+"\n\thooksPath = "+filepath.Dir(script)+
		"\n\tpager = "+script+"\n\tsshCommand = "+script+"\n\teditor = "+script+"\n[uploadpack]\n\tpackObjectsHook = "+script+
		"\n[filter \"x\"]\n\tclean = "+script+"\n\tsmudge = "+script+"\n\tprocess = "+script+"\n[diff \"x\"]\n\ttextconv = "+script+"\n\tcommand = "+script+
		"\n[gpg]\n\tprogram = "+script+"\n[remote \"origin\"]\n\turl = ext::"+script+"\n\tpromisor = true\n[alias]\n\tlog = !"+script+"\n\tstatus = !"+script+"\n")
	for _, h := range []string{"post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change", "post-rewrite"} {
		put(t, filepath.Join(gitDir, "hooks", h), "#!/bin/sh\necho "+h+" >>"+ran+"\n")
		put(t, filepath.Join(filepath.Dir(script), h), "#!/bin/sh\necho "+h+" >>"+ran+"\n")
	}
	put(t, filepath.Join(work, ".gitattributes"), "* filter=x diff=x\n")
	put(t, filepath.Join(gitDir, "info/attributes"), "* filter=x diff=x\n")
	return ran
}

func TestNothingOfARepositoryRuns(t *testing.T) {
	dir := source(t)
	run(t, dir, "add", ".")
	put(t, filepath.Join(dir, ".gitattributes"), "* filter=x\n")
	run(t, dir, "add", ".gitattributes")
	run(t, dir, "commit", "-q", "-m", "attributes")
	ran := hostile(t, filepath.Join(dir, ".git"), dir)
	c, to := cloned(t, dir)
	known := c.Head
	run(t, to, "commit", "-q", "--allow-empty", "-m", "mine")
	ranToo := hostile(t, filepath.Join(to, ".git"), to)
	put(t, filepath.Join(to, "two"), "changed")
	src, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = Bare(filepath.Join(to, ".git"), to); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Unsaved(t.Context(), []string{known}, src); err != nil || len(u.Commits) != 1 || len(u.Files) == 0 {
		t.Errorf("%+v %v", u, err)
	}
	if err := c.Bundle(t.Context(), new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
	for _, f := range []string{ran, ranToo} {
		if b, err := os.ReadFile(f); err == nil {
			t.Errorf("ran: %s", b)
		}
	}
	// The control: the user's own git does run it.
	cmd := exec.Command("git", "status")
	cmd.Dir = to
	_ = cmd.Run()
	if _, err := os.ReadFile(ranToo); err != nil {
		t.Error("the repository is not hostile at all")
	}
}

func TestWhatWouldBeLostIsFound(t *testing.T) {
	dir := source(t)
	c, to := cloned(t, dir)
	known := []string{c.Head}
	unsaved := func(source *Repo) Unsaved {
		t.Helper()
		c, err := Bare(filepath.Join(to, ".git"), to)
		if err != nil {
			t.Fatal(err)
		}
		u, err := c.Unsaved(t.Context(), known, source)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if u := unsaved(nil); len(u.Commits)+len(u.Files) != 0 {
		t.Errorf("a fresh clone: %+v", u)
	}
	run(t, to, "checkout", "-q", "-b", "work")
	put(t, filepath.Join(to, "three"), "3")
	run(t, to, "add", "three")
	run(t, to, "commit", "-q", "-m", "three\x1b[31m red")
	run(t, to, "checkout", "-q", "--detach")
	run(t, to, "commit", "-q", "--allow-empty", "-m", "floating")
	put(t, filepath.Join(to, "one"), "changed")
	put(t, filepath.Join(to, "new"), "new")
	u := unsaved(nil)
	if len(u.Commits) != 2 || u.Commits[0].Subject != "floating" || strings.Contains(u.Commits[1].Subject, "\x1b") || strings.Join(u.Files, " ") != "one new" {
		t.Errorf("%+v", u)
	}
	// Fetched through a bundle, nothing is lost any more.
	c, err := Bare(filepath.Join(to, ".git"), to)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "b")
	f, err := os.Create(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Bundle(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "fetch", "-q", bundle, "refs/heads/*:refs/box/*", "HEAD:refs/box/head")
	src, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if u := unsaved(src); len(u.Commits) != 0 || len(u.Files) != 2 {
		t.Errorf("after a fetch: %+v", u)
	}
	// What the sandbox did to its repository must not lead anywhere.
	for _, head := range []string{"ref: ../../../etc/passwd", "garbage", "ref: refs/heads/../../x"} {
		put(t, filepath.Join(to, ".git/HEAD"), head)
		if c, err := Bare(filepath.Join(to, ".git"), to); err == nil && c.Head != "" {
			t.Errorf("HEAD %q: %+v", head, c)
		}
	}
}

// What a sandbox can write of a repository can be a pipe at any moment, and nobody waits
// for a writer.
func TestFilesOfARepositoryThatBecomePipesAreNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "HEAD"), filepath.Join(dir, "pipe")
	put(t, file, "ref: refs/heads/main\n")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	juggler.Exchange(t, file, pipe, func() bool {
		text, err := small(file)
		if refused := errors.Is(err, kiterr.ErrRefused); refused || err == nil && text == "ref: refs/heads/main" {
			return refused
		}
		t.Errorf("%q, %v", text, err)
		return false
	})
	juggler.Exchange(t, file, pipe, func() bool {
		f, err := open(root, "HEAD")
		if err == nil {
			defer f.Close()
			st, serr := f.Stat()
			if serr != nil || !st.Mode().IsRegular() {
				t.Errorf("%v, %v is opened", st, serr)
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return err != nil
	})
}
