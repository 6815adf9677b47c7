package spec

import "github.com/kitbox-dev/kitbox/spec/source"

// Text returns the text that d was read from: of a comment descriptor, the
// block without its prefix (§3.3). It is empty if d has no source.
func (d *Document) Text() string { return d.src }

// Place returns dg with the file, line, column and excerpt of the value at
// dg.Path, or of the deepest value on the way to it. It is for findings of
// checks that live outside of this package.
func (d *Document) Place(dg Diagnostic) Diagnostic {
	if d.root == nil {
		dg.File = d.opts.File
		return dg
	}
	n, exact := source.Locate(d.root, dg.Path)
	pos := n.Pos
	if n.KeyPos != (source.Position{}) && (!exact || n.Kind == source.Object || n.Kind == source.Array) {
		pos = n.KeyPos
	}
	d.place(&dg, pos)
	return dg
}
