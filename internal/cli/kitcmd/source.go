package kitcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// maxRead bounds what is read of any file. A descriptor of more than half a
// mebibyte is refused; up to here, the refusal can say how large it is.
const maxRead = 16 << 20

// stdin is the name of the descriptor that comes in by standard input.
const stdin = "<stdin>"

// read returns a file, or standard input for "-".
func read(name string, in io.Reader) ([]byte, error) {
	if name == stdin {
		return readBounded(in, "standard input")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, reason(err))
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, reason(err))
	} else if st.IsDir() {
		return nil, fmt.Errorf("%s: is a directory", name)
	}
	return readBounded(f, name)
}

func readBounded(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxRead+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, reason(err))
	}
	if len(data) > maxRead {
		return nil, fmt.Errorf("%s: more than %d bytes; this is no descriptor", name, maxRead)
	}
	return data, nil
}

// reason takes the operation and the path out of err, which the message has.
func reason(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// find returns the descriptors that an argument names: a file, standard input,
// or all in a directory and below it. A directory without any is
// [kiterr.ErrNotFound]; what is found beside an error can be used.
func find(arg string) ([]string, error) {
	if arg == "-" {
		return []string{stdin}, nil
	}
	st, err := os.Stat(arg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg, reason(err))
	}
	if !st.IsDir() {
		return []string{arg}, nil
	}
	var found []string
	var errs []error
	err = filepath.WalkDir(arg, func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", p, reason(err)))
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
		case e.IsDir():
			if n := e.Name(); p != arg && (strings.HasPrefix(n, ".") || n == "node_modules") {
				return fs.SkipDir
			}
		case e.Type().IsRegular() && isDescriptor(p):
			found = append(found, p)
		}
		return nil
	})
	if len(found) == 0 && len(errs) == 0 && err == nil {
		err = fmt.Errorf("no Kit descriptor in %s: it would be a .yaml file with a schemaVersion, or a Dockerfile with a # kit: block: %w", arg, kiterr.ErrNotFound)
	}
	return found, errors.Join(append(errs, err)...)
}

// findOne returns the one descriptor that an argument names.
func findOne(arg string) (string, error) {
	if arg == "-" {
		return stdin, nil
	}
	st, err := os.Stat(arg)
	if err != nil {
		return "", fmt.Errorf("%s: %w", arg, reason(err))
	}
	if !st.IsDir() {
		return arg, nil
	}
	name, err := authoring.Find(arg)
	if err != nil {
		return "", err
	}
	return filepath.Join(arg, name), nil
}

var (
	schemaVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^[{ \t]*["']?schemaVersion["']?[ \t]*:`) })
	syntaxLine    = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?mi)\A(?:#[^\n]*\n)*#[ \t]*syntax[ \t]*=[ \t]*\S*sandbox-kit[:@]`)
	})
)

// isDescriptor reports whether a file found in a directory is a descriptor. One
// too broken to be read counts if it shows by a schemaVersion or its syntax
// line what it was meant to be.
func isDescriptor(p string) bool {
	base := strings.ToLower(filepath.Base(p))
	switch ext := filepath.Ext(base); {
	case ext == ".yaml" || ext == ".yml" || ext == ".json":
		head := peek(p)
		return schemaVersion().Match(head) || ext != ".json" && syntaxLine().Match(head)
	case ext == authoring.RecipeSuffix || base == "dockerfile" || strings.HasPrefix(base, "dockerfile."):
		return authoring.IsComment(peek(p))
	}
	return false
}

// peek returns as much of a file as a descriptor may have.
func peek(p string) []byte {
	f, err := os.Open(p)
	if err != nil {
		return []byte("schemaVersion:") // reading it will say why not
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, spec.MaxBytes+1))
	if bytes.IndexByte(data[:min(len(data), 512)], 0) >= 0 {
		return nil
	}
	return data
}

// names are what a Kit is called where it lies.
func names(file string) []string {
	if file == stdin {
		return nil
	}
	out := []string{authoring.Stem(file)}
	if abs, err := filepath.Abs(file); err == nil {
		out = append(out, filepath.Base(filepath.Dir(abs)))
	}
	return out
}

// A layers is what a descriptor's content comes from.
type layers struct {
	How    string // companion, dockerfile, inline, comment, set, none
	Path   string // of the recipe, if it is a file of its own
	recipe string
	unused string // a companion that is passed over
}

// layersOf looks for the content of d, which was read from file. The error is
// one of package content's.
func layersOf(d *spec.Document, file string) (layers, error) {
	stem, here := "", func(string) bool { return false }
	if file != stdin {
		stem = authoring.Stem(file)
		here = func(name string) bool { return beside(file, name) }
	}
	src, err := content.Find(d, stem, here)
	companion := path.Base(authoring.Companion(file))
	l := layers{Path: src.RecipeFile, recipe: src.Recipe}
	_, comment := d.Recipe()
	switch {
	case comment:
		l.How = "comment"
	case d.Build != "":
		l.How = "inline"
	case src.Kits:
		l.How = "set"
	case d.Dockerfile != "":
		l.How = "dockerfile"
	case src.RecipeFile != "":
		l.How = "companion"
	default:
		l.How = "none"
	}
	if err == nil && src.RecipeFile != "" {
		l.recipe = recipeText(filepath.Join(filepath.Dir(file), filepath.FromSlash(src.RecipeFile)))
	}
	if !comment && l.How != "none" && src.RecipeFile != companion && here(companion) {
		l.unused = companion
	}
	return l, err
}

// beside reports whether the directory of file holds a regular file name.
func beside(file, name string) bool {
	name = filepath.FromSlash(name)
	if !filepath.IsLocal(name) {
		return false
	}
	st, err := os.Stat(filepath.Join(filepath.Dir(file), name))
	return err == nil && st.Mode().IsRegular()
}

// recipeText returns the text of a recipe, or "" if it is unreadable or of an
// unlikely size: nothing depends on it but warnings.
func recipeText(p string) string {
	data, err := read(p, nil)
	if err != nil || len(data) > 1<<20 {
		return ""
	}
	return string(data)
}
