// Package tck is what the conformance suites share: the registry of the
// statements they judge by, and the form of a verdict.
//
// The suites themselves are in the packages below: artifact judges a published
// Kit, runtime a running one through an adapter, and vectors the libraries
// through recorded inputs.
package tck

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
)

//go:embed statements.tsv
var statements string

// A Level says how binding a statement is.
type Level string

// The levels of the registry. Rules and check ids are binding like MUST.
const (
	Must      Level = "MUST"
	MustNot   Level = "MUST NOT"
	Should    Level = "SHOULD"
	ShouldNot Level = "SHOULD NOT"
)

// Binding reports whether breaking the statement is a failure rather than a
// warning.
func (l Level) Binding() bool { return l != Should && l != ShouldNot }

// A Statement is one sentence of the specification under the id that findings
// cite.
type Statement struct {
	ID         string // e.g. "SPEC-v3 §5.3/closed-set" or "volume@1/no-silent-merge"
	Page       string // where it stands
	Level      Level
	Text       string
	Observable string // through which verbs an outsider can judge it
}

// Statements returns the registry in its own order. The slice is shared; do not
// change it.
var Statements = sync.OnceValue(func() []Statement {
	lines := strings.Split(strings.TrimSuffix(statements, "\n"), "\n")
	out := make([]Statement, 0, len(lines)-1)
	for _, line := range lines[1:] { // below the header
		f := strings.Split(line, "\t")
		for len(f) < 5 {
			f = append(f, "")
		}
		out = append(out, Statement{f[0], f[1], Level(f[2]), f[3], f[4]})
	}
	return out
})

var byID = sync.OnceValue(func() map[string]Statement {
	m := make(map[string]Statement)
	for _, s := range Statements() {
		m[s.ID] = s
	}
	return m
})

// Lookup returns the statement with an id.
func Lookup(id string) (Statement, bool) {
	s, ok := byID()[id]
	return s, ok
}

// An Outcome is what a check found.
type Outcome string

// The outcomes. Waived means that nobody can judge the statement from outside,
// and why.
const (
	Pass    Outcome = "pass"
	Fail    Outcome = "fail"
	Warn    Outcome = "warn" // a SHOULD that does not hold
	Skipped Outcome = "skip" // what it needs is not claimed or not there
	Waived  Outcome = "waived"
	Broken  Outcome = "error" // the check itself could not run
)

// A Verdict is the outcome of judging one statement.
type Verdict struct {
	Statement string  `json:"statement"`
	Check     string  `json:"check,omitzero"` // the promise in words
	Outcome   Outcome `json:"outcome"`
	Message   string  `json:"message,omitzero"` // why; never empty unless it passed
}

// String returns one line for people.
func (v Verdict) String() string {
	s := fmt.Sprintf("%-6s %s", v.Outcome, v.Statement)
	if v.Message != "" {
		s += ": " + v.Message
	}
	return s
}
