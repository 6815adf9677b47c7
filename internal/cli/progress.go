package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// A progress shows what long work is doing: one line that is rewritten on a
// terminal, one line per step elsewhere.
type progress struct {
	w     io.Writer // nil when quiet
	tty   *os.File
	bold  bool
	after time.Duration // how long work is silent before it is shown on a terminal

	mu      sync.Mutex
	started time.Time // guarded by mu
	last    string    // guarded by mu; the last step that was shown
	shown   bool      // guarded by mu; a line stands on the terminal
}

// quickWork is how long work may take before a terminal shows it: a line that
// flickers by tells nobody anything.
const quickWork = 150 * time.Millisecond

func (e *Env) progress(quiet bool) *progress {
	p := &progress{started: time.Now(), after: quickWork}
	if quiet {
		return p
	}
	p.w = e.Stderr
	if p.tty = terminal(e.Stderr); e.getenv("TERM") == "dumb" {
		p.tty = nil
	}
	p.bold = p.tty != nil && e.getenv("NO_COLOR") == ""
	return p
}

func (p *progress) event(ev sandbox.Event) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
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

// stepText is ev in one line. The first line of a build says itself that it is
// one.
func stepText(ev sandbox.Event) string {
	detail := printable(ev.Detail)
	if strings.HasPrefix(detail, ev.Step+"ing ") {
		return detail
	}
	return strings.TrimSpace(ev.Step + " " + detail)
}

// clear takes the line away, so that other text can be printed.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) done() { p.clear() }

// printable makes foreign text safe for a terminal: a Kit's reference or a
// build's output must not move the cursor, nor turn around what is read.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return -1
		}
		return r
	}, s)
}
