package sandbox

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A HookError says which hook failed, and how. A failed install hook ends the
// creation; a failed startup hook leaves a running sandbox.
type HookError struct {
	Sandbox  string
	Kit      string
	Phase    string // "install" or "runtime"
	Index    int    // within the Kit's list for that phase
	ExitCode int
	Why      string // set when the hook could not be run at all
	Output   string // its last lines

	// Refused is what the boundary declined while the hooks of a failed
	// creation ran: most often why this one failed.
	Refused []PolicyEvent `json:",omitempty"`
}

func (e *HookError) Error() string {
	list := "install"
	if e.Phase == "runtime" {
		list = "startup"
	}
	s := fmt.Sprintf("kit %s: %s hook %d ", e.Kit, list, e.Index)
	if e.Why != "" {
		s += "could not be run: " + e.Why
	} else {
		s += fmt.Sprintf("ended with status %d", e.ExitCode)
	}
	if line := lastLine(e.Output); line != "" {
		s += ": " + line
	}
	return s
}

// lastLine is what of a hook's output fits into one line of an error: most
// programs say last what stopped them.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	const most = 200
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// A Change is one thing that a candidate may do and the sandbox may not.
type Change struct {
	Category string `json:"category"` // e.g. network.runtime.allow
	Detail   string `json:"detail"`
}

// A WideningError is [kiterr.ErrWidening]: nothing was changed, since nobody
// approved what is new.
type WideningError struct {
	Name    string
	Changes []Change
}

func (e *WideningError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sandbox %s would be allowed more than it was granted; approve it with --approve", e.Name)
	for _, c := range e.Changes {
		fmt.Fprintf(&b, "\n+ %s %s", c.Category, c.Detail)
	}
	return b.String()
}

// Is makes it [kiterr.ErrWidening].
func (e *WideningError) Is(target error) bool { return target == kiterr.ErrWidening }
