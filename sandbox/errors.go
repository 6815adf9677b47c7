package sandbox

import (
	"fmt"
	"strings"
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
