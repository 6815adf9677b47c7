package output

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Message is what a user reads of err: one line for one thing. Errors that
// list several violations keep one line for each, indented under the first. They name
// files and repeat words of guests and registries, which must do nothing to a terminal.
func Message(err error) string {
	if errors.Is(err, context.Canceled) {
		return "kitbox: interrupted"
	}
	text := err.Error()
	// The name of a system call says nothing to whoever named the file.
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) && slices.Contains([]string{"open", "stat", "lstat"}, pe.Op) {
		text = strings.Replace(text, pe.Error(), pe.Path+": "+pe.Err.Error(), 1)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		lines[i] = Printable(WithoutFamily(strings.TrimSpace(l)))
		if i > 0 {
			lines[i] = "  " + lines[i]
		}
	}
	return "kitbox: " + strings.Join(lines, "\n")
}

// families are the errors whose text may end another's, for programs that test
// for them; a person has read the sentence by then.
var families = []error{kiterr.ErrRefused, kiterr.ErrWidening, kiterr.ErrUnsupported, kiterr.ErrNotFound, kiterr.ErrExists,
	kiterr.ErrNotRunning, kiterr.ErrCannotExec, kiterr.ErrLost, kiterr.ErrUnavailable}

// WithoutFamily drops the names of families from the end of a line that says
// something without them. "sandbox t: not found" does not: what stands before is
// only the name of a thing.
func WithoutFamily(line string) string {
	first := ""
	for again := true; again; {
		again = false
		for _, f := range families {
			if rest, ok := strings.CutSuffix(line, ": "+f.Error()); ok {
				line, first, again = rest, ": "+f.Error(), true
			}
		}
	}
	if clause := line[strings.LastIndex(line, ": ")+1:]; len(strings.Fields(clause)) < 3 {
		return line + first
	}
	return line
}
