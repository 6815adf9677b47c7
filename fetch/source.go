package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// keyVersion starts every source key. Change it when what goes into a key, or
// what a builder makes of it, changes.
const keyVersion = "kitbox source key 2"

// A source is a Kit as its author keeps it.
type source struct {
	dir  string // the build context, absolute
	file string // the descriptor, relative to dir
}

// maxText bounds what is read of a descriptor, in bytes: as much as a builder
// reads of any one file. What has more is no descriptor.
const maxText = 8 << 20

// text is the descriptor as authored.
func (s source) text() ([]byte, error) {
	name := filepath.Join(s.dir, s.file)
	f, err := authoring.Open(name)
	if err != nil {
		return nil, durable.Explain(name, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return nil, durable.Explain(name, err)
	}
	return data, nil
}

// key is a hash of everything the build of src depends on: the descriptor, the
// recipe, the context as the builder gets it, the arguments, the local images
// that the text names, the platform, the builder and what its steps can reach.
// Owners and times of files are left out, as the builder does. An image of a
// registry is not: a tag that moved there does not rebuild a Kit.
func (f *Fetcher) key(ctx context.Context, images *layout.Store, src source, args map[string]string, maker string) (string, error) {
	files, err := openHashes(filepath.Join(f.Home, "builds", "files"), src.dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	field(h, keyVersion, f.platform().OS, f.platform().Architecture, f.platform().Variant, src.file)
	bases := map[string]bool{}
	for _, k := range slices.Sorted(maps.Keys(args)) {
		field(h, "arg", k, args[k])
		for _, b := range localNames([]byte(args[k])) {
			bases[b] = true
		}
	}
	field(h, "builder", maker)
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		field(h, "epoch", epoch) // what makes the image has it of the environment, too
	}
	if err := walkContext(ctx, src, args, func(rel string, info fs.FileInfo) error {
		switch mode := info.Mode(); {
		case mode.IsRegular():
			e, err := files.hash(rel, info)
			if err != nil {
				return err
			}
			field(h, "file", rel, mode.Perm().String(), e.Sum)
			for _, b := range e.Bases {
				bases[b] = true
			}
		case mode&fs.ModeSymlink != 0:
			to, err := os.Readlink(filepath.Join(src.dir, rel))
			if err != nil {
				return durable.Explain(filepath.Join(src.dir, rel), err)
			}
			field(h, "link", rel, to)
		case mode.IsDir():
			field(h, "dir", rel, mode.Perm().String())
		default:
			field(h, "other", rel, mode.Type().String()) // the builder skips it or refuses it
		}
		return nil
	}); err != nil {
		return "", err
	}
	if err := hashBases(h, images, bases); err != nil {
		return "", err
	}
	files.save()
	return hex.EncodeToString(h.Sum(nil)), nil
}

// field writes strings so that no two lists of strings look the same.
func field(h hash.Hash, parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	h.Write([]byte{'\n'})
}

// localName finds names of local images in a recipe, a descriptor or an arg.
var localName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(regexp.QuoteMeta(LocalDomain) + `/[A-Za-z0-9._/:@${}-]*`)
})

