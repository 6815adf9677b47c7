package format

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// render returns line i laid out.
func (p *page) render(i int) string {
	l := &p.lines[i]
	switch l.kind {
	case blank:
		return ""
	case comment, continued:
		return spaces(l.indent) + strings.TrimLeft(l.text, " \t")
	case literal:
		if len(l.text) <= l.cut {
			return ""
		}
		return spaces(l.indent) + l.text[l.cut:]
	case structure:
		return p.structured(l)
	}
	return l.text
}

func (p *page) structured(l *line) string {
	out := spaces(l.tokens[0].in.new)
	rest := strings.TrimLeft(l.text, " \t")
	for _, t := range l.tokens {
		if !t.dash {
			break
		}
		out += "-"
		if rest = strings.TrimLeft(rest[1:], " \t"); rest != "" {
			out += " "
		}
	}
	out += rest
	if (l.owner == nil || len(l.owner.lines) == 0) && !strings.Contains(l.text, "#") {
		// Blanks before the end of a line can count in a scalar that goes
		// on, and are part of a comment.
		out = strings.TrimRight(out, " \t")
	}
	return out
}

func spaces(n int) string { return strings.Repeat(" ", max(n, 0)) }

// A unit is what moves as one: keys with their values and comments.
type unit struct {
	name  string // of its first key
	lines []int
	gap   bool // an empty line stands before it
	tail  bool // it ends in a comment that an empty line ties to it
}

// print returns the page, with the keys of the root in canonical order if
// reorder is set.
func (p *page) print(reorder bool) string {
	header, units, footer := p.split()
	if reorder {
		slices.SortStableFunc(units, func(a, b unit) int { return rank(a.name) - rank(b.name) })
	}
	var b printer
	for i := range p.first {
		b.line(p.lines[i].text)
	}
	b.lines(p, header)
	headerGap := len(header) > 0 && p.lines[header[len(header)-1]].kind == blank
	for i, u := range units {
		if i == 0 && headerGap || i > 0 && (u.gap || units[i-1].tail) {
			b.blank()
		}
		b.lines(p, u.lines)
	}
	b.lines(p, footer)
	b.end()
	for i := p.end; i < len(p.lines); i++ {
		b.line(p.lines[i].text)
	}
	return b.String()
}

// A printer writes lines and keeps empty ones from piling up.
type printer struct {
	strings.Builder
	pending bool // an empty line is due before the next one
	any     bool
}

func (b *printer) blank() { b.pending = b.any }

func (b *printer) line(s string) {
	if b.pending {
		b.WriteByte('\n')
		b.pending = false
	}
	b.WriteString(s)
	b.WriteByte('\n')
	b.any = true
}

func (b *printer) lines(p *page, numbers []int) {
	for _, i := range numbers {
		if l := &p.lines[i]; l.kind == blank && !l.keep {
			b.blank()
		} else {
			b.line(p.render(i))
		}
	}
}

func (b *printer) end() { b.pending = false }

func rank(name string) int {
	if i := slices.Index(order, name); i >= 0 {
		return i
	}
	return len(order)
}

// split divides the document into what stays on top, what moves, and what stays
// at the end.
//
// A comment belongs to the key below it, unless it is attached to the key above
// and an empty line follows. A pair of markers, such as release tools edit
// between, keeps all that it encloses together.
func (p *page) split() (header []int, units []unit, footer []int) {
	for i, k := range p.keys {
		limit := p.end
		if i+1 < len(p.keys) {
			limit = p.keys[i+1].line
		}
		for n := k.line + 1; n < p.valueEnd(k.line, limit); n++ {
			p.lines[n].inner = true
		}
	}
	p.pair()
	headEnd := p.headerEnd()
	lead := p.span(headEnd, p.keys[0].line)
	header = p.span(p.first, headEnd)
	for i := 0; i < len(p.keys); i++ {
		u := unit{name: p.keys[i].name, lines: lead}
		limit := p.end
		if i+1 < len(p.keys) {
			limit = p.keys[i+1].line
		}
		body := p.bodyEnd(p.keys[i].line, limit)
		u.tail = body < limit && p.atRoot(body-1)
		u.lines = append(u.lines, p.span(p.keys[i].line, body)...)
		lead = p.span(body, limit)
		for {
			end := p.openMarker(u.lines)
			if end < 0 {
				break
			}
			// The unit goes on through the line of the closing marker.
			for limit <= end {
				i++
				limit = p.end
				if i+1 < len(p.keys) {
					limit = p.keys[i+1].line
				}
			}
			body = max(end+1, p.keys[i].line+1)
			u.tail = false
			u.lines = p.span(u.lines[0], body)
			lead = p.span(body, limit)
		}
		units = append(units, u)
	}
	for i := range units {
		for len(units[i].lines) > 0 && p.loose(units[i].lines[0]) {
			units[i].gap = true
			units[i].lines = units[i].lines[1:]
		}
	}
	return header, units, lead
}

