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

	counted, runes int // of a line that is not ASCII: up to where, and how many
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
		// A line is counted once, however much stands in it.
		if p.counted < p.bol || p.counted > at {
			p.counted, p.runes = p.bol, 0
		}
		p.runes += utf8.RuneCountInString(p.src[p.counted:at])
		p.counted, column = at, p.runes
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
