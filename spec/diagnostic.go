package spec

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Severity says whether a finding makes the document unusable.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// The stages at which a finding is made: the document does not have the shape
// of a descriptor, or it has and breaks a rule.
const (
	StageDecode   = "decode"
	StageValidate = "validate"
)

// A Diagnostic is one finding about a document (§11).
type Diagnostic struct {
	Severity  Severity `json:"severity"`
	Stage     string   `json:"stage"`
	Path      string   `json:"path"` // dotted; "" is the document itself
	Message   string   `json:"message"`
	File      string   `json:"file,omitzero"`
	Line      int      `json:"line,omitzero"`      // from 1; 0 if there is no source
	Column    int      `json:"column,omitzero"`    // from 1, in characters
	Excerpt   string   `json:"-"`                  // the source line and, below it, a caret
	Statement string   `json:"statement,omitzero"` // id in the statement registry, if any
}

// String returns one line: place, path and message.
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.File != "" {
		b.WriteString(d.File + ":")
	}
	if d.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", d.Line, d.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if d.Severity == Warning {
		b.WriteString("warning: ")
	}
	if d.Path != "" {
		b.WriteString(d.Path + ": ")
	}
	b.WriteString(d.Message)
	return b.String()
}

// Diagnostics are findings in the order of the checks, which is the same in
// every run.
type Diagnostics []Diagnostic

// HasErrors reports whether any finding is an error.
func (ds Diagnostics) HasErrors() bool {
	for i := range ds {
		if ds[i].Severity == Error {
			return true
		}
	}
	return false
}

// Err returns nil if no finding is an error. Otherwise it returns an
// [InvalidError] that holds them all.
func (ds Diagnostics) Err() error {
	if !ds.HasErrors() {
		return nil
	}
	return &InvalidError{ds}
}

// An InvalidError says why a descriptor is refused. It matches [ErrInvalid]
// and [kiterr.ErrRefused].
type InvalidError struct {
	Findings Diagnostics // warnings included
}

// Error names the first error and counts the others.
func (e *InvalidError) Error() string {
	var first string
	n := 0
	for _, d := range e.Findings {
		if d.Severity == Error {
			if n == 0 {
				first = d.String()
			}
			n++
		}
	}
	if n > 1 {
		return fmt.Sprintf("invalid descriptor: %s (and %d more)", first, n-1)
	}
	return "invalid descriptor: " + first
}

// Is matches the family.
func (e *InvalidError) Is(target error) bool {
	return target == kiterr.ErrRefused || target == error(ErrInvalid)
}
