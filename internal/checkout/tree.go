package checkout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// The modes that git has for entries.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeLink       = "120000"
	modeDir        = "040000"
	modeSubmodule  = "160000"
)

// maxLink bounds the target of a symbolic link, in bytes, as the system does.
const maxLink = 4096

// An entry is one of a commit's.
type entry struct {
	mode, object string
	size         int64 // of a file or link
	path         string
}

// A listing is what a source names of a commit.
type listing struct {
	entries []entry
	file    string // relative, if the source names a file
}

// list reads the tree and judges it before anything is written.
func (g git) list(ctx context.Context, bare, commit string) (listing, error) {
	var l listing
	at := commit + ":" + g.source.Dir
	kind, err := g.run(ctx, bare, "cat-file", "-t", at)
	switch {
	case err != nil && ctx.Err() != nil:
		return l, err
	case err != nil:
		return l, fmt.Errorf("%s: commit %s has no %s: %w", g.source, commit, g.source.Dir, kiterr.ErrNotFound)
	case strings.TrimSpace(string(kind)) == "blob":
		l.file = path.Base(g.source.Dir)
		if at = commit + ":" + path.Dir(g.source.Dir); path.Dir(g.source.Dir) == "." {
			at = commit + ":"
		}
	}
	cmd := g.command(ctx, bare, "ls-tree", "-r", "-t", "-z", "--long", "--full-tree", at)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return l, err
	}
	errs := &bounded{left: 64 << 10}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		return l, err
	}
	l.entries, err = readEntries(out, g.limits)
	if err != nil {
		_ = cmd.Cancel() // the reason is known
	}
	_, _ = io.Copy(io.Discard, out)
	if werr := cmd.Wait(); err == nil && werr != nil {
		return l, g.explain(ctx, werr, errs.String())
	}
	if err != nil {
		return l, fmt.Errorf("%s: %w", g.source, err)
	}
	return l, nil
}

// readEntries reads MODE TYPE OBJECT SIZE TAB PATH NUL.
func readEntries(r io.Reader, limits Limits) ([]entry, error) {
	refuse := func(format string, args ...any) ([]entry, error) {
		return nil, fmt.Errorf(format+": %w", append(args, kiterr.ErrRefused)...)
	}
	var entries []entry
	var total int64
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := in.ReadString(0)
		if errors.Is(err, io.EOF) && line == "" {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		head, name, ok := strings.Cut(strings.TrimSuffix(line, "\x00"), "\t")
		f := strings.Fields(head)
		if !ok || len(f) != 4 {
			return refuse("git lists %q", head)
		}
		e := entry{mode: f[0], object: f[2], path: name}
		if fault := badPath(name); fault != "" {
			return refuse("the path %q %s", name, fault)
		}
		switch e.mode {
		case modeDir:
		case modeSubmodule:
			return refuse("%s is a submodule, and those are not fetched: have the files in the repository", name)
		case modeFile, modeExecutable, modeLink:
			if e.size, err = strconv.ParseInt(f[3], 10, 64); err != nil || e.size < 0 {
				return refuse("git lists %q", head)
			}
			if e.mode == modeLink && e.size > maxLink {
				return refuse("the link %s leads to %d bytes of text", name, e.size)
			}
		default:
			return refuse("%s has the mode %s, which no file has", name, e.mode)
		}
		if total += e.size; total > limits.Bytes || total < 0 {
			return refuse("its files have more than %d bytes together, which is the limit", limits.Bytes)
		}
		if len(entries) == limits.Entries {
			return refuse("it has more than %d files, which is the limit", limits.Entries)
		}
		entries = append(entries, e)
	}
}

// badPath says what is wrong with a path of a tree, or nothing.
func badPath(p string) string {
	if len(p) > 4000 {
		return "is too long"
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return "climbs"
		case strings.EqualFold(part, ".git"):
			return "is that of a repository in the repository"
		case len(part) > 255:
			return "is too long"
		}
	}
	if !filepath.IsLocal(p) {
		return "leads out"
	}
	return ""
}

// writeAll writes entries below root. Objects are asked for on in, one by one,
// and come on out.
func writeAll(root *os.Root, entries []entry, in io.Writer, out io.Reader) error {
	objects := bufio.NewReaderSize(out, 256<<10)
	open := func(e entry) (io.Reader, error) {
		if _, err := io.WriteString(in, e.object+"\n"); err != nil {
			return nil, err
		}
		head, err := objects.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if want := fmt.Sprintf("%s blob %d\n", e.object, e.size); head != want {
			return nil, fmt.Errorf("git gives %q for %s", strings.TrimSpace(head), e.path)
		}
		return io.LimitReader(objects, e.size), nil
	}
	end := func() error {
		if b, err := objects.ReadByte(); err != nil || b != '\n' {
			return fmt.Errorf("git's answer ends with %q, %w", b, err)
		}
		return nil
	}
	var links []entry
	for _, e := range entries {
		name := filepath.FromSlash(e.path)
		switch e.mode {
		case modeDir:
			if err := root.MkdirAll(name, 0o755); err != nil {
				return err
			}
			continue
		case modeLink:
			links = append(links, e)
			continue
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		perm := fs.FileMode(0o644)
		if e.mode == modeExecutable {
			perm = 0o755
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if err != nil {
			return err
		}
		r, err := open(e)
		if err == nil {
			var n int64
			if n, err = io.Copy(f, r); err == nil && n != e.size {
				err = fmt.Errorf("%s has %d bytes of %d: %w", e.path, n, e.size, io.ErrUnexpectedEOF)
			}
		}
		if err := errors.Join(err, f.Chmod(perm), f.Close()); err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
	}
	for _, e := range links {
		r, err := open(e)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
		target := string(b)
		if path.IsAbs(target) || target == "" || !filepath.IsLocal(path.Join(path.Dir(e.path), target)) {
			return leadsOut(e.path, target)
		}
		if err := root.Symlink(target, filepath.FromSlash(e.path)); err != nil {
			return err
		}
	}
	// Through each other they may still lead out.
	slices.SortFunc(links, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	for _, e := range links {
		if _, err := root.Stat(filepath.FromSlash(e.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return leadsOut(e.path, err.Error())
		}
	}
	return nil
}

func leadsOut(name, target string) error {
	return fmt.Errorf("the link %s leads out of what was asked for, or nowhere (%q): %w", name, target, kiterr.ErrRefused)
}
