package source

import (
	"strings"
	"unicode/utf8"
)

// parsePlain builds the tree of a text in the part of YAML that descriptors are
// written in: block mappings and lists, flow collections on one line, plain and
// quoted scalars on one line, literal block scalars and comments. It is false
// for everything else, faulty texts included, which is left to the YAML parser:
// anchors, tags, documents, tabs, folded text, empty values, and every scalar
// of which it takes thought to say what it is. What it accepts, the YAML parser
// reads alike, to the last position; a fuzz test holds the two together.
func parsePlain(src string) (*Node, bool) {
	p := plainParser{src: src, ascii: true, line: 1}
	if !p.survey() {
		return nil, false
	}
	indent := p.next()
	if indent < 0 {
		return nil, false
	}
	root := p.block(indent, -1, 0)
	if p.bad || p.at < len(src) || root.Kind != Object {
		return nil, false
	}
	return root, true
}

// A plainParser is between lines after next and after literal, and within one
// otherwise. Once bad is set nothing else counts.
type plainParser struct {
	src   string
	at    int
	bol   int // where the line begins
	line  int // from 1
	ascii bool
	bad   bool
	slab
}

// maxPlainDepth is well within what the YAML parser takes.
const maxPlainDepth = maxDepth / 2

// maxPlainKey is well within the length up to which YAML recognizes a key.
const maxPlainKey = 512

// survey is false if src holds something that never is in our part of YAML.
func (p *plainParser) survey() bool {
	marked := func(line string) bool {
		return strings.HasPrefix(line, "---") || strings.HasPrefix(line, "...") || strings.HasPrefix(line, "%")
	}
	if marked(p.src) {
		return false
	}
	for at := 0; at < len(p.src); {
		c := p.src[at]
		if c >= utf8.RuneSelf {
			p.ascii = false
			r, n := utf8.DecodeRuneInString(p.src[at:])
			if r == utf8.RuneError && n == 1 || r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r > 0xfffd && r < 0x10000 {
				return false
			}
			at += n
			continue
		}
		if c < ' ' && c != '\n' || c == 0x7f {
			return false
		}
		at++
		if c == '\n' && marked(p.src[at:]) {
			return false
		}
	}
	return true
}

func (p *plainParser) fail() *Node {
	p.bad = true
	return &Node{}
}

// here returns the position of the byte at.
func (p *plainParser) here(at int) Position {
	column := at - p.bol
	if !p.ascii {
		column = utf8.RuneCountInString(p.src[p.bol:at])
	}
	return Position{Line: int32(p.line), Column: int32(column + 1)}
}

func (p *plainParser) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return '\n' // the end ends a line
}

func (p *plainParser) spaces() {
	for p.at < len(p.src) && p.src[p.at] == ' ' {
		p.at++
	}
}

// newline steps behind the line feed that the text is at.
func (p *plainParser) newline() {
	if p.at < len(p.src) {
		p.at++
		p.line++
	}
	p.bol = p.at
}

// next goes to the first character of the next line that has any, comments
// aside, and returns its indentation; -1 at the end. It is called at the
// beginning of a line.
func (p *plainParser) next() int {
	for p.at < len(p.src) {
		p.spaces()
		switch p.peek() {
		case '#':
			if i := strings.IndexByte(p.src[p.at:], '\n'); i >= 0 {
				p.at += i
			} else {
				p.at = len(p.src)
			}
		case '\n':
		default:
			return p.at - p.bol
		}
		p.newline()
	}
	return -1
}

// endLine leaves the line behind a value: blanks and a comment may follow.
func (p *plainParser) endLine() {
	start := p.at
	p.spaces()
	if p.peek() == '#' && p.at > start {
		if i := strings.IndexByte(p.src[p.at:], '\n'); i >= 0 {
			p.at += i
		} else {
			p.at = len(p.src)
		}
	}
	if p.peek() != '\n' {
		p.bad = true
		return
	}
	p.newline()
}

