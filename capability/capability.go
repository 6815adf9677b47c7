// Package capability is the vocabulary of requests: what one entry of a
// descriptor's capabilities list is, what a grammar knows about its own types,
// and how entries that meet are compared.
//
// It knows no capability type. The grammars are in the packages below it, one
// per type, and package wellknown lists them. What a host does about a request
// is in internal/handler; what an outsider can observe of it is in tck/runtime.
// Everything here is pure and safe for concurrent use.
package capability

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Namespace is the namespace of the well-known types, without the slash.
const Namespace = "com.docker.sandbox"

// A Request is one capability entry (§7). Its JSON form is the form of the
// published descriptor.
type Request struct {
	Type        string         `json:"type"`
	Name        string         `json:"name,omitzero"`        // display label; never identity (§7)
	Optional    bool           `json:"optional,omitzero"`    // false: the Kit is refused without it
	Description string         `json:"description,omitzero"` // display only
	Config      jsontext.Value `json:"config,omitzero"`      // nil: absent, which differs from a stated null
	Source      *Source        `json:"source,omitzero"`      // where it came from; diagnostics only
}

// A Source is the place an entry was first written, kept through merging so
// that records and refusals can name it (§7.1.1/provenance).
type Source struct {
	Kit  string `json:"kit,omitzero"`
	Path string `json:"path,omitzero"` // dotted, e.g. capabilities[2].group.capabilities[0]
}

// A Form is the stage of life in which a descriptor is judged (§6, §9.1).
type Form int

const (
	Authored  Form = iota // as written: args and groups may be open
	Published             // build-phase references gone; create-phase ones and groups may remain
	Effective             // after create-time expansion and selection: no references, no groups
)

func (f Form) String() string {
	switch f {
	case Authored:
		return "authored"
	case Published:
		return "published"
	case Effective:
		return "effective"
	}
	return "unknown form"
}

// A Problem is one finding about an entry. Path is relative to the entry and
// dotted ("config.runtime.allow[0]"); empty means the entry itself.
type Problem struct {
	Path      string
	Message   string // lower case, no period, says what is wrong and what would be right
	Decode    bool   // the bytes do not have the shape; deeper checks were skipped
	Warning   bool   // valid, but it will not do what its author thinks
	Statement string // statement id such as "SPEC-v3 §7.1.1/group-grammar", or empty
}

// A Claim is one thing an entry needs for itself, such as a mount path or a
// port. Package spec compares the claims of one declaration block without
// knowing what they mean: two entries that claim one Key in one Space collide.
// Across Kits the merge rules of the types decide, which see one package's types
// at a time; so after merging, package resolve compares the claims of different
// types in the spaces that several types share.
type Claim struct {
	Space string // e.g. "path", shared by the types whose claims can meet
	Key   string // normalized, e.g. the cleaned path; may be empty where the space has one place
	At    string // path of the claiming field relative to the entry, for the finding
	What  string // the noun a message puts before Key, e.g. "storage path"

	// Statement is the id of what two claims of one block break; empty: none of
	// its own.
	Statement string
}

// Arity says how often a type may stand in one declaration block (§7.1).
type Arity int

const (
	Instance  Arity = iota // several, each with claims of its own
	Singleton              // at most one
)

// A Contribution is a request and the Kit that makes it.
type Contribution struct {
	Kit     string // how messages name the Kit; of the first, when several were merged
	Request Request

	// Workload says that Kit is the workload of the composition. Some rules
	// let its declaration govern.
	Workload bool

	// From holds what was merged into this one, in composition order, so that
	// hooks, rules and records can name every Kit. Nil when the request is as
	// its Kit wrote it.
	From []Contribution

	// Apart says that, in a published set, the request stands in a group of
	// its own: it can be judged against the others only at create.
	Apart bool
}

// A MergeMode says what contributions are merged for. The rules differ where a
// set is published with args still open.
type MergeMode int

const (
	MergeRuntime MergeMode = iota // composition of selected Kits for one sandbox
	MergePublish                  // a set becoming one descriptor (§9.5)
)

// A Conflict says that contributions of several Kits cannot stand together.
type Conflict struct {
	Kits    []string // who, in composition order, without repeats
	Key     string   // what they meet on, e.g. a path
	Message string   // one clause naming the Kits and both values
}

// A Line is one element of the permission surface (§7.4): a value in a named
// list. The lists are the List constants.
type Line struct {
	List  string
	Value string
}

