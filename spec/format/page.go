package format

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// step is the indentation of one level.
const step = 2

// A kind says how a line is treated.
type kind uint8

const (
	blank     kind = iota
	comment        // a comment of its own
	structure      // begins with a key or a dash of a block collection
	continued      // goes on with the flow collection or scalar of an earlier line
	literal        // content of a block scalar
	verbatim       // outside of the document
)

// A collection is a block mapping or sequence: the column at which its keys or
// dashes stand, and the one at which they are to.
type collection struct {
	parent   *collection
	old, new int
}

// A token is a key or a dash that a line begins with.
type token struct {
	in   *collection
	dash bool
}

// An owner is a line's last key or dash, whose value may go on below.
type owner struct {
	in      *collection
	flow    bool
	literal bool
	lines   []int // that continue it
}

type line struct {
	text   string
	kind   kind
	tokens []token
	owner  *owner
	cut    int  // literal: indentation before
	indent int  // comment, continued, literal: indentation after
	keep   bool // an empty line that counts
	inner  bool // within the value of a key of the root

	partner int // of a marker that opens: the line of the one that closes; else 0
}

// A page is a document as lines.
type page struct {
	lines []line
	keys  []key // of the root, in order
	first int   // line after the preamble
	end   int   // line after the first document
}

type key struct {
	name string
	line int
}

func newPage(text string) *page {
	p := &page{}
	for l := range strings.Lines(text) {
		p.lines = append(p.lines, line{text: strings.TrimSuffix(l, "\n")})
	}
	return p
}

// place finds out what every line is and where it goes.
func (p *page) place(root *yaml.Node) error {
	if err := p.mapping(root, nil, 0, true); err != nil {
		return err
	}
	p.bounds()
	p.classify()
	p.shift()
	p.comments()
	return nil
}

func unsupported(n *yaml.Node, what string) error {
	return fmt.Errorf("line %d: %s cannot be formatted; write it in another way", n.Line, what)
}

func (p *page) mapping(m *yaml.Node, parent *collection, new int, root bool) error {
	c := &collection{parent: parent, old: m.Content[0].Column - 1, new: new}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		at := k.Line - 1
		if k.Kind != yaml.ScalarNode && k.Kind != yaml.AliasNode || k.Column-1 != c.old || !p.begins(at, c.old) {
			return unsupported(k, "a key with a question mark, or over several lines,")
		}
		p.lines[at].tokens = append(p.lines[at].tokens, token{in: c})
		if root {
			p.keys = append(p.keys, key{k.Value, at})
		}
		if err := p.value(v, at, c); err != nil {
			return err
		}
	}
	return nil
}

func (p *page) sequence(s *yaml.Node, parent *collection, from int) error {
	var c *collection
	for _, item := range s.Content {
		at, column := p.dash(from, c)
		if at < 0 {
			return unsupported(s, "this list")
		}
		if c == nil {
			c = &collection{parent: parent, old: column, new: parent.new + step}
		}
		p.lines[at].tokens = append(p.lines[at].tokens, token{in: c, dash: true})
		if err := p.value(item, at, c); err != nil {
			return err
		}
		from = at + 1
	}
	return nil
}

// dash returns the next line, from the given one on, that has a dash in the
// column of c. The first dash of a list settles its column: it is the first
// dash behind what the line has already been found to begin with.
func (p *page) dash(from int, c *collection) (at, column int) {
	for at = max(from, 0); at < len(p.lines); at++ {
		l := p.lines[at].text
		begin := 0
		if n := len(p.lines[at].tokens); c == nil && n > 0 {
			last := p.lines[at].tokens[n-1]
			if !last.dash {
				continue // a key; its list begins below
			}
			begin = last.in.old + 1
		}
		column = begin + len(l[min(begin, len(l)):]) - len(strings.TrimLeft(l[min(begin, len(l)):], " "))
		if c != nil {
			column = c.old
		}
		if isDash(l, column) && p.begins(at, column) {
			return at, column
		}
	}
	return -1, 0
}

