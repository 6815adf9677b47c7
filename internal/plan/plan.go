// Package plan is what is about to be made, as data. Handlers write a plan, the
// engine stores and replays it, drivers and the boundary read their part, and
// `kitbox plan` prints it. Nothing here acts, and nothing here has heard of
// capability types.
//
// Deny is the zero value: an empty plan reaches nothing, mounts nothing and
// runs nothing.
package plan

import (
	"encoding/json"
	"strconv"
)

// Version is the version of the JSON form. A reader refuses any other.
const Version = 1

// A Plan is one sandbox, entire. It is stored as plan.json in the sandbox's
// state directory; a restart replays it and never computes it again.
type Plan struct {
	Version int    `json:"version"`
	Name    string `json:"name"` // chosen by the user, unique per home
	ID      string `json:"id"`   // opaque, stable across recreate

	Kits    []Kit     `json:"kits"` // declaration order: providers before requirers
	Machine Machine   `json:"machine"`
	Egress  Egress    `json:"egress"`
	Hooks   []Hook    `json:"hooks"` // in the order they run, install and startup mixed
	Files   []File    `json:"files"` // written at every start, before startup hooks
	Launch  Launch    `json:"launch"`
	Skipped []Skipped `json:"skipped"` // optional requests that were not granted

	// Credentials are presented by the boundary. What else holds in a phase
	// is in [Plan.Environ].
	Credentials []Credential `json:"credentials,omitempty"`

	// Ports are published on the loopback of the host.
	Ports []Port `json:"ports,omitempty"`

	// HostPorts are services on the host's loopback that the sandbox may
	// reach.
	HostPorts []HostPort `json:"hostPorts,omitempty"`

	// Registry is the way to the Kits of the host's store; nil: there is
	// none.
	Registry *Registry `json:"registry,omitempty"`

	// DockerAuth are registries whose logins the boundary presents.
	DockerAuth []DockerAuth `json:"dockerAuth,omitempty"`

	// HostMounts are directories behind some of Machine.Mounts that all
	// sandboxes of a Kit share.
	HostMounts []HostMount `json:"hostMounts,omitempty"`

	// Privileged says that Machine.Capabilities were widened with the user's
	// consent.
	Privileged bool `json:"privileged,omitempty"`

	// Uninstalled are Kits that came with a recreation and have install hooks,
	// which run at create and never afterwards. Installed are all that were
	// there at create and came to none; nil before the first recreation.
	Uninstalled []string `json:"uninstalled,omitempty"`
	Installed   []string `json:"installed,omitempty"`

	// LongRunning keeps the sandbox from being stopped because nobody uses
	// it; IdleMillis is ignored then.
	LongRunning bool `json:"longRunning,omitempty"`

	// IdleMillis is how long it runs without a session, in milliseconds,
	// before it is stopped; 0: for ever.
	IdleMillis int64 `json:"idleMillis,omitempty"`

	// Bounds say who asked for Machine.Limits. An amount there that differs
	// from what was asked is the operator's.
	Bounds []Bound `json:"bounds,omitempty"`

	// GPUs are those behind some of Machine.Devices and Machine.Mounts.
	GPUs []GPU `json:"gpus,omitempty"`

	// Volumes are the storage requests behind some of Machine.Mounts.
	Volumes []Volume `json:"volumes"`

	// Workspace is the host directory mounted at Launch.Dir; empty when the
	// workspace is a directory of the sandbox itself.
	Workspace string `json:"workspace,omitempty"`

	// WorkspaceMode is one of the modes below. Plans of older versions lack
	// it: host when there is a Workspace, and internal otherwise.
	WorkspaceMode string `json:"workspaceMode,omitempty"`

	// Clone says where the workspace was cloned from.
	Clone *Clone `json:"clone,omitempty"`

	// Binds are the host's files and directories behind some of
	// Machine.Mounts that the user named, besides the workspace.
	Binds []Bind `json:"binds,omitempty"`

	// Surface is the permission surface that was granted, in the canonical
	// JSON of package spec/surface.
	Surface json.RawMessage `json:"surface"`
}

// The modes of a workspace.
const (
	WorkspaceHost     = "host"     // a directory of the user's
	WorkspaceCloned   = "cloned"   // a clone of one, kept with the sandbox
	WorkspaceInternal = "internal" // a directory of the sandbox's writable layer
	WorkspaceNone     = "none"     // none, and nothing says that there is one
)

// A Clone is what a workspace was cloned from.
type Clone struct {
	Source string   `json:"source"` // working tree on the host
	Head   string   `json:"head"`   // object id
	Branch string   `json:"branch,omitempty"`
	Known  []string `json:"known"` // ids that its branches and tags had
}

