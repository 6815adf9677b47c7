package spec

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// A Document is a decoded descriptor with what is needed to judge it and to
// point into its source. It is immutable and safe for concurrent use.
type Document struct {
	Descriptor

	opts  Options
	src   string  // the descriptor's own text; "" if there is none
	size  int     // bytes of the source, for the size budget
	root  *node   // nil if there is no source
	items []*node // of the capabilities list
	bad   []string

	// Of a comment descriptor (§3.3): the rest of the file, and where the
	// block begins.
	comment *Block
}

// maxFindings bounds what one document can make us report.
const maxFindings = 500

// Decode reads the first YAML document of src, or JSON, strictly (§1.2): an
// unknown key anywhere, a key twice, a null or a value of another type is a
// finding with its dotted path and place. In the authored form a Dockerfile
// whose head holds a comment descriptor is read as that (§3.3).
//
// The Document is nil only if src has no mapping to read. Otherwise it holds
// what could be read and can be validated, so that one run reports all
// failures; [Document.Validate] leaves out what the decoding has already said.
func Decode(src []byte, o Options) (*Document, Diagnostics) {
	d := &Document{opts: o, src: string(src)}
	root, err := parse(d.src)
	if o.Form == capability.Authored && !looksLikeDescriptor(root) {
		if block, ok := ExtractComment(src); ok {
			d.comment, d.src = &block, string(block.Descriptor)
			root, err = parse(d.src)
		}
	}
	if d.size = len(d.src); d.size > MaxBytes {
		return d, nil // Validate says so; nothing of it is looked at
	}
	dec := decoder{doc: d, raw: slices.Clone(src)}
	if err != nil {
		var se *syntaxError
		switch {
		case errors.Is(err, io.EOF):
			dec.reportAt(top, "", "the document is empty")
		case errors.As(err, &se):
			dec.reportAt(se.pos, "", se.message)
		default:
			dec.reportAt(top, "", err.Error())
		}
		return nil, dec.diags
	}
	if root.kind != object {
		dec.report(root, "a descriptor is a mapping, not "+root.kind.String())
		return nil, dec.diags
	}
	d.root = root
	dec.descriptor(root)
	return d, dec.diags
}

