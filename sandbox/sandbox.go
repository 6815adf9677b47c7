// Package sandbox is the contract of kitbox for programs that make and use
// sandboxes: what can be asked, what an answer means, and what holds after a
// failure. It contains no implementation and reaches nothing.
//
// The local implementation is internal/engine; the command line is one client
// of this package among others. Results carry JSON tags, and their JSON form is
// what `kitbox ... --json` prints.
package sandbox

import (
	"context"
	"io"
	"time"
)

// A Runtime makes sandboxes out of Kits and finds those that exist. Its methods
// can be called concurrently, also by several processes that share one home.
type Runtime interface {
	// Plan says what Create would grant and do, and changes nothing.
	// Building a Kit that is given as a directory is not a change: its
	// image lands in the store, as a build would put it there.
	Plan(ctx context.Context, o CreateOptions) (*Plan, error)

	// Create makes a sandbox, runs its install and startup hooks and
	// returns it ready. On error nothing of it is left, with one exception:
	// when a startup hook fails the sandbox stays, so that it can be
	// inspected and mended, and the error is a [HookError] whose Phase is
	// "runtime" beside a non-nil Sandbox. A name that is taken is
	// [kiterr.ErrExists]; a Kit that asks for what this host does not grant
	// is [kiterr.ErrRefused].
	Create(ctx context.Context, o CreateOptions) (Sandbox, error)

	// Open finds a sandbox by name. An unknown name is
	// [kiterr.ErrNotFound]. It never waits for the sandbox.
	Open(ctx context.Context, name string) (Sandbox, error)

	// List returns every sandbox, sorted by name. One that does not answer
	// in time is listed with [Unknown]; no sandbox delays the others.
	List(ctx context.Context) ([]Info, error)
}

// A Sandbox is one sandbox of a Runtime. Its methods can be called
// concurrently. The abilities that not every runtime has are the interfaces
// [PolicyLogger], [HookLogger] and [Inspector].
type Sandbox interface {
	// Name is the name it was created under.
	Name() string

	// Status asks the sandbox how it is. It neither starts it nor keeps it
	// alive, and answers within a few seconds whatever state it is in.
	Status(ctx context.Context) (Info, error)

	// Start boots a stopped sandbox with everything it had, and runs its
	// startup hooks. Starting one that runs does nothing. A failed startup
	// hook is a [HookError]; the sandbox runs nevertheless. A Run of the same
	// Sandbox starts it again if it has stopped since for want of a session.
	Start(ctx context.Context) error

	// Stop ends every process of the sandbox and keeps its files. Stopping
	// one that is stopped does nothing.
	Stop(ctx context.Context, o StopOptions) error

	// Remove stops the sandbox and deletes everything it stored except its
	// block volumes, which a later sandbox of the same name reattaches.
	Remove(ctx context.Context) error

	// Run runs one command to its end. A non-zero status and a signal are
	// results; an error means that no trustworthy end was seen: the command
	// could not be started ([kiterr.ErrCannotExec]), the sandbox does not
	// run ([kiterr.ErrNotRunning]), the command was started and its end not
	// seen ([kiterr.ErrLost]), or ctx ended, in which case the command and
	// its children have been killed. A ctx that is done before
	// the call starts nothing.
	Run(ctx context.Context, c *Cmd) (*Result, error)
}

// CreateOptions say what to make. Only Kits is required.
type CreateOptions struct {
	// Name is unique per home. Empty means one that is made up from the
	// workload's name.
	Name string

	// Kits are references: a directory to build, or an image of the local
	// store by tag or digest. Exactly one is a workload. Their order
	// means nothing.
	Kits []string

	// Args are values for the Kits' declared args. Each goes to every Kit
	// that declares it; one that no Kit declares is an error.
	Args map[string]string

	// Env overrides variables of the container. A variable that the
	// runtime owns (SANDBOX_NAME and its kind) cannot be overridden.
	Env map[string]string

	// Routes make allowed names dial other addresses. They grant nothing.
	Routes []Route

	// DenyAll is a floor: no allow entry of a Kit takes effect unless a
	// rule of the operator covers it or Approve is set. Entries that lack
	// consent are a [ConsentError].
	DenyAll bool

	// Approve consents to every allow entry of the Kits.
	Approve bool

	// Driver names what builds the machine: "namespace", or "oci" for an
	// installed crun or runc. Empty means namespace.
	Driver string

	// Workspace is a directory of the host that becomes the workspace.
	// Empty: the workspace is a directory inside the sandbox.
	Workspace string

	// WorkspaceMode is one of the Workspace modes. Empty means host when
	// Workspace is set and internal otherwise.
	WorkspaceMode string

	// WorkspaceReadOnly keeps the sandbox from writing to Workspace.
	WorkspaceReadOnly bool

	// Masks are patterns of files that appear empty in the sandbox, below
	// Workspace and every directory of Mounts: a name with '*', '?' or
	// '[...]' at any depth, or with a slash a path below the directory, "**"
	// for any number of directories.
	Masks []string

	// UnprotectedGit lets the sandbox write the hooks and the configuration
	// of the Git repositories it is given, which programs of the host run.
	UnprotectedGit bool

	// Mounts are more files and directories of the host's.
	Mounts []Mount

	// BuildNetwork is what RUN steps can reach while a Kit given as a
	// directory is built: "none", also when empty; "public", addresses of
	// the internet; or "host", whatever this machine can reach, which is
	// the operator's consent. It changes nothing for a Kit that is built.
	BuildNetwork string

	// Pull says when a registry is asked about the name of a Kit: "missing",
	// also when empty, when the store does not have it; "always", which
	// transfers only what has changed; or "never".
	Pull string

	// Lock pins the Kits. Kits and Args are then empty, or say the same as it
	// does. A Kit that does not stand for what the lock says, or that asks
	// for something else, is [kiterr.ErrRefused].
	Lock *Lock

	// Limits are set whatever the Kits ask for; zero fields leave it to
	// them. One that cannot be held here is [kiterr.ErrRefused].
	Limits Limits

	// AllowPrivileged is the user's consent to Kits that ask for
	// privileged@1, which are refused without it.
	AllowPrivileged bool

	// AllowPassthrough is the user's consent to Kits that want the tokens of
	// an OAuth server inside the sandbox.
	AllowPassthrough bool

	// Idle is how long the sandbox runs without a session before it is
	// stopped, counted from the end of the last one, or from the end of the
	// boot. Zero means [DefaultIdle]; negative means for ever. A Kit that
	// asks for long-running@1 is never stopped for it.
	Idle time.Duration

	// Ephemeral ties the sandbox to the calling process: when that ends,
	// however it ends, the sandbox is removed.
	Ephemeral bool

	// Passing says of a sandbox that is not Ephemeral that the caller removes
	// it in the end: volumes of one without a name go with it all the same.
	Passing bool

	// Granted is told the plan once, after everything has been decided and
	// before anything is made. Nil discards.
	Granted func(*Plan)

	// Progress is told what is being done. Calls do not overlap. Nil
	// discards.
	Progress func(Event)
}

