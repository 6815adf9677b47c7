package spec

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/spec/source"
	"github.com/kitbox-dev/kitbox/spec/spelling"
)

// A Document is a decoded descriptor with what is needed to judge it and to
// point into its source. It is immutable and safe for concurrent use.
type Document struct {
	Descriptor

	opts  Options
	src   string         // the descriptor's own text; "" if there is none
	size  int            // bytes of the source, for the size budget
	root  *source.Node   // nil if there is no source
	items []*source.Node // of the capabilities list
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
		var se *source.SyntaxError
		switch {
		case errors.Is(err, io.EOF):
			dec.reportAt(top, "", "the document is empty")
		case errors.As(err, &se):
			dec.reportAt(se.Pos, "", tabbed(d.src, se))
		default:
			dec.reportAt(top, "", err.Error())
		}
		return nil, dec.diags
	}
	if root.Kind != source.Object {
		dec.report(root, "a descriptor is a mapping, not "+root.Kind.String())
		return nil, dec.diags
	}
	d.root = root
	dec.descriptor(root)
	return d, dec.diags
}

// tabbed is what a YAML parser says, in plain words where a tab is what it cannot
// read: the fault most often made by hand.
func tabbed(text string, se *source.SyntaxError) string {
	lines := strings.Split(text, "\n")
	if n := int(se.Pos.Line); n > 0 && n <= len(lines) {
		line := lines[n-1]
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			return "the line is indented with a tab, and YAML takes blanks only: put blanks in its place"
		}
	}
	return se.Message
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

// parse builds the tree of a text within the size budget; nil if it is larger.
func parse(src string) (*source.Node, error) {
	if len(src) > MaxBytes {
		return nil, nil
	}
	return source.Parse(src)
}

func looksLikeDescriptor(root *source.Node) bool {
	return root != nil && root.Kind == source.Object && (root.Child("schemaVersion") != nil || root.Child("kind") != nil)
}

// A decoder turns the tree into a Descriptor.
type decoder struct {
	doc   *Document
	diags Diagnostics
	raw   []byte // the source, for configs that are a piece of it
	buf   []byte // configs that had to be rendered
	over  bool
}