// A Bind is a file or directory of the host that the user gave to the sandbox.
type Bind struct {
	Source   string `json:"source"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// A Kit is one member of the composition.
type Kit struct {
	Ref    string `json:"ref"`    // as the user wrote it
	Digest string `json:"digest"` // of the manifest that was used
	Kind   string `json:"kind"`   // workload or mixin
}

// A Skipped is an optional request that was left out, and why.
type Skipped struct {
	Kit    string `json:"kit"`
	Path   string `json:"path"` // in the Kit's descriptor, e.g. capabilities[2]
	Type   string `json:"type"` // empty for a group
	Reason string `json:"reason"`
}

// The limits that a Kit can ask for.
const (
	BoundCPU    = "cpu"    // thousandths of a core
	BoundMemory = "memory" // bytes
)

// A Port is a port of the machine's loopback that the host is to see on its own.
type Port struct {
	Container uint16   `json:"container"`
	Transport string   `json:"transport"`      // tcp or udp
	Name      string   `json:"name,omitempty"` // a label
	Kits      []string `json:"kits"`           // who asks for it
}

// A HostPort is one service on the loopback of the host that is reachable from
// the machine, at the names that stand for the host there and on the same port.
type HostPort struct {
	Port      uint16   `json:"port"`
	Transport string   `json:"transport"`      // tcp or udp
	Family    string   `json:"family"`         // of the host's loopback: ipv4 or ipv6
	Name      string   `json:"name,omitempty"` // a label
	Kits      []string `json:"kits"`           // who asks for it
}

// Key is what identifies p, such as tcp4/5432.
func (p HostPort) Key() string {
	family := "4"
	if p.Family == "ipv6" {
		family = "6"
	}
	return p.Transport + family + "/" + strconv.Itoa(int(p.Port))
}

// A Registry is an endpoint inside that serves Kits and takes them.
type Registry struct {
	Kits []string `json:"kits"` // who asks for it
}

// A DockerAuth is the use of the host's login for an image registry. It holds
// neither the login nor a token.
type DockerAuth struct {
	Registry    string   `json:"registry"`    // docker.io for all names of Docker Hub
	Placeholder string   `json:"placeholder"` // stands for the password inside, and is worth nothing elsewhere
	Config      string   `json:"config"`      // directory of the Docker configuration on the host
	Kits        []string `json:"kits"`        // who asks for it
}

// DockerUser stands for the user of a login inside.
const DockerUser = "kitbox"

// A HostMount is a directory that belongs to a Kit and a path.
type HostMount struct {
	Handle   string `json:"handle"` // opaque; follows from Identity and Path
	Path     string `json:"path"`   // in the machine
	Kit      string `json:"kit"`
	Identity string `json:"identity"` // of the Kit, whatever its version
	Source   string `json:"source"`   // host directory
	Mode     uint32 `json:"mode"`     // of a fresh one
}

// A Bound is one limit as it was asked for.
type Bound struct {
	Limit string   `json:"limit"`
	Kits  []string `json:"kits"`
	Asked int64    `json:"asked"`
}

// A GPU is one of the host's that the machine may use.
type GPU struct {
	Name    string   `json:"name"`            // on the host
	Asked   string   `json:"asked"`           // the selector that chose it
	Kits    []string `json:"kits"`            // who asks for it
	Devices []string `json:"devices"`         // paths of its nodes in the machine
	Notes   []string `json:"notes,omitempty"` // what of it is left out
}

// A Phase is a period of a sandbox's life with grants of its own.
type Phase string

const (
	Install Phase = "install" // while install hooks run, once, at create
	Runtime Phase = "runtime" // everything afterwards
)

// Egress is what the sandbox may reach, per phase. A phase without rules
// reaches nothing.
type Egress struct {
	Rules  []EgressRule `json:"rules"`
	Routes []Route      `json:"routes,omitempty"`

	// Upstream are the proxies through which the outside is reached; nil:
	// none.
	Upstream *Upstream `json:"upstream,omitempty"`

	// DenyAll records that the operator asked for nothing to be reachable
	// unless he says so: every allow rule of a Kit among Rules was consented
	// to when the sandbox was made.
	DenyAll bool `json:"denyAll,omitempty"`
}

// An EgressRule is one entry of an allow or deny list and its origin.
type EgressRule struct {
	Phase   Phase  `json:"phase"`
	Pattern string `json:"pattern"` // as declared: host, host:port, *.host, *, **, address, CIDR
	Allow   bool   `json:"allow"`   // false denies, and a denial wins over any allow
	Source  string `json:"source"`  // "kit <ref>", or "operator" and which of his rules

	// Methods and Paths bound the rule to HTTP requests; with both empty it
	// is about the connection. Methods are as HTTP spells them, or ANY
	// alone; paths are globs, and none means every path.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
}

// Bounded reports whether r is about particular requests rather than about the
// connection.
func (r EgressRule) Bounded() bool { return len(r.Methods) > 0 || len(r.Paths) > 0 }

// An Upstream says which proxy of the operator's is for what. No URL holds a login.
type Upstream struct {
	HTTP    string `json:"http,omitempty"`  // for port 80
	HTTPS   string `json:"https,omitempty"` // for all others
	All     string `json:"all,omitempty"`   // in the place of either
	NoProxy string `json:"noProxy,omitempty"`
	Login   bool   `json:"login,omitempty"` // some proxy had one, which is not recorded
}

// A Route makes an allowed name dial another address. It grants nothing: the
// name must still be allowed, and TLS is still verified for the name.
type Route struct {
	Name string `json:"name"` // host name, lower case
	Addr string `json:"addr"` // IP:port that is dialled for every port of Name, or IP alone to keep the port
}

// A Hook is a command that the engine runs in the sandbox.
type Hook struct {
	Kit         string   `json:"kit"`
	Index       int      `json:"index"` // within the Kit's list for that phase, for messages
	Phase       Phase    `json:"phase"` // Install: once at create; Runtime: at every boot
	Argv        []string `json:"argv"`
	User        string   `json:"user"` // uid or name; empty: root for install, the image user for startup
	Env         []string `json:"env"`  // names let through besides the platform baseline
	Background  bool     `json:"background,omitempty"`
	Description string   `json:"description,omitempty"`
}

// A File is written by the engine at start.
type File struct {
	Kit       string `json:"kit"`
	Path      string `json:"path"`
	Content   string `json:"content"`
	Mode      uint32 `json:"mode"` // permission bits; 0 means 0644
	Overwrite bool   `json:"overwrite"`

	// Span is when it is there. What is there for the install phase alone
	// is deleted after its hooks.
	Span Span `json:"span,omitempty"`
}

// A Span is one phase or both. Its zero value is the runtime phase.
type Span string

// The other spans.
const (
	WhileInstalling Span = "install"
	BothPhases      Span = "both"
)

// In reports whether f is there in phase.
func (f File) In(phase Phase) bool {
	return f.Span == BothPhases || (phase == Install) == (f.Span == WhileInstalling)
}

// A Launch is how the workload is started.
type Launch struct {
	Argv        []string `json:"argv"`                  // entrypoint and cmd of the image
	Entrypoint  []string `json:"entrypoint"`            // entrypoint alone; the interactive tail is appended to it
	Interactive []string `json:"interactive,omitempty"` // valid only when InteractiveStated
	// InteractiveStated tells a stated empty tail from none.
	InteractiveStated bool     `json:"interactiveStated,omitempty"`
	Env               []string `json:"env"` // NAME=value, the final container environment, sorted
	Dir               string   `json:"dir"`
	User              Identity `json:"user"`
	// Owned names the variables of Env that belong to the host: an override
	// at exec does not reach them.
	Owned []string `json:"owned,omitempty"`

	// Trust names the variables of Env that were added to lead programs to
	// the certificates they trust. A hook sees those that it declares.
	Trust []string `json:"trust,omitempty"`

	// Bash makes the engine start the workload under bash, so that the file
	// named by BASH_ENV is sourced.
	Bash bool `json:"bash,omitempty"`
}

// An Identity is a user of the image, resolved.
type Identity struct {
	Name string   `json:"name"` // empty when the image has no login for UID
	UID  uint32   `json:"uid"`
	GID  uint32   `json:"gid"`
	Home string   `json:"home"`
	Gids []uint32 `json:"gids,omitempty"` // supplementary groups
}

// A Volume is one storage request as it was granted. Its terms are kept with
// the storage, since a later sandbox of the same name must ask for the same.
type Volume struct {
	Path      string   `json:"path"`                // cleaned, in the machine
	Kits      []string `json:"kits"`                // who asks for it
	Source    string   `json:"source,omitempty"`    // host directory, or file if Bounded, of the data; empty for tmpfs
	Bounded   bool     `json:"bounded,omitempty"`   // no more fits in than SizeBytes, which is stated; not of tmpfs, which always is
	Tmpfs     bool     `json:"tmpfs,omitempty"`     // memory, gone at stop
	SizeBytes *int64   `json:"sizeBytes,omitempty"` // nil: not stated
	Mode      *uint32  `json:"mode,omitempty"`      // of fresh storage; nil: not stated
	Transient bool     `json:"transient,omitempty"` // ends with the sandbox, whose made-up name nobody could ask for again
	Note      string   `json:"note,omitempty"`      // what the user should know, e.g. that the size is advisory
}
