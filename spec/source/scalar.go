package source

import "strings"

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
