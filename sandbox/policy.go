package sandbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Scopes of a [NetworkGrant]: whose it is and where it holds.
const (
	ScopeKit     = "kit"     // declared by a Kit of the sandbox
	ScopeGlobal  = "global"  // the operator's, for every sandbox
	ScopeSandbox = "sandbox" // the operator's, for one sandbox
	ScopeDefault = "default" // what holds where no rule matches
)

// An Overseer keeps the rules that the operator adds to those of Kits. A
// [Runtime] may have the ability; use [PolicyOf].
//
// In all methods sandbox is the name of one, or empty for the rules that hold
// for every sandbox. An unknown name is [kiterr.ErrNotFound].
type Overseer interface {
	// Rules returns every rule in force with its source and scope, and
	// last the default for each phase.
	Rules(ctx context.Context, sandbox string) ([]NetworkGrant, error)

	// ChangeRules adds and removes rules of the operator. When it returns
	// without an error, running sandboxes are judged by the new rules and
	// connections that these do not allow have been cut. The change is
	// recorded before it takes effect: after an error about a sandbox that
	// could not be told, the others and every later start have it.
	// Removing what is not there is [kiterr.ErrNotFound], and rules that
	// cannot be understood are a [*RuleError]; both change nothing.
	ChangeRules(ctx context.Context, sandbox string, c RuleChange) error

	// Check says what the boundary would decide. The sandbox need not run.
	Check(ctx context.Context, sandbox string, q PolicyQuery) (PolicyVerdict, error)
}

// A RuleChange is one edit of the operator's rules, done as a whole.
type RuleChange struct {
	Add    []NetworkGrant // Source and Scope are ignored
	Remove []RuleMatch
}

// A RuleError says why rules of a [RuleChange] cannot be understood. It is
// [kiterr.ErrRefused].
type RuleError struct {
	Faults []string // a clause for each, without repeats; never empty
}

func (e *RuleError) Error() string { return strings.Join(e.Faults, "\n") }

func (e *RuleError) Unwrap() error { return kiterr.ErrRefused }

// A RuleMatch selects rules of the operator. Pattern is required.
type RuleMatch struct {
	Pattern string
	Phase   string // empty: both
}

// A PolicyQuery is a destination. Host is required.
type PolicyQuery struct {
	Phase string // empty: runtime
	Host  string // a name or an address
	Port  uint16 // 0: 443

	Transport string // tcp, also when empty, or udp

	// Method and Path make it an HTTP request; both empty: a connection.
	// With one of them, the other is GET or /. Path has no query.
	Method, Path string
}

// A PolicyVerdict is a decision and the rule that made it.
type PolicyVerdict struct {
	Allowed bool   `json:"allowed"`
	Phase   string `json:"phase"`
	Host    string `json:"host"`
	Port    uint16 `json:"port"`
	Rule    string `json:"rule,omitzero"`   // as declared; empty when none matched
	Source  string `json:"source,omitzero"` // of Rule
	Reason  string `json:"reason"`

	Method string `json:"method,omitzero"`
	Path   string `json:"path,omitzero"`

	// Inspected says that each request of the connection is judged, and
	// that it can carry nothing but HTTP.
	Inspected bool `json:"inspected"`

	// Credentials names the services whose proof requests may be given there.
	Credentials []string `json:"credentials,omitempty"`
}

// PolicyOf returns the overseer of r. A runtime without one answers
// [kiterr.ErrUnsupported].
func PolicyOf(r Runtime) (Overseer, error) {
	return able[Overseer](r, "operator rules")
}

// A ConsentError lists what Kits ask for and the operator, who wants nothing to
// be reachable without his word, has not allowed. It is [kiterr.ErrWidening].
type ConsentError struct {
	Sandbox string
	Grants  []NetworkGrant
}

func (e *ConsentError) Error() string {
	s := fmt.Sprintf("sandbox %s: with --deny-all, what Kits may reach needs your word: give --approve for all of it, or 'kitbox policy allow' for some", e.Sandbox)
	for _, g := range e.Grants {
		s += fmt.Sprintf("\n%s %s, asked for by %s", g.Phase, g, g.Source)
	}
	return s
}

func (e *ConsentError) Unwrap() error { return kiterr.ErrWidening }
