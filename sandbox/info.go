package sandbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A State is what a sandbox is doing.
type State string

const (
	Creating State = "creating" // another process is making it
	Starting State = "starting" // booting, hooks running
	Ready    State = "ready"    // runs, no command in flight
	Busy     State = "busy"     // runs, with at least one command in flight
	Stopped  State = "stopped"  // kept on disk; nothing runs
	Orphaned State = "orphaned" // runs without its keeper, so with no way out; the next command mends it
	Broken   State = "broken"   // its creation was interrupted; only removal is left
	Unknown  State = "unknown"  // its keeper did not answer in time
)

// An Info is what is known of a sandbox.
type Info struct {
	Name      string    `json:"name"`
	ID        string    `json:"id"`
	State     State     `json:"state"`
	Phase     string    `json:"phase,omitzero"` // "install" or "runtime" while it runs
	Kits      []Kit     `json:"kits"`
	Root      string    `json:"root"`               // where relative paths of commands start
	Workspace string    `json:"workspace,omitzero"` // host directory, when there is one
	Created   time.Time `json:"created"`
	Commands  int       `json:"commands"`           // in flight
	PID       int       `json:"pid,omitzero"`       // host pid of the guest
	KeeperPID int       `json:"keeperPid,omitzero"` // host pid of the keeper
	Reason    string    `json:"reason,omitzero"`    // why it does not run, when it is stopped

	// IdleMs is after how many milliseconds without a session it is stopped; 0:
	// never. IdleSince is when the last session, or the boot, ended, and StopsAt
	// when it is stopped unless one comes; both are zero while it is used or does
	// not run, and StopsAt also when it is never stopped.
	IdleMs    int64     `json:"idleMs"`
	IdleSince time.Time `json:"idleSince,omitzero"`
	StopsAt   time.Time `json:"stopsAt,omitzero"`

	Problems []string  `json:"problems,omitempty"` // e.g. a startup hook that failed, a limit that does not hold
	Skipped  []Skipped `json:"skipped,omitempty"`  // optional requests that were not granted

	HostPorts []HostPort `json:"hostPorts,omitempty"` // services of this machine that it may reach

	GPUs []GPU `json:"gpus,omitempty"` // of this machine, which it may use

	// Unenforced names what was asked for as a limit and does not hold here,
	// with the reason: limits of the machine while it runs, sizes of volumes
	// always.
	Unenforced []string `json:"unenforced,omitempty"`
}

// A Kit is one member of a composition.
type Kit struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	Kind   string `json:"kind"`
}

// A Plan is what a creation grants and does, in the terms a user decides by.
type Plan struct {
	Name    string         `json:"name"`
	Kits    []Kit          `json:"kits"`
	Network []NetworkGrant `json:"network"`
	DenyAll bool           `json:"denyAll,omitempty"` // nothing of Network was allowed without the operator's word
	Routes  []Route        `json:"routes,omitempty"`
	Proxies []string       `json:"proxies,omitempty"` // through which the outside is reached, without logins

	// Credentials are what the boundary presents in the sandbox's name.
	Credentials []CredentialGrant `json:"credentials,omitempty"`

	Storage     []Storage   `json:"storage"`
	HostMounts  []HostMount `json:"hostMounts,omitempty"`
	Privileged  bool        `json:"privileged,omitzero"`  // root inside has every capability of Linux within the sandbox
	LongRunning bool        `json:"longRunning,omitzero"` // a Kit asks never to be stopped for want of a session
	IdleMs      int64       `json:"idleMs"`               // it is stopped after this long without a session; 0: never
	Ports       []PortGrant `json:"ports,omitempty"`
	HostPorts   []HostPort  `json:"hostPorts,omitempty"`
	Registry    []string    `json:"registry,omitempty"` // Kits that ask for the registry of Kits
	Logins      []Login     `json:"logins,omitempty"`
	Limits      []Bound     `json:"limits,omitempty"`
	GPUs        []GPU       `json:"gpus,omitempty"`
	Workspace   *Workspace  `json:"workspace,omitempty"`
	Mounts      []Mount     `json:"mounts,omitempty"` // of the user's
	Hooks       []Hook      `json:"hooks"`
	Files       []string    `json:"files"` // paths written at every start
	Launch      []string    `json:"launch"`
	User        string      `json:"user"`
	Dir         string      `json:"dir"`
	Skipped     []Skipped   `json:"skipped"`

	// BuildNetwork is what RUN steps could reach while the Kits were built;
	// empty: nothing.
	BuildNetwork string `json:"buildNetwork,omitzero"`

	// Warnings are what most likely is a mistake, one line each: a route of
	// a name that nothing allows, for example.
	Warnings []string `json:"warnings,omitempty"`

	// Detail is the engine's own plan, entire. Its form follows the
	// version that it states.
	Detail json.RawMessage `json:"detail"`
}