// block reads the value that begins here, indented by indent, in a collection
// that is indented by parent. It ends at the beginning of a line.
func (p *plainParser) block(indent, parent, depth int) *Node {
	if depth > maxPlainDepth {
		return p.fail()
	}
	switch p.peek() {
	case '-':
		if p.dash() {
			return p.list(indent, depth)
		}
	case '[', '{':
		n := p.flow(depth)
		p.endLine()
		return n
	case '|':
		return p.literal(parent)
	}
	n := p.scalar(false)
	if p.bad {
		return n
	}
	end := p.at
	p.spaces()
	if p.peek() == ':' && p.blank(p.at+1) {
		key, kind := n.Text, n.Kind
		n.Kind, n.Text, n.spelled = Object, "", false
		p.members(n, key, kind, indent, depth)
		return n
	}
	p.at = end // a comment needs a blank before it
	p.endLine()
	return n
}

// dash reports whether an element of a list begins here.
func (p *plainParser) dash() bool { return p.peek() == '-' && p.blank(p.at+1) }

func (p *plainParser) blank(at int) bool {
	return at >= len(p.src) || p.src[at] == ' ' || p.src[at] == '\n'
}

func (p *plainParser) list(indent, depth int) *Node {
	n := p.new()
	n.Kind, n.Pos = Array, p.here(p.at)
	for !p.bad {
		p.at++
		p.spaces()
		var child *Node
		if c := p.peek(); c == '\n' || c == '#' {
			p.endLine()
			i := p.next()
			if p.bad || i <= indent {
				return p.fail() // an empty element
			}
			child = p.block(i, indent, depth+1)
		} else {
			child = p.block(p.at-p.bol, indent, depth+1)
		}
		n.add(child)
		if p.bad {
			break
		}
		i := p.next()
		if i > indent {
			return p.fail() // text on several lines
		}
		if i < indent || !p.dash() {
			p.at = p.bol // whoever is around looks at this line again
			break
		}
	}
	return n
}

// members reads the members of n, whose first key has been read and whose colon
// is here.
func (p *plainParser) members(n *Node, key string, kind Kind, indent, depth int) {
	pos := n.Pos
	for !p.bad {
		if !plainKey(key, kind) {
			p.bad = true
			return
		}
		p.at++
		p.spaces()
		var child *Node
		switch c := p.peek(); {
		case c == '\n' || c == '#':
			p.endLine()
			i := p.next()
			switch {
			case p.bad:
				return
			case i > indent:
				child = p.block(i, indent, depth+1)
			case i == indent && p.dash():
				child = p.list(indent, depth+1)
			default:
				p.bad = true // an empty value
				return
			}
		case c == '[' || c == '{':
			child = p.flow(depth + 1)
			p.endLine()
		case c == '|':
			child = p.literal(indent)
		case c == '-' && p.dash():
			p.bad = true
			return
		default:
			child = p.scalar(false)
			p.endLine()
		}
		if p.bad {
			return
		}
		child.Key, child.KeyPos = key, pos
		n.add(child)
		i := p.next()
		if i < indent {
			p.at = p.bol
			return
		}
		if i > indent || p.dash() {
			p.bad = true
			return
		}
		pos = p.here(p.at)
		key, kind = p.text(false)
		p.spaces()
		if p.peek() != ':' || !p.blank(p.at+1) {
			p.bad = true
		}
	}
}

func plainKey(s string, kind Kind) bool {
	return kind != Null && s != "<<" && len(s) <= maxPlainKey
}