func isDash(l string, column int) bool {
	if column >= len(l) || l[column] != '-' {
		return false
	}
	return column+1 == len(l) || l[column+1] == ' ' || l[column+1] == '\t'
}

// begins reports whether only blanks and dashes stand before column.
func (p *page) begins(at, column int) bool {
	l := p.lines[at].text
	return column <= len(l) && strings.Trim(l[:column], " -") == ""
}

func (p *page) value(v *yaml.Node, at int, in *collection) error {
	if block := v.Style&yaml.FlowStyle == 0 && len(v.Content) > 0; block {
		switch v.Kind {
		case yaml.MappingNode:
			return p.mapping(v, in, in.new+step, false)
		case yaml.SequenceNode:
			return p.sequence(v, in, at)
		}
	}
	o := &owner{in: in, flow: v.Kind == yaml.MappingNode || v.Kind == yaml.SequenceNode}
	p.lines[at].owner = o
	if v.Kind != yaml.ScalarNode {
		return nil
	}
	switch {
	case v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		o.literal = true
		return p.block(v, in)
	case v.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		p.quoted(v, o)
	}
	return nil
}

// block marks the lines of a block scalar.
func (p *page) block(v *yaml.Node, in *collection) error {
	at := v.Line - 1
	header := p.from(v)
	for strings.HasPrefix(header, "!") || strings.HasPrefix(header, "&") {
		_, header, _ = strings.Cut(header, " ")
		header = strings.TrimLeft(header, " \t")
	}
	if header == "" || header[0] != '|' && header[0] != '>' {
		return unsupported(v, "this text block")
	}
	digit, keep := 0, false
	for _, c := range header[1:] {
		if c >= '1' && c <= '9' {
			digit = int(c - '0')
		} else if c == '+' {
			keep = true
		} else if c != '-' {
			break
		}
	}
	// A block's indentation counts from that of the collection around it.
	old, new := in.old+digit, in.new+digit
	if digit == 0 {
		new = in.new + step
		for i := at + 1; i < len(p.lines); i++ {
			if l := p.lines[i].text; strings.Trim(l, " ") != "" {
				old = indentation(l)
				break
			}
		}
	}
	if old <= in.old {
		return nil // empty
	}
	last := at
	for i := at + 1; i < len(p.lines); i++ {
		l := p.lines[i].text
		if empty := strings.Trim(l, " ") == ""; !empty && indentation(l) < old {
			break
		} else if !empty || keep || len(l) > old {
			last = i
		}
	}
	for i := at + 1; i <= last; i++ {
		p.lines[i].kind, p.lines[i].cut, p.lines[i].indent, p.lines[i].keep = literal, old, new, true
	}
	return nil
}

// quoted marks the lines that a quoted scalar goes on over, so that none is
// taken for a comment.
func (p *page) quoted(v *yaml.Node, o *owner) {
	at := v.Line - 1
	rest := p.from(v)
	for strings.HasPrefix(rest, "!") || strings.HasPrefix(rest, "&") {
		_, rest, _ = strings.Cut(rest, " ")
		rest = strings.TrimLeft(rest, " \t")
	}
	if rest == "" || rest[0] != '"' && rest[0] != '\'' {
		return
	}
	quote := rest[0]
	rest = rest[1:]
	for {
		for i := 0; i < len(rest); i++ {
			switch {
			case quote == '"' && rest[i] == '\\':
				i++
			case quote == '\'' && strings.HasPrefix(rest[i:], "''"):
				i++
			case rest[i] == quote:
				return
			}
		}
		at++
		if at >= len(p.lines) {
			return
		}
		rest = p.lines[at].text
		if strings.Trim(rest, " \t") != "" {
			p.lines[at].kind, p.lines[at].owner = continued, o
		}
	}
}

