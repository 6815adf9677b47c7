package summary

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Unsaved is u, one thing a line.
func Unsaved(u *sandbox.Unsaved, prefix string) string {
	var b strings.Builder
	for _, c := range u.Commits {
		fmt.Fprintf(&b, "%scommit %.12s %s\n", prefix, c.ID, output.Printable(c.Subject))
	}
	if u.More {
		fmt.Fprintf(&b, "%sand more commits\n", prefix)
	}
	for _, f := range u.Files {
		fmt.Fprintf(&b, "%sfile %s\n", prefix, output.Printable(f))
	}
	return b.String()
}
