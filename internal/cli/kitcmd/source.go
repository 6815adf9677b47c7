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
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// maxRead bounds what is read of any file. A descriptor of more than half a
// mebibyte is refused; up to here, the refusal can say how large it is.
const maxRead = 16 << 20

// stdin is the name of the descriptor that comes in by standard input.
const stdin = "<stdin>"

// recipeSuffix is the extension of a companion recipe (§3.1).
const recipeSuffix = ".dockerfile"

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

// findOne returns the one descriptor that an argument names: of a directory,
// the one that is named like it, or kit.yaml, or the only one.
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
	entries, err := os.ReadDir(arg)
	if err != nil {
		return "", fmt.Errorf("%s: %w", arg, reason(err))
	}
	var found []string
	for _, e := range entries {
		if e.Type().IsRegular() && isDescriptor(filepath.Join(arg, e.Name())) {
			found = append(found, e.Name())
		}
	}
	if len(found) == 1 {
		return filepath.Join(arg, found[0]), nil
	}
	abs, err := filepath.Abs(arg)
	if err != nil {
		return "", err
	}
	for _, name := range []string{filepath.Base(abs), "kit"} {
		for _, ext := range []string{".yaml", ".yml", recipeSuffix} {
			if slices.Contains(found, name+ext) {
				return filepath.Join(arg, name+ext), nil
			}
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no Kit descriptor in %s: it would be a .yaml file with a schemaVersion, or a Dockerfile with a # kit: block: %w", arg, kiterr.ErrNotFound)
	}
	return "", fmt.Errorf("%s holds several Kit descriptors (%s); name one", arg, strings.Join(found, ", "))
}

var (
	schemaVersion = regexp.MustCompile(`(?m)^[{ \t]*["']?schemaVersion["']?[ \t]*:`)
	syntaxLine    = regexp.MustCompile(`(?mi)\A(?:#[^\n]*\n)*#[ \t]*syntax[ \t]*=[ \t]*\S*sandbox-kit[:@]`)
)

// isDescriptor reports whether a file found in a directory is a descriptor. One
// too broken to be read counts if it shows by a schemaVersion or its syntax
// line what it was meant to be.
func isDescriptor(p string) bool {
	base := strings.ToLower(filepath.Base(p))
	switch ext := filepath.Ext(base); {
	case ext == ".yaml" || ext == ".yml" || ext == ".json":
		head := peek(p)
		return schemaVersion.Match(head) || ext != ".json" && syntaxLine.Match(head)
	case ext == recipeSuffix || base == "dockerfile" || strings.HasPrefix(base, "dockerfile."):
		_, ok := spec.ExtractComment(peek(p))
		return ok
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

// stem returns the name of a descriptor's file without its extension. It names
// the companion.
func stem(file string) string {
	base := filepath.Base(file)
	switch ext := filepath.Ext(base); strings.ToLower(ext) {
	case ".yaml", ".yml", ".json", recipeSuffix:
		return strings.TrimSuffix(base, ext)
	}
	return base
}

// names are what a Kit is called where it lies.
func names(file string) []string {
	if file == stdin {
		return nil
	}
	out := []string{stem(file)}
	if abs, err := filepath.Abs(file); err == nil {
		out = append(out, filepath.Base(filepath.Dir(abs)))
	}
	return out
}

// A content is what a descriptor's content comes from.
type content struct {
	How    string // companion, dockerfile, inline, comment, set, none
	Path   string // of the recipe, if it is a file of its own
	recipe string
	unused string // a companion that is passed over
	absent string // a named recipe that is missing
}

// contentOf looks for the recipe of d, which was read from file.
func contentOf(d *spec.Document, file string) content {
	companion := ""
	if file != stdin {
		companion = filepath.Join(filepath.Dir(file), stem(file)+recipeSuffix)
		if st, err := os.Stat(companion); err != nil || !st.Mode().IsRegular() || sameFile(companion, file) {
			companion = ""
		}
	}
	recipe, comment := d.Recipe()
	switch {
	case comment:
		return content{How: "comment", recipe: recipe}
	case d.Build != "":
		return content{How: "inline", recipe: d.Build, unused: companion}
	case len(d.Kits) > 0 || d.Kind == spec.KindSet:
		return content{How: "set", unused: companion}
	case d.Dockerfile != "":
		c := content{How: "dockerfile", Path: d.Dockerfile, unused: companion}
		if file == stdin || !filepath.IsLocal(filepath.FromSlash(d.Dockerfile)) {
			return c
		}
		p := filepath.Join(filepath.Dir(file), filepath.FromSlash(path.Clean(d.Dockerfile)))
		if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
			c.absent = d.Dockerfile
			return c
		}
		if companion != "" && sameFile(p, companion) {
			c.unused = ""
		}
		c.recipe = recipeText(p)
		return c
	case companion != "":
		return content{How: "companion", Path: filepath.Base(companion), recipe: recipeText(companion)}
	}
	return content{How: "none"}
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

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
