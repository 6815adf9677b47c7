// Package template holds the Kit that an author starts from: one commented
// descriptor per kind, with its recipe. Each is valid, laid out as package
// format lays out, and gives package lint nothing to say; tests hold it to that.
package template

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// Kinds are the kinds of Kit there is a template for.
var Kinds = []string{spec.KindWorkload, spec.KindMixin, spec.KindSet}

//go:embed workload mixin set
var files embed.FS

// A File is one file of a new Kit. Path is relative to the Kit's directory.
type File struct {
	Path string
	Data []byte
}

// Files returns the files of a new Kit. Name becomes its provide, the stem of
// its files and its directory, so that it has to be a name by §5.1 without a
// namespace. The descriptor comes first. Errors are of the family
// [kiterr.ErrRefused].
func Files(kind, name string) ([]File, error) {
	if n, err := constraint.ParseName(name); err != nil || n.Namespace != constraint.DefaultNamespace || n.Base != name {
		return nil, fmt.Errorf("%q cannot name a Kit: lower case letters, digits, '-', '.' and '+', beginning with a letter or digit: %w", name, kiterr.ErrRefused)
	}
	entries, err := fs.ReadDir(files, kind)
	if err != nil || strings.ContainsAny(kind, "/.") {
		return nil, fmt.Errorf("%q is no kind of Kit: %s: %w", kind, strings.Join(Kinds, ", "), kiterr.ErrRefused)
	}
	title := strings.Join(strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-.+", r) }), " ")
	title = strings.ToUpper(title[:1]) + title[1:]
	fill := strings.NewReplacer("%NAME%", name, "%TITLE%", title)
	out := make([]File, 0, len(entries))
	for _, e := range entries {
		data, err := files.ReadFile(path.Join(kind, e.Name()))
		if err != nil {
			return nil, err
		}
		f := File{name + path.Ext(e.Name()), []byte(fill.Replace(string(data)))}
		if path.Ext(f.Path) == ".yaml" {
			out = append([]File{f}, out...)
		} else {
			out = append(out, f)
		}
	}
	return out, nil
}
