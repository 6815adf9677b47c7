package audit

import (
	"bytes"
	"io"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A batch is lines that are written with one Write. Its zero value has none.
type batch struct {
	text  []byte
	lines []line
}

// A line is one of a batch.
type line struct {
	end   int // where the next begins
	class class
	count int // of the decisions that it stands for

	sandbox string
	phase   plan.Phase
}

// maxBatch is how many bytes a batch has at most, but for its last line.
const maxBatch = 64 << 10

// line adds d to the batch, which is written as soon as it is large; l.mu is held.
func (l *Log) line(d Decision) {
	at := len(l.batch.text)
	text, err := appendLine(l.batch.text, &d)
	if err != nil {
		l.lose(d.Count, err)
		return
	}
	if l.path != "" && l.held+int64(at) > 0 && l.held+int64(len(text)) > max(l.size(), l.aside) {
		last := bytes.Clone(text[at:])
		l.commit()
		l.rotate()
		text = append(l.batch.text, last...)
	}
	l.batch.text = text
	l.batch.lines = append(l.batch.lines, line{len(text), classOf(d), d.Count, d.Sandbox, d.Phase})
	if len(text) >= maxBatch {
		l.commit()
	}
}

// lose counts decisions that cannot be written; l.mu is held.
func (l *Log) lose(n int, err error) {
	l.lost += n
	l.failing.Store(&err)
	if l.failure == nil {
		l.failure = err
	}
}

// commit writes the batch, whole or with what is missing of a line ended by the next;
// l.mu is held.
func (l *Log) commit() {
	b, lines := l.batch.text, l.batch.lines
	if len(lines) == 0 {
		return
	}
	skip := 0
	if l.torn {
		b, skip = append([]byte{'\n'}, b...), 1
	}
	n, err := l.W.Write(b)
	switch {
	case n == len(b):
		err = nil // whatever is wrong, it is written
	case err == nil:
		err = io.ErrShortWrite
	}
	l.held += int64(n)
	if n > 0 {
		l.torn = n < len(b) && b[n-1] != '\n'
	}
	start, lost := skip, 0
	for _, x := range lines {
		l.spent[x.class].bytes += int64(min(max(n-start, 0), x.end+skip-start))
		start = x.end + skip
		if start-1 > n { // the next ends a line that lacks nothing but its end
			lost += x.count
		}
	}
	l.batch = batch{l.batch.text[:0], lines[:0]}
	if err != nil {
		l.lose(lost, err)
		return
	}
	if was := l.failing.Load(); was != nil {
		last := lines[len(lines)-1]
		d := Decision{Schema: Schema, Time: time.Now().UTC(), Sandbox: last.sandbox, Phase: last.phase, Kind: Overflow, Verdict: Failed, Host: "*",
			Why: clean("decisions that could not be written: " + (*was).Error()), Count: l.lost}
		l.failing.Store(nil)
		l.lost = 0
		if d.Count > 0 { // else nothing but the end of a line was missing
			l.line(d)
			l.commit()
		}
	}
}

// clean bounds s and makes it valid UTF-8; JSON escapes the rest.
func clean(s string) string {
	if len(s) > maxField {
		s = s[:maxField] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