// flow reads a flow collection that begins and ends on this line.
func (p *plainParser) flow(depth int) *Node {
	if depth > maxPlainDepth {
		return p.fail()
	}
	n := p.new()
	n.Kind, n.Pos = Array, p.here(p.at)
	closing := byte(']')
	if p.peek() == '{' {
		n.Kind, closing = Object, '}'
	}
	p.at++
	p.spaces()
	if p.peek() == closing {
		p.at++
		return n
	}
	for !p.bad {
		var key string
		var pos Position
		if n.Kind == Object {
			var kind Kind
			pos = p.here(p.at)
			if key, kind = p.text(true); p.bad || !plainKey(key, kind) {
				return p.fail()
			}
			p.spaces()
			if p.peek() != ':' || p.at+1 >= len(p.src) || p.src[p.at+1] != ' ' {
				return p.fail()
			}
			p.at++
			p.spaces()
		}
		var child *Node
		if c := p.peek(); c == '[' || c == '{' {
			child = p.flow(depth + 1)
		} else {
			child = p.scalar(true)
		}
		if p.bad {
			return n
		}
		child.Key, child.KeyPos = key, pos
		n.add(child)
		p.spaces()
		switch p.peek() {
		case closing:
			p.at++
			return n
		case ',':
			p.at++
			p.spaces()
		default:
			return p.fail()
		}
	}
	return n
}

// scalar reads a scalar on this line.
func (p *plainParser) scalar(flow bool) *Node {
	if p.total >= maxNodes {
		return p.fail()
	}
	n := p.new()
	n.Pos = p.here(p.at)
	n.Text, n.Kind = p.text(flow)
	n.spelled = n.Kind == Number
	return n
}

// text reads the text of a scalar on this line, and says what it is.
func (p *plainParser) text(flow bool) (string, Kind) {
	switch p.peek() {
	case '"':
		return p.double(), Text
	case '\'':
		return p.single(), Text
	}
	s := p.plain(flow)
	if p.bad {
		return "", 0
	}
	kind := kindOf(s)
	p.bad = kind == 0
	return s, kind
}

