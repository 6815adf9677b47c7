// Package progress shows what long work is doing, on stderr.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Line shows what long work is doing: one line that is rewritten on a
// terminal, one line per step elsewhere.
type Line struct {
	w     io.Writer // nil when quiet
	tty   *os.File
	after time.Duration // how long work is silent before it is shown on a terminal

	mu      sync.Mutex
	started time.Time // guarded by mu
	last    string    // guarded by mu; the last step that was shown
	shown   bool      // guarded by mu; a line stands on the terminal
}

// quickWork is how long work may take before a terminal shows it: a line that
// flickers by tells nobody anything.
const quickWork = 150 * time.Millisecond

// New returns a line on the stderr of e, or with quiet one that shows nothing.
func New(e *world.Env, quiet bool) *Line {
	p := &Line{started: time.Now(), after: quickWork}
	if quiet {
		return p
	}
	p.w = e.Stderr
	if p.tty = terminal.Of(e.Stderr); e.Variable("TERM") == "dumb" {
		p.tty = nil
	}
	return p
}

// Event shows what happens now. It can be called concurrently.
func (p *Line) Event(ev sandbox.Event) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if isWarning(ev) {
		// It is for the author of what is built, who sees no other line of the build.
		p.clear()
		fmt.Fprintf(p.w, "kitbox: %s\n", output.Printable(ev.Detail))
		return
	}
	if p.tty != nil {
		if time.Since(p.started) < p.after {
			return
		}
		line := stepText(ev)
		width, _, err := term.GetSize(int(p.tty.Fd()))
		if err != nil || width < 20 {
			width = 80
		}
		clock := fmt.Sprintf(" %.0fs", time.Since(p.started).Seconds())
		if n := width - len(clock) - 1; len([]rune(line)) > n {
			line = string([]rune(line)[:n-1]) + "…"
		}
		fmt.Fprintf(p.w, "\r\x1b[K%s%s", line, clock)
		p.shown = true
		return
	}
	// Elsewhere a step is one line; the thousand lines of a build belong to
	// its step.
	key := ev.Step + "\x00" + ev.Of
	if ev.Step != "build" {
		key += "\x00" + ev.Detail
	}
	if key != p.last {
		p.last = key
		fmt.Fprintf(p.w, "kitbox: %s\n", stepText(ev))
	}
}

// isWarning reports whether ev is what a builder found in a Kit that can be built all
// the same. What the Kit's own steps print has their number before it.
func isWarning(ev sandbox.Event) bool {
	return ev.Step == "build" && strings.HasPrefix(ev.Detail, "warning: ")
}

// stepText is ev in one line. The first line of a build says itself that it is
// one.
func stepText(ev sandbox.Event) string {
	detail := output.Printable(ev.Detail)
	if strings.HasPrefix(detail, ev.Step+"ing ") {
		return detail
	}
	return strings.TrimSpace(ev.Step + " " + detail)
}

// Clear takes the line away, so that other text can be printed.
func (p *Line) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// clear is Clear for those that hold p.mu.
func (p *Line) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// Done ends the line: nothing of it stays on a terminal.
func (p *Line) Done() { p.Clear() }
