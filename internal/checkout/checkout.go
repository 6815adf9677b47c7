// Package checkout gets one commit of a git repository as plain files.
//
// The repository is hostile until proven otherwise. The real git speaks to the
// server and stores objects, in a bare repository of its own that is deleted
// afterwards, without anybody's configuration, hooks or helpers and within limits of
// time, memory and disk. A server that wants a login gets the one that the user's own
// helpers have for it, and nobody else does. What git would check out, with filters,
// attributes and submodules, is not asked of it: the files are read one by one
// out of the commit and written here, below a directory that nothing can leave.
//
// It knows no Kit. What is built of the files is package fetch's business.
package checkout

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Limits bound what a repository may cost. Zero fields are the defaults.
type Limits struct {
	Bytes   int64         // of the pack, and of the files together; 512 MiB
	Entries int           // files, directories and links; 50,000
	Time    time.Duration // of one exchange; 10 minutes
}

func (l Limits) orDefault() Limits {
	if l.Bytes == 0 {
		l.Bytes = 512 << 20
	}
	if l.Entries == 0 {
		l.Entries = 50_000
	}
	if l.Time == 0 {
		l.Time = 10 * time.Minute
	}
	return l
}

// A Cache keeps trees by repository and commit. It can be used concurrently, and
// by several processes.
type Cache struct {
	Dir    string // made when it is needed
	Limits Limits

	// Notice is told what a name stands for. Nil discards.
	Notice func(line string)
}

// A Tree is one commit's files, or those of a directory of it.
type Tree struct {
	Dir    string // absolute; nobody may change what is in it
	File   string // relative to Dir, if the source names a file
	Commit string // 40 or 64 hexadecimal digits
}

// An Ask says whether a server is asked what a name stands for.
type Ask int

const (
	IfUnknown Ask = iota // when this cache does not know
	Always
	Never
)

// Get returns the tree of s. A commit that is in the cache is not fetched again,
// whatever is asked.
//
// A server or a name that cannot be found is [kiterr.ErrNotFound], a repository
// with something in it that no tree may have [kiterr.ErrRefused], and a machine
// without git [kiterr.ErrUnavailable].
func (c Cache) Get(ctx context.Context, s Source, ask Ask) (Tree, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limits.orDefault().Time, errSlow)
	defer cancel()
	dir := filepath.Join(c.Dir, name(s.URL))
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return Tree{}, err
	}
	if _, err := exec.LookPath("git"); err != nil {
		return Tree{}, fmt.Errorf("%s: git is not installed here: %w", s, kiterr.ErrUnavailable)
	}
	sweep(c.Dir, c.Limits.orDefault().Time+sweepMargin)
	fresh, err := os.MkdirTemp(dir, durable.TempPrefix)
	if err != nil {
		return Tree{}, durable.Explain(dir, err)
	}
	defer os.RemoveAll(fresh)
	g := git{limits: c.Limits.orDefault(), source: s, dir: fresh}
	at, err := c.resolve(ctx, g, dir, s, ask)
	if err != nil {
		return Tree{}, err
	}
	if c.Notice != nil {
		c.Notice(fmt.Sprintf("%s is commit %s", s, at.Commit))
	}
	final := filepath.Join(dir, at.Commit+"-"+name(s.Dir))
	tree, err := open(final, at.Commit)
	if !errors.Is(err, fs.ErrNotExist) {
		return tree, err
	}
	if ask == Never {
		return Tree{}, fmt.Errorf("%s: commit %s is not in the cache, and with --pull never no server is asked: %w", s, at.Commit, kiterr.ErrNotFound)
	}
	if err := g.fill(ctx, at); err != nil {
		return Tree{}, err
	}
	if err := os.Rename(filepath.Join(fresh, "tree"), final); err != nil {
		if tree, oerr := open(final, at.Commit); oerr == nil {
			return tree, nil // somebody was faster
		}
		return Tree{}, durable.Explain(final, err)
	}
	return open(final, at.Commit)
}

// sweepMargin is how much longer than an exchange may take what it left stays.
const sweepMargin = time.Minute

// sweep removes what killed processes left of exchanges that began longer ago than age:
// half a repository, and with it the login that was presented.
func sweep(cache string, age time.Duration) {
	left, err := filepath.Glob(filepath.Join(cache, "*", durable.TempPrefix+"*"))
	if err != nil {
		return // the cache's own name is a pattern
	}
	for _, p := range left {
		if st, err := os.Lstat(p); err == nil && st.IsDir() && time.Since(st.ModTime()) > age {
			_ = durable.RemoveTree(p) // or the next one does
		}
	}
}

// open finds a tree in the cache and marks it as used.
func open(dir, commit string) (Tree, error) {
	t := Tree{Dir: filepath.Join(dir, "files"), Commit: commit}
	data, err := os.ReadFile(filepath.Join(dir, "source.json"))
	if err != nil {
		return Tree{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil || r.Version != recordVersion {
		return Tree{}, fmt.Errorf("%s is none of this kitbox: remove %s: %w", filepath.Join(dir, "source.json"), dir, kiterr.ErrUnsupported)
	}
	t.File = r.File
	now := time.Now()
	return t, os.Chtimes(dir, now, now)
}

// recordVersion is that of the documents in the cache.
const recordVersion = 1

// A record says what a tree is, beside its files.
type record struct {
	Version int    `json:"version"`
	URL     string `json:"url"`
	Dir     string `json:"dir,omitempty"`
	File    string `json:"file,omitempty"`
	Commit  string `json:"commit"`
}

// A point is what a name stands for.
type point struct {
	Commit string `json:"commit"`
	Name   string `json:"name,omitempty"` // in full, as the server has it
}

// names is refs.json: what the names of one repository stood for when they were
// last asked about.
type names struct {
	Version int              `json:"version"`
	URL     string           `json:"url"`
	Refs    map[string]point `json:"refs"`
}

// resolve finds the commit that s means.
func (c Cache) resolve(ctx context.Context, g git, dir string, s Source, ask Ask) (point, error) {
	if isCommit(s.Ref) {
		return point{Commit: s.Ref}, nil
	}
	file := filepath.Join(dir, "refs.json")
	known := names{Version: recordVersion, URL: s.URL, Refs: map[string]point{}}
	if data, err := os.ReadFile(file); err == nil {
		var n names
		if json.Unmarshal(data, &n) == nil && n.Version == recordVersion && n.Refs != nil {
			known = n
		}
	}
	p, ok := known.Refs[s.Ref]
	switch {
	case ok && ask != Always:
		return p, nil
	case ask == Never:
		return point{}, fmt.Errorf("%s: nobody has asked yet what %s stands for, and with --pull never nobody does: %w", s, s.refName(), kiterr.ErrNotFound)
	}
	p, err := g.ask(ctx, s)
	if err != nil {
		return point{}, err
	}
	known.Refs[s.Ref] = p
	data, err := json.MarshalIndent(known, "", "\t")
	if err != nil {
		return point{}, err
	}
	return p, durable.WriteFile(file, append(data, '\n'), 0o600)
}

// name is a file name for a text that may hold anything.
func name(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// errSlow is why an exchange that took too long ended.
var errSlow = errors.New("it takes too long")

// settle puts what was written on disk before it gets its name.
func settle(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
