package source

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds the nesting of a document. The deepest thing the grammar
// knows, a credential file's structure inside a group, needs a tenth of it.
const maxDepth = 128

// errNotJSON means that the text is not JSON, though it may be YAML.
var errNotJSON = errors.New("not JSON")

// parseJSON builds the tree of one JSON value. It is the fast path for
// published descriptors, which are compact JSON; whatever it does not accept is
// left to the YAML parser, so it may be, and is, picky. Positions are offsets.
func parseJSON(src string) (*Node, error) {
	p := jsonParser{src: src}
	p.space()
	n, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.at != len(src) {
		return nil, errNotJSON
	}
	return n, nil
}

type jsonParser struct {
	src string
	at  int
	slab
}

func (p *jsonParser) space() {
	for p.at < len(p.src) {
		switch p.src[p.at] {
		case ' ', '\n', '\r', '\t':
			p.at++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return 0
}

func (p *jsonParser) here() Position { return Position{Offset: int32(p.at)} }

func (p *jsonParser) value(depth int) (*Node, error) {
	if depth > maxDepth {
		return nil, &SyntaxError{p.here(), fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	n := p.new()
	n.Pos = p.here()
	if p.total > maxNodes {
		return nil, &SyntaxError{p.here(), fmt.Sprintf("more than %d values", maxNodes)}
	}
	var err error
	switch c := p.peek(); {
	case c == '{':
		n.Kind = Object
		err = p.members(n, depth)
	case c == '[':
		n.Kind = Array
		err = p.elements(n, depth)
	case c == '"':
		n.Kind = Text
		n.Text, err = p.string()
	case c == '-' || c >= '0' && c <= '9':
		n.Kind, n.spelled = Number, true
		n.Text, err = p.number()
	case p.word("true"), p.word("false"):
		n.Kind, n.Text = Boolean, p.src[n.Pos.Offset:p.at]
	case p.word("null"):
		n.Kind = Null
	default:
		return nil, errNotJSON
	}
	n.end = int32(p.at)
	return n, err
}

func (p *jsonParser) word(w string) bool {
	if strings.HasPrefix(p.src[p.at:], w) {
		p.at += len(w)
		return true
	}
	return false
}

func (p *jsonParser) members(n *Node, depth int) error {
	p.at++
	if p.space(); p.peek() == '}' {
		p.at++
		return nil
	}
	for {
		p.space()
		pos := p.here()
		if p.peek() != '"' {
			return errNotJSON
		}
		key, err := p.string()
		if err != nil {
			return err
		}
		if p.space(); p.peek() != ':' {
			return errNotJSON
		}
		p.at++
		p.space()
		child, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		child.Key, child.KeyPos = key, pos
		n.add(child)
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case '}':
			p.at++
			return nil
		default:
			return errNotJSON
		}
	}
}

func (p *jsonParser) elements(n *Node, depth int) error {
	p.at++
	if p.space(); p.peek() == ']' {
		p.at++
		return nil
	}
	for {
		p.space()
		child, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		n.add(child)
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case ']':
			p.at++
			return nil
		default:
			return errNotJSON
		}
	}
}

// string reads a string. Text without escapes is a piece of the source.
func (p *jsonParser) string() (string, error) {
	start := p.at
	p.at++
	for escaped := false; p.at < len(p.src); p.at++ {
		switch c := p.src[p.at]; {
		case c == '\\':
			escaped = true
			p.at++
		case c == '"':
			p.at++
			if !escaped {
				return p.src[start+1 : p.at-1], nil
			}
			s, err := jsontext.AppendUnquote(nil, p.src[start:p.at])
			if err != nil {
				return "", errNotJSON
			}
			return string(s), nil
		case c < ' ':
			return "", errNotJSON
		}
	}
	return "", errNotJSON
}

func (p *jsonParser) number() (string, error) {
	start := p.at
	for p.at < len(p.src) && strings.IndexByte("+-.eE0123456789", p.src[p.at]) >= 0 {
		p.at++
	}
	s := p.src[start:p.at]
	if !jsonNumber(s) {
		return "", errNotJSON
	}
	return s, nil
}

// jsonNumber reports whether s is a number as JSON spells it.
func jsonNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	digits := func() bool {
		i := 0
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		s = s[i:]
		return i > 0
	}
	if strings.HasPrefix(s, "0") {
		s = s[1:]
	} else if !digits() {
		return false
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		if !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}