// The modes of a workspace.
const (
	WorkspaceHost     = "host"     // a directory of the host, as it is
	WorkspaceCloned   = "cloned"   // what is committed in it, in a repository of the sandbox's own
	WorkspaceInternal = "internal" // a directory inside the sandbox
	WorkspaceNone     = "none"     // none
)

// A Mount gives a file or directory of the host to a sandbox.
type Mount struct {
	Source   string `json:"source"` // on the host; must exist
	Path     string `json:"path"`   // absolute in the sandbox
	ReadOnly bool   `json:"readOnly,omitzero"`
}

// LeastMemoryBytes is what a machine and its guest need to come up at all: less is
// no bound that [Limits] or a Kit can ask for.
const LeastMemoryBytes = 16 << 20

// DefaultIdle is how long a sandbox runs without a session unless something else
// is asked for.
const DefaultIdle = 30 * time.Minute

// Limits bound a sandbox. Zero means no limit of the operator's.
type Limits struct {
	CPUs        float64 // cores
	MemoryBytes int64   // swap included
	Pids        int64   // processes and threads
	DiskBytes   int64   // of what is written outside volumes, mounts and the workspace
}

// A Route makes a name that the policy allows dial Addr instead of what it
// resolves to. TLS is still verified for the name.
type Route struct {
	Name string `json:"name"` // a host name, lower case
	Addr string `json:"addr"` // IP:port, or an IP alone to keep the port
}

// An Event is one step of long work.
type Event struct {
	Step   string // what is done, e.g. "build"; the same word for all events of a step; empty: Detail says it
	Of     string // what the step works on, e.g. a Kit's reference; may be empty
	Detail string // one line, e.g. a Kit's reference or a line of a build's output
}

// StopOptions bound a stop. The zero value gives processes ten seconds.
type StopOptions struct {
	// Grace is how long processes may take between TERM and KILL. Zero
	// means 10 seconds; negative means none.
	Grace time.Duration

	// IfIdle makes Stop do nothing while a command runs in the sandbox, and
	// if the sandbox does not stop for want of sessions at all.
	IfIdle bool
}

// A Cmd is one command to run in a sandbox. Set its fields before the call and
// leave them alone until it returns.
type Cmd struct {
	// Args is the program and its arguments. A program without a slash is
	// looked up in the PATH of the sandbox.
	Args []string

	// Workload runs the workload's own launch command and appends Args to
	// it, as the format prescribes; with a Terminal and no Args the
	// interactive form of that command is used.
	Workload bool

	// Dir is the working directory. Empty means the workspace.
	Dir string

	// User is a name or id, optionally ":" and a group. Empty means the
	// user of the image.
	User string

	// Env is laid over the container's environment, as NAME=value.
	Env []string

	// Stdin is copied to the command; its end is the command's end of
	// input. Nil gives an empty input. Stdout and Stderr receive bytes as
	// they are written; nil discards. With a Terminal all output goes to
	// Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Signals are numbers of Linux signals that the command and its children
	// get, as from a terminal. Nil means none.
	Signals <-chan int

	// Terminal gives the command a terminal of its own. Nil gives pipes.
	Terminal *Terminal
}

// A Terminal is the shape of a command's terminal.
type Terminal struct {
	Size   WindowSize        // before the first byte; zero means 80 by 24
	Resize <-chan WindowSize // later sizes; nil means none
	Type   string            // value of TERM; empty means "xterm"
}

// A WindowSize counts character cells.
type WindowSize struct{ Cols, Rows uint16 }

// A Result is the end of a command.
type Result struct {
	ExitCode int           `json:"exitCode"`        // 128+n when signal n ended it
	Signal   string        `json:"signal,omitzero"` // e.g. "SIGKILL"; empty when it exited
	Duration time.Duration `json:"-"`
}
