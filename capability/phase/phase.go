// Package phase is the grammar of the phases of a sandbox's life for which
// access is granted apart (§12), as the credential and ssh-agent types write
// them. What a phase means while a sandbox runs is in internal/plan.
package phase

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/textlist"
)

// A Phase is one period with grants of its own.
type Phase string

const (
	Install Phase = "install" // while install hooks run, once, at create
	Runtime Phase = "runtime" // everything afterwards
)

// A Set is one phase or several, in the order written. One phase is written as
// text or as a list of one, which mean the same, and is encoded as text.
type Set []Phase

// Has reports whether s lists p.
func (s Set) Has(p Phase) bool {
	for _, q := range s {
		if q == p {
			return true
		}
	}
	return false
}

// Open reports whether a phase is still a reference.
func (s Set) Open() bool {
	for _, p := range s {
		if capability.HasReference(string(p)) {
			return true
		}
	}
	return false
}

// Fault says what is wrong with s, or returns "" if it lists distinct phases.
// In the effective form a reference is wrong too.
func (s Set) Fault(f capability.Form) string {
	if len(s) == 0 {
		return "a phase is required: install, runtime, or a list of both"
	}
	for i, p := range s {
		if p != Install && p != Runtime && !f.Waits(string(p)) {
			return fmt.Sprintf("%q is not a phase: write install, runtime, or a list of both", string(p))
		}
		if s[:i].Has(p) {
			return fmt.Sprintf("phase %s is listed twice", p)
		}
	}
	return ""
}

var errShape = errors.New("must be a phase or a list of phases")

// UnmarshalJSONFrom reads text or a list of text.
func (s *Set) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	phases, _, err := textlist.Decode(dec, intern, errShape)
	if err == nil {
		*s = phases
	}
	return err
}

// MarshalJSONTo writes one phase as text and anything else as a list.
func (s Set) MarshalJSONTo(enc *jsontext.Encoder) error {
	if len(s) == 1 {
		return enc.WriteToken(jsontext.String(string(s[0])))
	}
	return textlist.Encode(enc, s)
}

// intern returns s as a Phase without keeping a copy of the two spellings that
// every descriptor repeats.
func intern(s string) Phase {
	switch s {
	case string(Install):
		return Install
	case string(Runtime):
		return Runtime
	}
	return Phase(s)
}