// The lists of the permission surface, by the names they have in its JSON form.
const (
	ListNetworkInstallAllow     = "networkInstallAllow"
	ListNetworkInstallDeny      = "networkInstallDeny"
	ListNetworkRuntimeAllow     = "networkRuntimeAllow"
	ListNetworkRuntimeDeny      = "networkRuntimeDeny"
	ListNetworkInstallHTTPAllow = "networkInstallHTTPAllow" // METHOD host/path
	ListNetworkInstallHTTPDeny  = "networkInstallHTTPDeny"
	ListNetworkRuntimeHTTPAllow = "networkRuntimeHTTPAllow"
	ListNetworkRuntimeHTTPDeny  = "networkRuntimeHTTPDeny"
	ListCredentialsInstall      = "credentialsInstall"
	ListCredentialsRuntime      = "credentialsRuntime"
	ListSSHAgentInstall         = "sshAgentInstall" // "unrestricted", "sign NAMESPACE", "authenticate [USER@]HOST"
	ListSSHAgentRuntime         = "sshAgentRuntime"
	ListStoragePaths            = "storagePaths"
	ListHostMountPaths          = "hostMountPaths"
	ListSkillsPaths             = "skillsPaths"
	ListSkillsWritePaths        = "skillsWritePaths"
	ListPorts                   = "ports"      // port/transport
	ListHostPorts               = "hostPorts"  // tcp4/5432
	ListDockerAuth              = "dockerAuth" // registry host
	ListUSBDevices              = "usbDevices" // vendor:product or class:NAME
	ListPrivileged              = "privileged" // a single line means true
	ListServices                = "services"   // type of a config-less grant
)

// A Definition is the grammar of the types of one package. Its functions are
// pure and may be called concurrently; each tolerates any Request of its Types,
// however malformed, without panicking.
type Definition struct {
	// Types are the wire names, oldest version first.
	Types []string

	// Arity holds for all of Types together: a version 1 and a version 2
	// singleton in one block exclude each other.
	Arity Arity

	// Service marks a config-less grant listed by its type on the permission
	// surface; Inspect adds that line.
	Service bool

	// Inspect decodes r's config once and appends to in what there is to say
	// about r: problems in field order, claims, and surface lines. In the
	// authored and published forms a value that still holds a reference is
	// judged leniently (§6), and a claim whose key still holds one is left
	// out. A config that does not decode yields a problem and nothing else; one
	// that decodes has its lines even if its values are wrong, so that a grant
	// does not vanish from the surface by being malformed.
	Inspect func(r Request, f Form, in *Inspection)

	// Merge combines all contributions of Types, in composition order. The
	// result keeps the order in which keys first appeared, and cs is left as
	// it was. Where it returns conflicts, the result is not to be used.
	Merge func(mode MergeMode, cs []Contribution) ([]Contribution, []Conflict)

	// KeepText lists config fields (dotted, "[]" for any index) in which a
	// whole-value reference stays text instead of adopting a type (§6).
	KeepText []string

	// Schema returns the embedded JSON Schema of the config of one of Types.
	Schema func(typ string) []byte
}

// Check returns the problems of r.
func (d Definition) Check(r Request, f Form) []Problem {
	var in Inspection
	d.Inspect(r, f, &in)
	return in.Problems
}

// Claims returns what r claims; nil when its config does not decode.
func (d Definition) Claims(r Request) []Claim {
	var in Inspection
	d.Inspect(r, Authored, &in)
	return in.Claims
}

// Surface returns r's lines; nil when its config does not decode or the type
// adds nothing to the surface.
func (d Definition) Surface(r Request) []Line {
	var in Inspection
	d.Inspect(r, Authored, &in)
	return in.Lines
}

// ValidType reports whether s has the shape of a type name (§7):
// namespace/name@version, where namespace and name are lower case letters and
// digits with inner hyphens, and inner dots in the namespace, and version is a
// positive number without leading zeros.
func ValidType(s string) bool {
	namespace, rest, ok := strings.Cut(s, "/")
	if !ok {
		return false
	}
	name, version, ok := strings.Cut(rest, "@")
	if !ok || version == "" || version[0] == '0' {
		return false
	}
	for i := range len(version) {
		if version[i] < '0' || version[i] > '9' {
			return false
		}
	}
	return word(namespace, '.') && word(name, '-')
}

// word reports whether s is lower case letters and digits, with inner hyphens
// or inner bytes equal to also.
func word(s string, also byte) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '-' || c == also) && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}

// Waits reports whether s is not judged yet in form f, because it still holds a
// reference. In the effective form nothing waits.
func (f Form) Waits(s string) bool { return f != Effective && HasReference(s) }

// HasReference reports whether s holds a Kit placeholder of any kind, spelled
// correctly or not. Such a value is judged only after expansion.
func HasReference(s string) bool { return strings.Contains(s, opening) }

// opening is how every placeholder begins.
const opening = "${{"
