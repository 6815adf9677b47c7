package source

import (
	"strings"
	"unicode/utf8"
)

// maxExcerpt bounds the part of a source line that an excerpt shows. Published
// descriptors are one long line.
const maxExcerpt = 100

// Excerpt returns line with a caret under column, cut around it if it is long.
func Excerpt(line string, column int) string {
	at := 0 // byte offset of the column
	for c := 1; c < column && at < len(line); c++ {
		_, n := utf8.DecodeRuneInString(line[at:])
		at += n
	}
	from, to := 0, len(line)
	before, after := "", ""
	if len(line) > maxExcerpt {
		if at > maxExcerpt/2 {
			from, before = at-maxExcerpt/2, "…"
		}
		if from+maxExcerpt < len(line) {
			to, after = from+maxExcerpt, "…"
		}
		for from > 0 && !utf8.RuneStart(line[from]) {
			from--
		}
		for to < len(line) && !utf8.RuneStart(line[to]) {
			to++
		}
	}
	var b strings.Builder
	clean(&b, before+line[from:to]+after, false)
	b.WriteByte('\n')
	clean(&b, before+line[from:at], true)
	b.WriteByte('^')
	return b.String()
}

// clean writes s without control characters, so that a hostile file cannot
// drive a terminal; with blank set it writes blanks of the same width.
func clean(b *strings.Builder, s string, blank bool) {
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteByte('\t')
		case blank:
			b.WriteByte(' ')
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError:
			b.WriteRune('\ufffd')
		default:
			b.WriteRune(r)
		}
	}
}