// A NetworkGrant is one allow or deny entry. What no entry allows is refused,
// and a denial wins over every allow.
type NetworkGrant struct {
	Phase   string `json:"phase"` // "install" or "runtime"
	Pattern string `json:"pattern"`
	Allow   bool   `json:"allow"`

	// Methods and Paths bound the entry to HTTP requests; both empty: it is
	// about the connection. Methods without Paths are for every path.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`

	// Service names the grant that the entry shows, when it is no rule but
	// one port at a name of the boundary, such as "host-port udp4/53".
	Service string `json:"service,omitzero"`

	Source string `json:"source"` // who asked: "kit <ref>", "operator" and which of his rules, or "default"
	Scope  string `json:"scope"`  // one of the Scope constants
}

// String is the pattern of g, and the requests that it is bound to.
func (g NetworkGrant) String() string {
	s := g.Pattern
	if len(g.Methods) > 0 {
		s += " " + strings.Join(g.Methods, ",")
	}
	if len(g.Paths) > 0 {
		s += " " + strings.Join(g.Paths, ",")
	}
	if g.Service != "" {
		s += " (" + g.Service + ")"
	}
	return s
}

// A Storage is one mounted volume.
type Storage struct {
	Path      string   `json:"path"`
	Kits      []string `json:"kits"`
	Tmpfs     bool     `json:"tmpfs"`
	Transient bool     `json:"transient"` // ends with the sandbox
	SizeBytes int64    `json:"sizeBytes,omitzero"`
	Note      string   `json:"note,omitzero"` // e.g. that the size is not enforced
}

// A Bound is one limit that the sandbox lives under.
type Bound struct {
	Limit  string `json:"limit"`          // cpu, memory or pids
	Amount int64  `json:"amount"`         // thousandths of a core, bytes (swap included), tasks
	Source string `json:"source"`         // "kit <ref>, <ref>" or "operator"
	Asked  int64  `json:"asked,omitzero"` // what the Kits ask for, which the operator may have changed
}

// A GPU is one of the host's that the sandbox may use.
type GPU struct {
	Name    string   `json:"name"`            // its CDI name on the host, or that of its node
	Asked   string   `json:"asked"`           // the selector that chose it
	Kits    []string `json:"kits"`            // who asks for it
	Devices []string `json:"devices"`         // paths of its nodes inside
	Notes   []string `json:"notes,omitempty"` // what of it is left out, and why
}

// A PortGrant is a port that will be published on the host's loopback.
type PortGrant struct {
	Container uint16   `json:"container"`
	Transport string   `json:"transport"`
	Name      string   `json:"name,omitzero"`
	Kits      []string `json:"kits"`
}

// A HostPort is a service on this machine's loopback that the sandbox may reach,
// at host.kitbox.internal and host.docker.internal on the same port.
type HostPort struct {
	Port      uint16   `json:"port"`
	Transport string   `json:"transport"` // tcp or udp
	Family    string   `json:"family"`    // of the loopback here: ipv4 or ipv6
	Name      string   `json:"name,omitzero"`
	Kits      []string `json:"kits"`
}