// plain returns the plain scalar that begins here, and ends behind it.
func (p *plainParser) plain(flow bool) string {
	start := p.at
	switch c := p.peek(); {
	case c == '-':
		if d := p.at + 1; d >= len(p.src) || p.src[d] != '-' && !alnum(p.src[d]) {
			p.bad = true
			return ""
		}
	case strings.IndexByte("?:,[]{}#&*!|>'\"%@`\n ", c) >= 0:
		p.bad = true
		return ""
	}
	end := start
	for ; p.at < len(p.src); p.at++ {
		switch c := p.src[p.at]; {
		case c == '\n':
			return p.src[start:end]
		case c == ' ':
			continue
		case c == '#' && p.src[p.at-1] == ' ':
			p.at = end
			return p.src[start:end]
		case c == ':':
			if p.blank(p.at + 1) {
				p.at = end
				return p.src[start:end]
			}
			if flow && strings.IndexByte(",[]{}", p.src[p.at+1]) >= 0 {
				p.bad = true
				return ""
			}
		case flow && (c == ',' || c == ']' || c == '}'):
			p.at = end
			return p.src[start:end]
		case flow && (c == '[' || c == '{' || c == '?'):
			p.bad = true
			return ""
		}
		end = p.at + 1
	}
	return p.src[start:end]
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// kindOf returns what a plain scalar is, or 0 if it takes more thought.
func kindOf(s string) Kind {
	switch c := s[0]; {
	case s == "true", s == "false":
		return Boolean
	case s == "null":
		return Null
	case c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.':
		const maxDigits = 15
		if len(s) <= maxDigits && jsonNumber(s) && !strings.ContainsAny(s, "eE") {
			return Number
		}
		if c == '-' && (s[1] == '-' || alnum(s[1]) && s[1] > '9') {
			if s[1] == 'i' || s[1] == 'I' || s[1] == 'n' || s[1] == 'N' {
				return 0 // infinity and the like
			}
			return Text
		}
		// No number, time or special value holds one of these.
		if strings.ContainsAny(s, "ghjklmpqrsuvwyGHJKLMPQRSUVWY/@%()$=,;!*&\\|") || strings.Trim(s, "0123456789.") == "" && strings.Count(s, ".") > 1 {
			return Text
		}
		return 0
	case c == '~' || c == '<' || c == '=':
		return 0
	}
	if len(s) <= len("false") {
		switch strings.ToLower(s) {
		case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
			return 0
		}
	}
	return Text
}

// double returns a double-quoted scalar with the escapes that people use.
func (p *plainParser) double() string {
	p.at++
	start := p.at
	var b []byte
	for ; p.at < len(p.src); p.at++ {
		switch c := p.src[p.at]; c {
		case '\n':
			p.bad = true
			return ""
		case '"':
			p.at++
			if b == nil {
				return p.src[start : p.at-1]
			}
			return string(append(b, p.src[start:p.at-1]...))
		case '\\':
			b = append(b, p.src[start:p.at]...)
			p.at++
			switch c := p.peek(); c {
			case 'n':
				b = append(b, '\n')
			case 't':
				b = append(b, '\t')
			case '"', '\\', '/':
				b = append(b, c)
			default:
				p.bad = true
				return ""
			}
			start = p.at + 1
		}
	}
	p.bad = true
	return ""
}

// single returns a single-quoted scalar.
func (p *plainParser) single() string {
	p.at++
	start := p.at
	doubled := false
	for ; p.at < len(p.src); p.at++ {
		switch p.src[p.at] {
		case '\n':
			p.bad = true
			return ""
		case '\'':
			if p.at+1 < len(p.src) && p.src[p.at+1] == '\'' {
				doubled = true
				p.at++
				continue
			}
			p.at++
			s := p.src[start : p.at-1]
			if doubled {
				s = strings.ReplaceAll(s, "''", "'")
			}
			return s
		}
	}
	p.bad = true
	return ""
}

// literal reads a literal block scalar in a collection that is indented by
// parent. It ends at the beginning of the line behind it.
func (p *plainParser) literal(parent int) *Node {
	n := p.new()
	n.Kind, n.Pos = Text, p.here(p.at)
	p.at++
	chomp := p.peek()
	if chomp == '-' || chomp == '+' {
		p.at++
	}
	if p.at >= len(p.src) || p.src[p.at] != '\n' {
		return p.fail()
	}
	p.newline()
	start := p.at
	// The first line that has anything gives the indentation. What is blank
	// before it must be empty, and no line may lie between the two depths.
	indent := -1
	var text strings.Builder
	feeds := 0 // line feeds not yet written: they may be the last
	for p.at < len(p.src) {
		end := strings.IndexByte(p.src[p.at:], '\n')
		if end < 0 {
			return p.fail()
		}
		line := p.src[p.at : p.at+end]
		depth := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case depth == len(line) && (indent < 0 || depth <= indent): // blank
			if indent < 0 && depth > 0 {
				return p.fail()
			}
			feeds++
		case indent < 0 && depth <= parent || indent >= 0 && depth < indent && depth <= parent:
			return p.finish(n, &text, start, feeds, chomp)
		case indent >= 0 && depth < indent:
			return p.fail()
		default:
			if indent < 0 {
				indent = depth
				text.Grow(p.blockSize(indent))
			}
			for ; feeds > 0; feeds-- {
				text.WriteByte('\n')
			}
			text.WriteString(line[indent:])
			feeds = 1
		}
		p.at += end
		p.newline()
	}
	return p.finish(n, &text, start, feeds, chomp)
}

// blockSize returns at most how long the literal that begins here is.
func (p *plainParser) blockSize(indent int) int {
	size := 0
	for rest := p.src[p.at:]; rest != ""; {
		line, after, _ := strings.Cut(rest, "\n")
		if strings.TrimLeft(line, " ") != "" && len(line)-len(strings.TrimLeft(line, " ")) < indent {
			break
		}
		size += len(line) + 1
		rest = after
	}
	return size
}

func (p *plainParser) finish(n *Node, text *strings.Builder, start, feeds int, chomp byte) *Node {
	if text.Len() == 0 || start == p.at {
		return p.fail()
	}
	switch chomp {
	case '-':
		feeds = 0
	case '+':
	default:
		feeds = min(feeds, 1)
	}
	for ; feeds > 0; feeds-- {
		text.WriteByte('\n')
	}
	n.Text = text.String()
	return n
}