func (p *page) span(from, to int) []int {
	var out []int
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// loose reports whether line i is empty and may go.
func (p *page) loose(i int) bool { return p.lines[i].kind == blank && !p.lines[i].keep }

// atRoot reports whether line i is a comment in the root's column, between the
// values of two keys.
func (p *page) atRoot(i int) bool {
	return p.lines[i].kind == comment && p.lines[i].indent == 0 && !p.lines[i].inner
}

// bodyEnd returns the line after the value of the key at from, with the
// comments that belong to it. The next key is at limit.
func (p *page) bodyEnd(from, limit int) int {
	end := p.valueEnd(from, limit)
	attached := end
	for attached < limit && p.atRoot(attached) {
		attached++
	}
	if attached > end && attached < limit && limit < p.end {
		return attached // an empty line follows
	}
	return end
}

// valueEnd returns the line after the value of the key at from.
func (p *page) valueEnd(from, limit int) int {
	for limit > from+1 && (p.loose(limit-1) || p.atRoot(limit-1)) {
		limit--
	}
	return limit
}

// pinned are the directives that tools look for at the head of a file.
var pinned = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^#\s*(syntax|escape|check)\s*=|^#\s*yaml-language-server:`)
})

// headerEnd returns the line after the comments that stay on top: all before
// the first key, but for those attached to it below an empty line.
func (p *page) headerEnd() int {
	first := p.keys[0].line
	end := first
	for i := p.first; i < first; i++ {
		if p.loose(i) {
			end = i + 1
		}
	}
	for i := end; i < first; i++ {
		if pinned().MatchString(p.lines[i].text) {
			end = i + 1
		}
	}
	if end < first && !p.gapBefore(end) {
		end = first
	}
	for i := p.first; i < end; i++ {
		if p.lines[i].partner >= first {
			return i // a pair of markers begins in the header and encloses a key
		}
	}
	return end
}

func (p *page) gapBefore(i int) bool { return i > p.first && p.loose(i-1) }

// openMarker returns the line of the closing marker for the first opening one
// among lines whose partner is not among them, or -1.
func (p *page) openMarker(lines []int) int {
	last := lines[len(lines)-1]
	for _, i := range lines {
		if end := p.lines[i].partner; end > last {
			return end
		}
	}
	return -1
}

var (
	opens  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)(^|[^a-z])(start|begin|region)($|[^a-z])`) })
	closes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)(^|[^a-z])(end|endregion)($|[^a-z])`) })
)

// maxMarkers bounds the pairs that are looked for. A file with more was not
// written for a release tool.
const maxMarkers = 100

// pair finds the markers that enclose lines. Two comments are a pair if they
// agree up to the word that opens and closes, as in "x-release-please-start-version"
// and "x-release-please-end", or in all but that word.
func (p *page) pair() {
	type marker struct {
		line          int
		before, after string
	}
	var closing []marker
	for i := p.first; i < p.end; i++ {
		if p.atRoot(i) {
			if b, a, ok := around(closes(), p.lines[i].text); ok {
				closing = append(closing, marker{i, b, a})
			}
		}
	}
	if len(closing) > maxMarkers {
		return
	}
	for i := p.first; i < p.end && len(closing) > 0; i++ {
		if !p.atRoot(i) {
			continue
		}
		before, after, ok := around(opens(), p.lines[i].text)
		for _, c := range closing {
			if ok && c.line > i && c.before == before && (c.after == after || c.before != "" || c.after == "") {
				p.lines[i].partner = c.line
				break
			}
		}
	}
}

func around(word *regexp.Regexp, text string) (before, after string, ok bool) {
	m := word.FindStringSubmatchIndex(text)
	if m == nil {
		return "", "", false
	}
	clean := func(s string) string { return strings.ToLower(strings.Trim(s, "# \t<>{}-=_:")) }
	return clean(text[:m[4]]), clean(text[m[5]:]), true
}