// DecodePublished reads and validates the descriptor annotation of an image
// (§9.3). The error holds every finding; warnings are dropped.
func DecodePublished(annotation []byte) (*Document, error) {
	d, diags := Decode(annotation, Options{Form: capability.Published})
	if d != nil {
		diags = append(diags, d.Validate()...)
	}
	if err := diags.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// New makes a document of a descriptor that has no source, such as an expanded
// one, to validate it.
func New(d Descriptor, o Options) *Document { return &Document{Descriptor: d, opts: o} }

// Form returns the form in which d is judged.
func (d *Document) Form() capability.Form { return d.opts.Form }

// Recipe returns the Dockerfile text of a comment descriptor, neutralized for
// the builder, and whether d was one (§3.3).
func (d *Document) Recipe() (string, bool) {
	if d.comment == nil {
		return "", false
	}
	return string(d.comment.Recipe), true
}

func (d *Document) find(typ string) (capability.Definition, bool) {
	if d.opts.Find != nil {
		return d.opts.Find(typ)
	}
	return wellknown.Find(typ)
}

// parse builds the tree of a text within the size budget.
func parse(src string) (*node, error) {
	if len(src) > MaxBytes {
		return nil, nil
	}
	if i := invalidUTF8(src); i >= 0 {
		line, column := lineColumn(src, i)
		return nil, &syntaxError{position{line: int32(line), column: int32(column)}, "the text is not UTF-8"}
	}
	if t := strings.TrimLeft(src, " \t\r\n"); strings.HasPrefix(t, "{") {
		if root, err := parseJSON(src); err != errNotJSON {
			return root, err
		}
	}
	return parseYAML(src)
}

func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

func looksLikeDescriptor(root *node) bool {
	return root != nil && root.kind == object && (root.child("schemaVersion") != nil || root.child("kind") != nil)
}

// A decoder turns the tree into a Descriptor.
type decoder struct {
	doc   *Document
	diags Diagnostics
	raw   []byte // the source, for configs that are a piece of it
	buf   []byte // configs that had to be rendered
	over  bool
}

func (dec *decoder) reportAt(pos position, path, message string, statement ...string) {
	if len(dec.diags) >= maxFindings {
		if !dec.over {
			dec.over = true
			dec.diags = append(dec.diags, Diagnostic{Severity: Error, Stage: StageDecode, Message: fmt.Sprintf("more than %d findings; the rest is left out", maxFindings)})
		}
		return
	}
	dg := Diagnostic{Severity: Error, Stage: StageDecode, Path: path, Message: message}
	if len(statement) > 0 {
		dg.Statement = statement[0]
	}
	dec.doc.place(&dg, pos)
	dec.diags = append(dec.diags, dg)
	dec.doc.bad = append(dec.doc.bad, path)
}

func (dec *decoder) report(n *node, message string, statement ...string) {
	dec.reportAt(n.pos, n.path(), message, statement...)
}

// top is where findings about the document as a whole point.
var top = position{line: 1, column: 1}

// place fills in the place of a finding and its excerpt.
func (d *Document) place(dg *Diagnostic, pos position) {
	dg.File = d.opts.File
	if d.src == "" {
		return
	}
	line, column := int(pos.line), int(pos.column)
	if line == 0 {
		line, column = lineColumn(d.src, int(pos.offset))
	}
	dg.Excerpt = excerpt(sourceLine(d.src, line), column)
	if d.comment != nil {
		line += d.comment.Line - 1
		column += d.comment.Indent
	}
	dg.Line, dg.Column = line, column
}

// fields walks the members of an object, reporting what is unknown or twice.
// take gets each member and reports whether it knows the key.
func (dec *decoder) fields(n *node, hint map[string]string, take func(key string, v *node) bool) {
	if n.kind != object {
		dec.report(n, "must be a mapping, not "+n.kind.String())
		return
	}
	duplicateKeys(n, func(c *node) {
		dec.reportAt(c.keyPos, c.path(), fmt.Sprintf("the key %q is stated twice", c.key))
	})
	for c := n.first; c != nil; c = c.next {
		if !take(c.key, c) {
			msg := fmt.Sprintf("unknown key %q", c.key)
			if h := hint[c.key]; h != "" {
				msg += ": " + h
			}
			dec.reportAt(c.keyPos, c.path(), msg)
		}
	}
}

// str reads a string. Numbers and booleans are taken as the text that spells
// them, as every YAML reader of version 3 does; an unquoted `version: 1.10`
// means what it shows.
func (dec *decoder) str(n *node) string {
	switch n.kind {
	case text, number, boolean:
		return n.text
	}
	dec.report(n, "must be a string, not "+n.kind.String())
	return ""
}

// label reads a display name, which must be a string as written: 12 and true
// would come back changed (§7/name-round-trip).
func (dec *decoder) label(n *node) string {
	if n.kind != text {
		dec.report(n, "must be a string, not "+n.kind.String()+"; put it in quotes", "SPEC-v3 §7/name-round-trip")
		return ""
	}
	return n.text
}

func (dec *decoder) boolean(n *node) bool {
	if n.kind != boolean {
		dec.report(n, "must be true or false, not "+n.kind.String())
		return false
	}
	return strings.EqualFold(n.text, "true")
}

func (dec *decoder) strings(n *node) []string {
	if n.kind != array {
		dec.report(n, "must be a list of strings, not "+n.kind.String())
		return nil
	}
	out := make([]string, 0, n.count)
	for c := n.first; c != nil; c = c.next {
		out = append(out, dec.str(c))
	}
	return out
}

// hints help authors who come from elsewhere.
var hints = map[string]string{
	"name":           "a Kit has no name of its own; it is identified by the reference it is consumed by",
	"image":          "the base image belongs in the recipe",
	"entrypoint":     "state it in the recipe; it is part of the image config",
	"env":            "state it in the recipe; it is part of the image config",
	"user":           "state it in the recipe; it is part of the image config",
	"workdir":        "state it in the recipe; it is part of the image config",
	"SchemaVersion":  "write schemaVersion",
	"schema_version": "write schemaVersion",
	"sourceURL":      "write sourceUrl",
	"iconURL":        "write iconUrl",
	"license":        "write licenses, a list",
}

func (dec *decoder) descriptor(n *node) {
	d := &dec.doc.Descriptor
	dec.fields(n, hints, func(key string, v *node) bool {
		switch key {
		case "schemaVersion":
			if v.kind != text {
				dec.report(v, `must be the string "3", in quotes`, "SPEC-v3 §4/schema-version-3")
				break
			}
			d.SchemaVersion = v.text
		case "kind":
			d.Kind = dec.str(v)
		case "displayName":
			d.DisplayName = dec.str(v)
		case "author":
			d.Author = dec.str(v)
		case "description":
			d.Description = dec.str(v)
		case "sourceUrl":
			d.SourceURL = dec.str(v)
		case "iconUrl":
			d.IconURL = dec.str(v)
		case "version":
			d.Version = dec.str(v)
		case "licenses":
			d.Licenses = dec.strings(v)
		case "provides":
			d.Provides = dec.strings(v)
		case "requires":
			d.Requires = dec.strings(v)
		case "integrates":
			d.Integrates = dec.strings(v)
		case "conflicts":
			d.Conflicts = dec.strings(v)
		case "capabilities":
			dec.items(v, d)
		case "args":
			dec.args(v, d)
		case "build":
			d.Build = dec.str(v)
		case "dockerfile":
			d.Dockerfile = dec.str(v)
		case "kits":
			dec.kits(v, d)
		default:
			return false
		}
		return true
	})
}

func (dec *decoder) items(n *node, d *Descriptor) {
	if n.kind != array {
		msg := "must be a list, not " + n.kind.String()
		if n.kind == object {
			msg += ": write one list element per capability, `- type: …`"
		}
		dec.report(n, msg)
		return
	}
	d.Capabilities = make([]Item, 0, n.count)
	dec.doc.items = make([]*node, 0, n.count)
	for c := n.first; c != nil; c = c.next {
		var it Item
		if c.kind == object {
			if g := c.child("group"); g != nil {
				it.Group = dec.group(g)
			}
		}
		dec.request(c, &it.Request)
		dec.doc.items = append(dec.doc.items, c)
		d.Capabilities = append(d.Capabilities, it)
	}
}

// request reads an entry. The key group is left to the caller: whether it may
// stand here is a rule, not a shape.
func (dec *decoder) request(n *node, r *capability.Request) {
	dec.fields(n, nil, func(key string, v *node) bool {
		switch key {
		case "type":
			r.Type = dec.str(v)
		case "name":
			r.Name = dec.label(v)
		case "optional":
			r.Optional = dec.boolean(v)
		case "description":
			r.Description = dec.str(v)
		case "config":
			r.Config = dec.config(v)
		case "source":
			r.Source = dec.source(v)
		case "group":
		default:
			return false
		}
		return true
	})
}

func (dec *decoder) source(n *node) *capability.Source {
	s := &capability.Source{}
	dec.fields(n, nil, func(key string, v *node) bool {
		switch key {
		case "kit":
			s.Kit = dec.str(v)
		case "path":
			s.Path = dec.str(v)
		default:
			return false
		}
		return true
	})
	return s
}

func (dec *decoder) group(n *node) *Group {
	g := &Group{}
	dec.fields(n, nil, func(key string, v *node) bool {
		switch key {
		case "name":
			g.Name = dec.label(v)
		case "description":
			g.Description = dec.str(v)
		case "optional":
			g.Optional = dec.boolean(v)
		case "capabilities":
			if v.kind != array {
				dec.report(v, "must be a list, not "+v.kind.String())
				break
			}
			g.Capabilities = make([]capability.Request, v.count)
			i := 0
			for c := v.first; c != nil; c = c.next {
				dec.request(c, &g.Capabilities[i])
				i++
			}
		default:
			return false
		}
		return true
	})
	return g
}

func (dec *decoder) args(n *node, d *Descriptor) {
	if n.kind == object {
		d.Args = make(map[string]Arg, n.count)
	}
	dec.fields(n, nil, func(key string, v *node) bool {
		d.Args[key] = dec.arg(v)
		return true
	})
}

func (dec *decoder) arg(n *node) (a Arg) {
	dec.fields(n, nil, func(key string, v *node) bool {
		switch key {
		case "default":
			s := dec.str(v)
			a.Default = &s
		case "required":
			a.Required = dec.boolean(v)
		case "description":
			a.Description = dec.str(v)
		case "enum":
			a.Enum = dec.strings(v)
		case "pattern":
			a.Pattern = dec.str(v)
		case "env":
			a.Env = dec.str(v)
		case "buildArg":
			a.BuildArg = dec.str(v)
		default:
			return false
		}
		return true
	})
	return a
}

func (dec *decoder) kits(n *node, d *Descriptor) {
	if n.kind != array {
		dec.report(n, "must be a list, not "+n.kind.String())
		return
	}
	d.Kits = make([]KitRef, n.count)
	i := 0
	for c := n.first; c != nil; c = c.next {
		k := &d.Kits[i]
		dec.fields(c, nil, func(key string, v *node) bool {
			switch key {
			case "ref":
				k.Ref = dec.str(v)
			case "digest":
				k.Digest = dec.str(v)
			case "args":
				if v.kind == object {
					k.Args = make(map[string]string, v.count)
				}
				dec.fields(v, nil, func(key string, v *node) bool {
					k.Args[key] = dec.str(v)
					return true
				})
			default:
				return false
			}
			return true
		})
		i++
	}
}

// config renders a config as compact JSON. That of a JSON source is a piece of
// it if nothing needs repair.
func (dec *decoder) config(n *node) []byte {
	dec.configKeys(n)
	if n.end > 0 {
		if raw := dec.doc.src[n.pos.offset:n.end]; !strings.ContainsAny(raw, "\\\n\r\t ") {
			return dec.raw[n.pos.offset:n.end:n.end]
		}
	}
	start := len(dec.buf)
	dec.buf = appendNode(dec.buf, n)
	return slices.Clip(dec.buf[start:])
}

// configKeys reports keys that are stated twice, at any depth. That is a fault
// of the document, whatever its type says about the config.
func (dec *decoder) configKeys(n *node) {
	if n.kind == object {
		duplicateKeys(n, func(c *node) {
			dec.reportAt(c.keyPos, c.path(), fmt.Sprintf("the key %q is stated twice", c.key))
		})
	}
	for c := n.first; c != nil; c = c.next {
		if c.first != nil { // scalars and empty values have no keys
			dec.configKeys(c)
		}
	}
}