// localNames returns the local images that text names. A name composed of
// variables is returned as the domain alone: any local image might be meant.
func localNames(text []byte) []string {
	var names []string
	for _, m := range localName().FindAll(text, -1) {
		n := strings.TrimRight(string(m), ".:-}")
		if strings.ContainsAny(n, "${}") {
			n = LocalDomain
		}
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// hashBases adds what the named local images are now.
func hashBases(h hash.Hash, images *layout.Store, names map[string]bool) error {
	if len(names) == 0 {
		return nil
	}
	tags, err := images.Tags()
	if err != nil {
		return err
	}
	for _, t := range tags {
		if !strings.HasPrefix(t.Name, LocalDomain+"/") {
			continue
		}
		if names[LocalDomain] || names[t.Name] || names[strings.TrimSuffix(t.Name, ":latest")] {
			field(h, "base", t.Name, t.Digest.String())
		}
	}
	return nil
}

// recipeFile is the file that the recipe of doc is in; "" if it is in the
// descriptor.
func recipeFile(src source, doc *spec.Document) string {
	_, comment := doc.Recipe()
	switch {
	case comment, doc.Build != "":
		return ""
	case doc.Dockerfile != "":
		return path.Join(path.Dir(src.file), doc.Dockerfile)
	}
	return authoring.Companion(src.file)
}

// contentFiles are the files beside the descriptor that its configs name. A build
// arg can be a part of such a name in a set.
func contentFiles(src source, doc *spec.Document, args map[string]string) []string {
	var names []string
	add := func(d spec.Descriptor) {
		_, staged, _ := content.Stage(d, authoring.Stem(src.file)) // what is wrong is the builder's to say
		for _, f := range staged {
			names = append(names, path.Join(path.Dir(src.file), f.From))
		}
	}
	add(doc.Descriptor)
	if values, err := expand.ResolveArgs(doc.Args, args, expand.PhaseBuild); err == nil {
		if d, err := expand.Build(doc.Descriptor, values); err == nil {
			add(d)
		}
	}
	return names
}

// walkContext calls visit for all that goes into the build of src, in order of
// path: the context without what its .dockerignore leaves out, and whatever that
// says also itself and what a builder reads beside the context, which is the
// descriptor, the recipe and the content files. Nothing is built of a descriptor
// that does not decode; all of its context is visited.
func walkContext(ctx context.Context, src source, args map[string]string, visit func(rel string, info fs.FileInfo) error) error {
	w := walker{ctx: ctx, root: src.dir, always: map[string]bool{}, visit: visit}
	w.count(src.file)
	text, err := src.text()
	if err != nil {
		return err
	}
	var patterns []string
	ignore := ".dockerignore"
	if doc, _ := spec.Decode(text, spec.Options{File: src.file}); doc != nil {
		for _, p := range contentFiles(src, doc, args) {
			w.count(p)
		}
		err = fs.ErrNotExist
		if recipe := recipeFile(src, doc); recipe != "" {
			w.count(recipe)
			if patterns, err = ignorePatterns(filepath.Join(src.dir, recipe+".dockerignore")); !errors.Is(err, fs.ErrNotExist) {
				ignore = recipe + ".dockerignore"
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			patterns, err = ignorePatterns(filepath.Join(src.dir, ignore))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return durable.Explain(filepath.Join(src.dir, ignore), err)
		}
		w.count(ignore)
	}
	if w.pm, err = patternmatcher.New(patterns); err != nil {
		return fmt.Errorf("%s: %w: %w", filepath.Join(src.dir, ignore), err, kiterr.ErrRefused)
	}
	return w.dir(".", patternmatcher.MatchInfo{})
}

func ignorePatterns(file string) ([]string, error) {
	f, err := authoring.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ignorefile.ReadAll(io.LimitReader(f, 1<<20))
}

type walker struct {
	ctx    context.Context
	root   string
	pm     *patternmatcher.PatternMatcher
	always map[string]bool // paths that count although they are ignored
	visit  func(rel string, info fs.FileInfo) error
}

func (w *walker) dir(rel string, parent patternmatcher.MatchInfo) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(w.root, rel))
	if err != nil {
		return durable.Explain(filepath.Join(w.root, rel), err)
	}
	for _, e := range entries {
		p := path.Join(rel, e.Name())
		ignored, match := false, patternmatcher.MatchInfo{}
		if len(w.pm.Patterns()) > 0 {
			if ignored, match, err = w.pm.MatchesUsingParentResults(p, parent); err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(w.root, ".dockerignore"), err)
			}
		}
		if !ignored || w.always[p] {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // deleted while we look: the next key will differ
			}
			if err != nil {
				return durable.Explain(filepath.Join(w.root, p), err)
			}
			if err := w.visit(p, info); err != nil {
				return err
			}
		}
		if e.IsDir() && (!ignored || w.pm.Exclusions() || w.holdsAlways(p)) {
			if err := w.dir(p, match); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxHops bounds the symlinks on the way to one file.
const maxHops = 64

// count makes the file at p count although it may be ignored, with the symlinks
// on the way to it. Like the builder, it takes the context for the root of all
// paths.
func (w *walker) count(p string) {
	at, rest := ".", path.Clean("/" + p)[1:]
	for hops := 0; rest != ""; {
		part, tail, _ := strings.Cut(rest, "/")
		at, rest = path.Join(at, part), tail
		to, err := os.Readlink(filepath.Join(w.root, at))
		if err != nil {
			continue // no symlink, or nothing at all yet
		}
		w.always[at] = true
		if hops++; hops > maxHops {
			return
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(at), to)
		}
		at, rest = ".", path.Clean("/" + to + "/" + rest)[1:]
	}
	w.always[at] = true
}

// holdsAlways reports whether a path that counts lies below dir.
func (w *walker) holdsAlways(dir string) bool {
	for p := range w.always {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// find returns the source that ref, a directory or a descriptor's file, is.
func find(ref string, isDir bool) (source, error) {
	abs, err := filepath.Abs(ref)
	if err != nil {
		return source{}, err
	}
	// The context is named by its real path: two ways to one directory share
	// the record of its files.
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return source{}, durable.Explain(ref, err)
	}
	if isDir {
		file, err := authoring.Find(abs)
		if err != nil {
			// The user wrote another name than the real path.
			if ref != abs {
				return source{}, renamed{err, strings.ReplaceAll(err.Error(), abs, ref)}
			}
			return source{}, err
		}
		return source{dir: abs, file: file}, nil
	}
	src := source{dir: filepath.Dir(abs), file: filepath.Base(abs)}
	switch strings.ToLower(filepath.Ext(abs)) {
	case ".yaml", ".yml":
		return src, nil
	}
	data, err := authoring.Read(abs)
	if err != nil {
		return source{}, durable.Explain(ref, err)
	}
	if !authoring.IsComment(data) {
		hint := ""
		if stem := authoring.Stem(src.file); bytes.HasSuffix([]byte(src.file), []byte(authoring.RecipeSuffix)) {
			for _, ext := range []string{".yaml", ".yml"} {
				if _, err := os.Stat(filepath.Join(src.dir, stem+ext)); err == nil {
					hint = fmt.Sprintf("; it is the recipe of %s: name that", filepath.Join(filepath.Dir(ref), stem+ext))
				}
			}
		}
		return source{}, fmt.Errorf("%s is no Kit descriptor: neither a .yaml file nor a recipe with a '# kit:' block%s: %w", ref, hint, kiterr.ErrRefused)
	}
	return src, nil
}

// renamed is an error with another text.
type renamed struct {
	error
	text string
}

func (r renamed) Error() string { return r.text }
func (r renamed) Unwrap() error { return r.error }