func (dec *decoder) reportAt(pos source.Position, path, message string, statement ...string) {
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

func (dec *decoder) report(n *source.Node, message string, statement ...string) {
	dec.reportAt(n.Pos, n.Path(), message, statement...)
}

// top is where findings about the document as a whole point.
var top = source.Position{Line: 1, Column: 1}

// place fills in the place of a finding and its excerpt.
func (d *Document) place(dg *Diagnostic, pos source.Position) {
	dg.File = d.opts.File
	if d.src == "" {
		return
	}
	line, column := pos.Resolve(d.src)
	dg.Excerpt = source.Excerpt(source.Line(d.src, line), column)
	if d.comment != nil {
		line += d.comment.Line - 1
		column += d.comment.Indent
	}
	dg.Line, dg.Column = line, column
}

// fields walks the members of an object, reporting what is unknown or twice.
// take gets each member and reports whether it knows the key.
func (dec *decoder) fields(n *source.Node, known []string, take func(key string, v *source.Node) bool) {
	if n.Kind != source.Object {
		dec.report(n, "must be a mapping, not "+n.Kind.String())
		return
	}
	n.DuplicateKeys(func(c *source.Node) {
		if dec.over {
			return
		}
		dec.reportAt(c.KeyPos, c.Path(), fmt.Sprintf("the key %q is stated twice", c.Key))
	})
	for c := n.First; c != nil; c = c.Next {
		if !take(c.Key, c) {
			if dec.over {
				continue // enough has been said; composing more would cost without bound
			}
			msg := fmt.Sprintf("unknown key %q", c.Key)
			if h := hints[c.Key]; h != "" && n.Path() == "" {
				msg += ": " + h
			} else if k := nearest(c.Key, known); k != "" {
				msg += fmt.Sprintf("; did you mean %s?", k)
			}
			dec.reportAt(c.KeyPos, c.Path(), msg)
		}
	}
}

// str reads a string. Numbers and booleans are taken as the text that spells
// them, as every YAML reader of version 3 does; an unquoted `version: 1.10`
// means what it shows.
func (dec *decoder) str(n *source.Node) string {
	switch n.Kind {
	case source.Text, source.Number, source.Boolean:
		return n.Text
	}
	dec.report(n, "must be a string, not "+n.Kind.String())
	return ""
}

// label reads a display name, which must be a string as written: 12 and true
// would come back changed (§7/name-round-trip).
func (dec *decoder) label(n *source.Node) string {
	if n.Kind != source.Text {
		dec.report(n, "must be a string, not "+n.Kind.String()+"; put it in quotes", "SPEC-v3 §7/name-round-trip")
		return ""
	}
	return n.Text
}

func (dec *decoder) boolean(n *source.Node) bool {
	if n.Kind != source.Boolean {
		dec.report(n, "must be true or false, not "+n.Kind.String())
		return false
	}
	return n.True()
}

func (dec *decoder) strings(n *source.Node) []string {
	if n.Kind != source.Array {
		dec.report(n, "must be a list of strings, not "+n.Kind.String())
		return nil
	}
	out := make([]string, 0, n.Count)
	for c := n.First; c != nil; c = c.Next {
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

// The keys of each mapping of the grammar, for suggestions.
var (
	topKeys = []string{"schemaVersion", "kind", "displayName", "author", "description", "sourceUrl", "iconUrl", "version", "licenses",
		"provides", "requires", "integrates", "conflicts", "capabilities", "args", "build", "dockerfile", "kits"}
	entryKeys  = []string{"type", "name", "optional", "config", "description", "source"}
	sourceKeys = []string{"kit", "path"}
	groupKeys  = []string{"name", "description", "optional", "capabilities"}
	argKeys    = []string{"default", "required", "description", "enum", "pattern", "env", "buildArg"}
	kitKeys    = []string{"ref", "digest", "args"}
)

// nearest returns the known key that key was probably meant to be: the same but
// for case and separators, or at most two edits away; "" if there is none.
func nearest(key string, known []string) string {
	const edits = 2
	plain := strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(key, "_", ""), "-", ""))
	best, least := "", edits+1
	for _, k := range known {
		if d := spelling.Distance(plain, strings.ToLower(k), edits); d < least && d < len(k)-1 {
			best, least = k, d
		}
	}
	return best
}

func (dec *decoder) descriptor(n *source.Node) {
	d := &dec.doc.Descriptor
	dec.fields(n, topKeys, func(key string, v *source.Node) bool {
		switch key {
		case "schemaVersion":
			if v.Kind != source.Text {
				dec.report(v, `must be the string "3", in quotes`, "SPEC-v3 §4/schema-version-3")
				break
			}
			d.SchemaVersion = v.Text
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

func (dec *decoder) items(n *source.Node, d *Descriptor) {
	if n.Kind != source.Array {
		msg := "must be a list, not " + n.Kind.String()
		if n.Kind == source.Object {
			msg += ": write one list element per capability, `- type: …`"
		}
		dec.report(n, msg)
		return
	}
	d.Capabilities = make([]Item, 0, n.Count)
	dec.doc.items = make([]*source.Node, 0, n.Count)
	for c := n.First; c != nil; c = c.Next {
		var it Item
		if c.Kind == source.Object {
			if g := c.Child("group"); g != nil {
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
func (dec *decoder) request(n *source.Node, r *capability.Request) {
	dec.fields(n, entryKeys, func(key string, v *source.Node) bool {
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

func (dec *decoder) source(n *source.Node) *capability.Source {
	s := &capability.Source{}
	dec.fields(n, sourceKeys, func(key string, v *source.Node) bool {
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

func (dec *decoder) group(n *source.Node) *Group {
	g := &Group{}
	dec.fields(n, groupKeys, func(key string, v *source.Node) bool {
		switch key {
		case "name":
			g.Name = dec.label(v)
		case "description":
			g.Description = dec.str(v)
		case "optional":
			g.Optional = dec.boolean(v)
		case "capabilities":
			if v.Kind != source.Array {
				dec.report(v, "must be a list, not "+v.Kind.String())
				break
			}
			g.Capabilities = make([]capability.Request, v.Count)
			i := 0
			for c := v.First; c != nil; c = c.Next {
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

func (dec *decoder) args(n *source.Node, d *Descriptor) {
	if n.Kind == source.Object {
		d.Args = make(map[string]Arg, n.Count)
	}
	dec.fields(n, nil, func(key string, v *source.Node) bool {
		d.Args[key] = dec.arg(v)
		return true
	})
}

func (dec *decoder) arg(n *source.Node) (a Arg) {
	dec.fields(n, argKeys, func(key string, v *source.Node) bool {
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

func (dec *decoder) kits(n *source.Node, d *Descriptor) {
	if n.Kind != source.Array {
		dec.report(n, "must be a list, not "+n.Kind.String())
		return
	}
	d.Kits = make([]KitRef, n.Count)
	i := 0
	for c := n.First; c != nil; c = c.Next {
		k := &d.Kits[i]
		dec.fields(c, kitKeys, func(key string, v *source.Node) bool {
			switch key {
			case "ref":
				k.Ref = dec.str(v)
			case "digest":
				k.Digest = dec.str(v)
			case "args":
				if v.Kind == source.Object {
					k.Args = make(map[string]string, v.Count)
				}
				dec.fields(v, nil, func(key string, v *source.Node) bool {
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
func (dec *decoder) config(n *source.Node) []byte {
	dec.configKeys(n)
	if raw, ok := n.Raw(dec.raw); ok {
		return raw
	}
	start := len(dec.buf)
	dec.buf = n.AppendJSON(dec.buf)
	return slices.Clip(dec.buf[start:])
}

// configKeys reports keys that are stated twice, at any depth. That is a fault
// of the document, whatever its type says about the config.
func (dec *decoder) configKeys(n *source.Node) {
	if n.Kind == source.Object {
		n.DuplicateKeys(func(c *source.Node) {
			if dec.over {
				return
			}
			dec.reportAt(c.KeyPos, c.Path(), fmt.Sprintf("the key %q is stated twice", c.Key))
		})
	}
	for c := n.First; c != nil; c = c.Next {
		if c.First != nil { // scalars and empty values have no keys
			dec.configKeys(c)
		}
	}
}