// String is the address of the service here, with its transport.
func (p HostPort) String() string {
	host := "127.0.0.1"
	if p.Family == "ipv6" {
		host = "[::1]"
	}
	return fmt.Sprintf("%s:%d/%s", host, p.Port, p.Transport)
}

// A Login is the use of this machine's login for an image registry.
type Login struct {
	Registry string   `json:"registry"`
	Kits     []string `json:"kits"`
}

// A Port is one publication of a sandbox.
type Port struct {
	Container uint16   `json:"container"`
	Transport string   `json:"transport"` // tcp or udp
	Host      uint16   `json:"host"`      // 0: chosen at the next start
	Addresses []string `json:"addresses"` // where the host can connect to now; none while it is stopped
	Name      string   `json:"name,omitzero"`
	Source    string   `json:"source"` // "kit <ref>, <ref>" or "operator"
}

// A HostMount is a directory of the host that all sandboxes of one Kit share.
type HostMount struct {
	Handle    string   `json:"handle"`
	Identity  string   `json:"identity"`            // of the Kit, for all its versions
	Path      string   `json:"path"`                // in the sandbox
	Dir       string   `json:"dir"`                 // on the host
	Sandboxes []string `json:"sandboxes,omitempty"` // that use it, in a listing
}

// A Workspace is a host directory in the sandbox.
type Workspace struct {
	Host string `json:"host"` // for a clone, where it is kept
	Path string `json:"path"`
	Mode string `json:"mode"` // host or cloned

	ReadOnly  bool     `json:"readOnly,omitzero"`
	Masks     []string `json:"masks,omitempty"`     // patterns of files that appear empty
	Protected []string `json:"protected,omitempty"` // patterns of files that cannot be written
	From      string   `json:"from,omitzero"`       // what a clone is of
}

// A Hook is a command that runs during creation or at a boot.
type Hook struct {
	Kit         string   `json:"kit"`
	Phase       string   `json:"phase"`
	Index       int      `json:"index"`
	Args        []string `json:"args"`
	User        string   `json:"user"`
	Description string   `json:"description,omitzero"`
}

// A Skipped is an optional request that was not granted.
type Skipped struct {
	Kit    string `json:"kit"`
	Path   string `json:"path"`
	Type   string `json:"type,omitzero"`
	Reason string `json:"reason"`
}

// A HookRun is one execution of a hook.
type HookRun struct {
	Time       time.Time `json:"time"`
	Kit        string    `json:"kit"`
	Phase      string    `json:"phase"`
	Index      int       `json:"index"`
	ExitCode   int       `json:"exitCode"`
	Error      string    `json:"error,omitzero"` // why it could not be run, or how it was ended
	Output     string    `json:"output"`         // stdout and stderr, the last 64 KiB
	Truncated  bool      `json:"truncated,omitzero"`
	Background bool      `json:"background,omitzero"`
	Millis     int64     `json:"durationMs"`
}

// A PolicyEvent is one decision about traffic, or several equal ones.
type PolicyEvent struct {
	Time     time.Time `json:"time"`
	Phase    string    `json:"phase"`
	Kind     string    `json:"kind"`    // dns, connect, request, packet, cut or overflow
	Verdict  string    `json:"verdict"` // allow, deny, or failed: allowed, and not reachable
	Allowed  bool      `json:"allowed"`
	Host     string    `json:"host"`
	Port     uint16    `json:"port,omitzero"`
	Protocol string    `json:"protocol,omitzero"`
	Method   string    `json:"method,omitzero"`  // of an HTTP request
	Path     string    `json:"path,omitzero"`    // of an HTTP request, without its query
	Dialled  string    `json:"dialled,omitzero"` // the address that was connected to
	Reason   string    `json:"reason"`
	Rule     string    `json:"rule,omitzero"`   // the pattern that decided, as declared
	Source   string    `json:"source,omitzero"` // who asked for it
	Count    int       `json:"count"`           // how many decisions this stands for

	// Credential names the services whose proof the boundary put into the
	// request, separated by commas; never a value.
	Credential string `json:"credential,omitzero"`
}