// from returns what stands at v and behind it in its line.
func (p *page) from(v *yaml.Node) string {
	l := p.lines[v.Line-1].text
	for c := 1; c < v.Column && l != ""; c++ {
		_, n := utf8.DecodeRuneInString(l)
		l = l[n:]
	}
	return l
}

// bounds finds the preamble, up to a document marker, and the document's end.
func (p *page) bounds() {
	marker := func(l string) bool {
		for _, m := range []string{"---", "..."} {
			if rest, ok := strings.CutPrefix(l, m); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
				return true
			}
		}
		return false
	}
	for i := range p.lines[:p.keys[0].line] {
		if l := p.lines[i].text; marker(l) || strings.HasPrefix(l, "%") {
			p.first = i + 1
		}
	}
	p.end = len(p.lines)
	for i := p.keys[0].line; i < len(p.lines); i++ {
		if marker(p.lines[i].text) {
			p.end = i
			break
		}
	}
	for i := range p.lines {
		if i < p.first || i >= p.end {
			p.lines[i].kind = verbatim
		}
	}
}

func (p *page) classify() {
	var last *owner
	for i := p.first; i < p.end; i++ {
		l := &p.lines[i]
		switch t := strings.TrimLeft(l.text, " \t"); {
		case l.kind == literal || l.kind == continued:
		case len(l.tokens) > 0:
			l.kind = structure
		case t == "":
			l.kind = blank
		case t[0] == '#':
			l.kind = comment
		default:
			l.kind, l.owner = continued, last
		}
		if l.owner == nil {
			continue
		}
		last = l.owner
		if l.kind == continued {
			last.lines = append(last.lines, i)
		}
	}
}

// shift moves the lines that continue an owner together with it, all by the
// same number of columns.
func (p *page) shift() {
	for i := p.first; i < p.end; i++ {
		l := &p.lines[i]
		if l.kind != structure || l.owner == nil || len(l.owner.lines) == 0 {
			continue
		}
		o := l.owner
		by, least := o.in.new-o.in.old, o.in.new+step
		if o.flow {
			least = o.in.new // where a closing bracket may stand
		}
		lowest := least
		for _, n := range o.lines {
			lowest = min(lowest, indentation(p.lines[n].text)+by)
		}
		by += least - lowest
		for _, n := range o.lines {
			p.lines[n].indent = indentation(p.lines[n].text) + by
		}
		for n := i + 1; n < o.lines[len(o.lines)-1]; n++ {
			p.lines[n].keep = p.lines[n].kind == blank
		}
	}
}

// comments puts every comment in a line of its own at the depth of the
// collection that it stands in.
func (p *page) comments() {
	next := make([]*collection, p.end+1)
	for i := p.end - 1; i >= p.first; i-- {
		next[i] = next[i+1]
		if l := p.lines[i]; l.kind == structure {
			next[i] = l.tokens[0].in
		}
	}
	var before *collection
	text := false // the last structure holds a block scalar
	for i := p.first; i < p.end; i++ {
		l := &p.lines[i]
		switch l.kind {
		case structure:
			before = l.tokens[len(l.tokens)-1].in
			text = l.owner != nil && l.owner.literal
		case comment:
			if before != nil {
				l.indent = commentIndent(indentation(l.text), before, next[i], text)
			}
		}
	}
}

func commentIndent(at int, before, next *collection, text bool) int {
	if next != nil && next.old == at {
		return next.new
	}
	for _, chain := range []*collection{before, next} {
		for c := chain; c != nil; c = c.parent {
			if c.old == at {
				return c.new
			}
		}
	}
	for c := before; c != nil; c = c.parent {
		if c.old > at {
			continue
		}
		if text {
			return c.new // deeper, it could become part of the text
		}
		return c.new + min(at-c.old, step)
	}
	return 0
}

func indentation(l string) int { return len(l) - len(strings.TrimLeft(l, " \t")) }
