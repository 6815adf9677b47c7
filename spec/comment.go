package spec

import (
	"bytes"
	"slices"
	"strings"
)

// A Block is a descriptor written in the head comments of a Dockerfile (§3.3).
type Block struct {
	Descriptor []byte // the YAML, byte for byte, one line feed per line
	Recipe     []byte // the file as the builder is to see it
	Line       int    // line of the file on which Descriptor begins, from 1
	Indent     int    // columns taken off the front of each line
}

// marker opens the block; indent is what each of its lines begins with.
const (
	marker = "# kit:"
	indent = "#   "
)

// ExtractComment takes the comment descriptor out of a Dockerfile. It looks
// only at the comments before the first instruction. Nothing is unescaped: the
// lines pass through as they are, without their prefix and line end. A bare `#`
// is an empty line; a comment indented less, or anything else, ends the block.
func ExtractComment(src []byte) (Block, bool) {
	line := 0
	for rest := src; len(rest) > 0; {
		var l []byte
		l, rest = cutLine(rest)
		line++
		if string(bytes.TrimRight(l, " \t\r")) == marker {
			return extractBlock(src, rest, line+1)
		}
		if t := bytes.TrimSpace(l); len(t) > 0 && t[0] != '#' {
			break
		}
	}
	return Block{}, false
}

func extractBlock(src, rest []byte, line int) (Block, bool) {
	b := Block{Line: line, Indent: len(indent)}
	for len(rest) > 0 {
		var l []byte
		l, rest = cutLine(rest)
		l = bytes.TrimSuffix(l, []byte("\r"))
		body, ok := bytes.CutPrefix(l, []byte(indent))
		if !ok {
			body = nil
		}
		if !ok && string(bytes.TrimRight(l, " \t")) != "#" {
			break
		}
		b.Descriptor = append(append(b.Descriptor, body...), '\n')
	}
	if len(b.Descriptor) == 0 {
		return Block{}, false
	}
	b.Recipe = RecipeOf(src)
	return b, true
}

// RecipeOf returns the Dockerfile for the builder. A second `# syntax=` line
// before the first instruction is the recipe's own frontend, and the recipe
// begins there. Otherwise the leading directive, which names the Kit frontend,
// is turned into a plain comment of the same length, so that the builder does
// not call that frontend again. It moves behind the directives that follow it,
// because a comment ends them. The number of lines stays.
func RecipeOf(src []byte) []byte {
	first, block := -1, false
	for at := 0; at < len(src); {
		l, rest := cutLine(src[at:])
		t := bytes.TrimSpace(l)
		if len(t) > 0 && t[0] != '#' {
			break
		}
		switch {
		case string(t) == marker:
			block = true
		case block && (string(t) == "#" || bytes.HasPrefix(l, []byte(indent))): // the descriptor may hold any text
		case isDirective(t, "syntax") && first >= 0:
			return bytes.Clone(src[at:])
		case isDirective(t, "syntax"):
			first = at
		default:
			block = false
		}
		at = len(src) - len(rest)
	}
	out := bytes.Clone(src)
	if first < 0 {
		return out
	}
	line, rest := cutLine(out[first:])
	line[bytes.IndexByte(line, '=')] = ' '
	others := rest
	for len(rest) > 0 {
		l, after := cutLine(rest)
		if !isDirective(bytes.TrimSpace(l), "escape", "check") {
			break
		}
		rest = after
	}
	others = others[:len(others)-len(rest)]
	if !bytes.HasSuffix(others, []byte("\n")) {
		return out // there are none, or nothing follows them
	}
	return slices.Concat(out[:first], others, line, []byte("\n"), rest)
}

// isDirective reports whether a line is one of these parser directives, in the
// spellings the builder accepts.
func isDirective(line []byte, names ...string) bool {
	name, _, ok := bytes.Cut(bytes.TrimPrefix(line, []byte("#")), []byte("="))
	return ok && slices.Contains(names, strings.ToLower(string(bytes.TrimSpace(name))))
}

// cutLine returns the first line without its line feed, and what follows.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\n"))
	return line, rest
}
