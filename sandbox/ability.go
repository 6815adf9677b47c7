package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// able returns of as something that has an ability, or an error of the family
// [kiterr.ErrUnsupported] that says what it lacks.
func able[T any](of any, what string) (T, error) {
	a, ok := of.(T)
	if !ok {
		return a, fmt.Errorf("%s with %T: %w", what, of, kiterr.ErrUnsupported)
	}
	return a, nil
}

// A PolicyLogger keeps the decisions its boundary made. Use [PolicyLog].
type PolicyLogger interface {
	PolicyLog(ctx context.Context, o PolicyLogOptions) iter.Seq2[PolicyEvent, error]
}

// PolicyLogOptions select log entries. The zero value reads what there is and
// ends.
type PolicyLogOptions struct {
	Follow bool // wait for more until ctx is done
}

// PolicyLog yields the decisions of s's boundary, oldest first. A sandbox
// without a log yields [kiterr.ErrUnsupported].
func PolicyLog(ctx context.Context, s Sandbox, o PolicyLogOptions) iter.Seq2[PolicyEvent, error] {
	if l, ok := s.(PolicyLogger); ok {
		return l.PolicyLog(ctx, o)
	}
	return func(yield func(PolicyEvent, error) bool) {
		yield(PolicyEvent{}, fmt.Errorf("policy log with %T: %w", s, kiterr.ErrUnsupported))
	}
}

// A HookLogger keeps what hooks printed. Use [HookRuns].
type HookLogger interface {
	HookRuns(ctx context.Context) ([]HookRun, error)
}

// HookRuns returns every run of a hook of s, oldest first. A sandbox that keeps
// none answers [kiterr.ErrUnsupported].
func HookRuns(ctx context.Context, s Sandbox) ([]HookRun, error) {
	l, err := able[HookLogger](s, "hook log")
	if err != nil {
		return nil, err
	}
	return l.HookRuns(ctx)
}

// An Inspector can show all it stored about itself. Use [Inspect].
type Inspector interface {
	Inspect(ctx context.Context) (*Inspection, error)
}

// An Inspection is everything that is recorded of a sandbox.
type Inspection struct {
	Info      Info              `json:"info"`
	Plan      Plan              `json:"plan"`
	Journal   []json.RawMessage `json:"journal"`
	Lock      json.RawMessage   `json:"lock,omitempty"`
	Selection json.RawMessage   `json:"selection,omitempty"`
	StateDir  string            `json:"stateDir"`
}

// Inspect returns what is recorded of s. A sandbox that records nothing answers
// [kiterr.ErrUnsupported].
func Inspect(ctx context.Context, s Sandbox) (*Inspection, error) {
	i, err := able[Inspector](s, "inspecting")
	if err != nil {
		return nil, err
	}
	return i.Inspect(ctx)
}

// A Publisher makes ports of the sandbox reachable on the host's loopback. Use
// [Ports], [Publish] and [Unpublish].
type Publisher interface {
	Ports(ctx context.Context) ([]Port, error)
	Publish(ctx context.Context, o PublishOptions) (Port, error)
	Unpublish(ctx context.Context, container uint16, transport string) error
}

// PublishOptions name a port. Only Container is required.
type PublishOptions struct {
	Container uint16
	Transport string // tcp, also when empty, or udp
	Host      uint16 // 0: one that is free
}

// Ports returns what is published of s, also while it is stopped.
func Ports(ctx context.Context, s Sandbox) ([]Port, error) {
	p, err := able[Publisher](s, "ports")
	if err != nil {
		return nil, err
	}
	return p.Ports(ctx)
}

// Publish publishes a port of s, now if it runs and at every start. One that is
// published already is [kiterr.ErrExists].
func Publish(ctx context.Context, s Sandbox, o PublishOptions) (Port, error) {
	p, err := able[Publisher](s, "ports")
	if err != nil {
		return Port{}, err
	}
	return p.Publish(ctx, o)
}

// Unpublish takes a port of s back for good, also one that a Kit asks for, and
// ends the connections through it. One that is not published is
// [kiterr.ErrNotFound].
func Unpublish(ctx context.Context, s Sandbox, container uint16, transport string) error {
	p, err := able[Publisher](s, "ports")
	if err != nil {
		return err
	}
	return p.Unpublish(ctx, container, transport)
}

// A Recreator can be made anew. Use [Recreate].
type Recreator interface {
	Recreate(ctx context.Context, o RecreateOptions) error
}

// RecreateOptions say what changes. The zero value makes the same again, from
// what its references stand for now.
type RecreateOptions struct {
	Kits            []string          // instead of all it had; empty: the same
	Lock            *Lock             // exactly the Kits of this one; nil: of the one it has, unless Kits are given
	Args            map[string]string // over those it had; with Kits, instead of them
	Env             map[string]string // over those it had
	AllowWidening   bool              // approve what was not granted before
	AllowPrivileged bool              // as in [CreateOptions]
	Pull            string            // as in [CreateOptions]; empty: always

	// BuildNetwork is as in [CreateOptions]. Empty is what the sandbox was made
	// with, or none for Kits and a Lock that it was not made with: a consent
	// was to the Kits that it was given for.
	BuildNetwork string

	AllowPassthrough bool // as in [CreateOptions]

	Granted  func(*Plan) // told before anything changes; nil discards
	Progress func(Event) // nil discards
}

// Recreate gives s a fresh file system and the plan that its Kits come to now: those
// that its lock pins, if it was made of one, and else what their names stand for.
// Volumes, host mounts, ports and its id stay; install hooks do not run again.
// It is refused before anything changes when storage is asked for on other terms
// ([kiterr.ErrRefused]) or more authority than was granted ([WideningError]).
// s runs afterwards.
func Recreate(ctx context.Context, s Sandbox, o RecreateOptions) error {
	r, err := able[Recreator](s, "recreating")
	if err != nil {
		return err
	}
	return r.Recreate(ctx, o)
}

// A VolumeKeeper keeps block volumes by the name of their sandbox. Use [VolumesOf].
type VolumeKeeper interface {
	// Volumes lists those of one name, or all when it is empty, whether the
	// sandbox exists or not. It makes nothing.
	Volumes(ctx context.Context, name string) ([]Volume, error)

	// RemoveVolume deletes one, or all of the name when path is empty. One
	// that is mounted in its sandbox is not deleted, which is
	// [kiterr.ErrRefused]. Removing what is not there does nothing.
	RemoveVolume(ctx context.Context, name, path string) error
}

// VolumesOf returns what keeps the volumes of r. A runtime without it answers
// [kiterr.ErrUnsupported].
func VolumesOf(r Runtime) (VolumeKeeper, error) { return able[VolumeKeeper](r, "volumes") }

// A Volume is storage that outlives its sandbox.
type Volume struct {
	Sandbox   string   `json:"sandbox"` // the name it is kept under
	Path      string   `json:"path"`
	Kits      []string `json:"kits"` // who asked for it when it was made
	Dir       string   `json:"dir"`  // on the host; of a bounded one the file of its filesystem
	SizeBytes *int64   `json:"sizeBytes,omitempty"`
	Bounded   bool     `json:"bounded"`             // no more fits in than SizeBytes
	UsedBytes *int64   `json:"usedBytes,omitempty"` // what a bounded one takes of the disk
	Mode      *uint32  `json:"mode,omitempty"`
	Note      string   `json:"note,omitzero"`
	Mounted   bool     `json:"mounted"` // a sandbox of that name has it, running or stopped
}

// A Pruner deletes what nothing needs any more.
type Pruner interface {
	Prune(ctx context.Context, o PruneOptions) (Pruned, error)
}

// PruneOptions bound a prune. The zero value spares what was used in the last
// hour.
type PruneOptions struct{ Age time.Duration }

// Prune deletes what nothing in r needs any more. A runtime that cannot answers
// [kiterr.ErrUnsupported].
func Prune(ctx context.Context, r Runtime, o PruneOptions) (Pruned, error) {
	p, err := able[Pruner](r, "pruning")
	if err != nil {
		return Pruned{}, err
	}
	return p.Prune(ctx, o)
}

// Pruned counts what was deleted.
type Pruned struct {
	Sandboxes int   `json:"sandboxes"` // of commands that were killed
	Blobs     int   `json:"blobs"`
	Layers    int   `json:"layers"`
	Bytes     int64 `json:"bytes"`
}

// A HostMounter keeps directories that sandboxes of one Kit share.
type HostMounter interface {
	// HostMounts lists what there is, by handle: of the Kit that is called
	// kit, in any of its versions, or all when it is empty. It makes nothing
	// and fetches nothing.
	HostMounts(ctx context.Context, kit string) ([]HostMount, error)

	// ReadHostMount opens one file of a directory, by its path there. It
	// follows no link out of the directory.
	ReadHostMount(ctx context.Context, handle, file string) (io.ReadCloser, error)

	// RemoveHostMount deletes a directory that no sandbox uses; one that is
	// used is [kiterr.ErrRefused].
	RemoveHostMount(ctx context.Context, handle string) error
}

// HostMountsOf returns what keeps the host mounts of r. A runtime without it answers
// [kiterr.ErrUnsupported].
func HostMountsOf(r Runtime) (HostMounter, error) { return able[HostMounter](r, "host mounts") }

// An ImageStore holds the images Kits are made of.
type ImageStore interface {
	// Images lists the store, sorted by reference.
	Images(ctx context.Context) ([]Image, error)

	// CreateBase makes the platform base image under ref, unless it is
	// there and force is false, and returns it.
	CreateBase(ctx context.Context, o BaseOptions) (Image, error)
}

// BaseOptions say which base to make. The zero value works.
type BaseOptions struct {
	Ref      string // empty: the reference the examples build on
	Force    bool   // make it again although it is there
	Mirror   string // empty: the mirrors of this machine's distribution
	Suite    string // release, such as bookworm; empty: this machine's
	Rootfs   string // take this directory or tar instead of installing anything
	Progress func(Event)
}

// An Image is one entry of the store.
type Image struct {
	Ref       string `json:"ref"`
	Digest    string `json:"digest"`        // of what the reference stands for: an index, or a manifest
	Kind      string `json:"kind,omitzero"` // workload or mixin; empty for an image that is no Kit
	SizeBytes int64  `json:"sizeBytes"`
}

// A Builder turns Kit directories into images of the store.
type Builder interface {
	Build(ctx context.Context, o BuildOptions) (Image, error)
}

// BuildOptions say what to build.
type BuildOptions struct {
	Dir      string            // directory of the Kit, or its descriptor file
	Ref      string            // tag in the store; empty: none
	Args     map[string]string // values for build-phase args
	Network  string            // what RUN steps can reach, as [CreateOptions.BuildNetwork]
	NoCache  bool              // build although nothing changed, and run every step
	Progress func(Event)       // nil: not told

	// Builder is the address of a BuildKit, unix://… or tcp://…. Empty uses
	// the private builder. It is only asked if there is something to build.
	Builder string

	// Console is what the builder itself shows its progress on, instead of
	// Progress, in ConsoleMode: auto (as buildx does on a terminal, else plain
	// lines), tty, plain or json. A terminal has to be an [*os.File]. Nil: none.
	Console     io.Writer
	ConsoleMode string

	// Platforms are os/arch or os/arch/variant. Empty means this machine's,
	// or, of a set, all that its Kits have in common.
	Platforms []string

	// Pull says when registries are asked about the Kits of a set, as
	// [CreateOptions.Pull] does. Empty means always.
	Pull string
}

// A Doctor examines the machine.
type Doctor interface {
	Examine(ctx context.Context) []Finding
}

// A Finding is one requirement and whether this machine meets it.
type Finding struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"` // kitbox cannot run a Kit without it
	Detail   string `json:"detail"`   // what was found
	Remedy   string `json:"remedy,omitzero"`
}

// A Cloner has a workspace that was cloned from a directory of the host. Use
// [FindUnsaved] and [Bundle].
type Cloner interface {
	Unsaved(ctx context.Context) (*Unsaved, error)
	Bundle(ctx context.Context, w io.Writer) error
}

// An Unsaved is what exists only in a cloned workspace, and would be lost with it.
type Unsaved struct {
	Commits []Commit `json:"commits"`         // newest first, the first hundred
	More    bool     `json:"more,omitzero"`   // there are more
	Files   []string `json:"files,omitempty"` // changed or new, and not committed; the first hundred
}

// Empty reports whether nothing would be lost.
func (u *Unsaved) Empty() bool { return len(u.Commits) == 0 && len(u.Files) == 0 }

// A Commit is one that was made in a sandbox.
type Commit struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
}

// FindUnsaved returns what only the cloned workspace of s has: commits that the
// repository it was cloned from does not lead to, and changes that are not
// committed. A sandbox without such a workspace has nothing to lose.
func FindUnsaved(ctx context.Context, s Sandbox) (*Unsaved, error) {
	c, ok := s.(Cloner)
	if !ok {
		return &Unsaved{}, nil
	}
	return c.Unsaved(ctx)
}

// Bundle writes the branches and tags of s's cloned workspace as a Git bundle.
// s need not run. Without such a workspace it is [kiterr.ErrNotFound].
func Bundle(ctx context.Context, s Sandbox, w io.Writer) error {
	c, err := able[Cloner](s, "cloned workspace")
	if err != nil {
		return err
	}
	return c.Bundle(ctx, w)
}

// A Copier moves trees of files as tar streams. Use [Files].
type Copier interface {
	// StatFile describes what is at path, absolute or below the workspace.
	// Nothing there is [kiterr.ErrNotFound].
	StatFile(ctx context.Context, path string, follow bool) (FileInfo, error)

	// Pack writes what is at path to w, the top named name in it, or with "."
	// what is in a directory. The sandbox makes the stream, so it may hold
	// anything.
	Pack(ctx context.Context, path, name string, follow bool, w io.Writer) error

	// Unpack writes the tar r into the directory dir.
	Unpack(ctx context.Context, dir string, o UnpackOptions, r io.Reader) error
}

// UnpackOptions say whose the files become that are written into a sandbox. The
// zero value makes them the image user's, with that user's rights.
type UnpackOptions struct {
	User     string // as in [Cmd.User]
	Preserve bool   // by root, with the owners and modes of the stream
}

// A FileInfo describes a file in a sandbox.
type FileInfo struct {
	Size int64
	Dir  bool
	Link string // target of a symbolic link
}

// Files returns the copier of s. A sandbox without one answers
// [kiterr.ErrUnsupported].
func Files(s Sandbox) (Copier, error) {
	return able[Copier](s, "copying files")
}

// A Detacher runs commands that nobody waits for. Use [Detach].
type Detacher interface {
	// Detach starts c, whose streams and terminal are nil, and returns an id
	// once it runs. It ends by itself, with its sandbox, or by StopJob, and
	// counts as a session until then. Errors are those of [Sandbox.Run].
	Detach(ctx context.Context, c *Cmd) (id string, err error)

	// Jobs lists them, oldest first, the last hundred of those that have
	// ended included.
	Jobs(ctx context.Context) ([]Job, error)

	// JobOutput writes what is kept of a job's output, stdout and stderr
	// together as they came: the last megabyte at least. With follow it goes
	// on until the job ends. An unknown id is [kiterr.ErrNotFound].
	JobOutput(ctx context.Context, id string, follow bool, w io.Writer) error

	// StopJob ends a job and its children and returns when it has ended.
	StopJob(ctx context.Context, id string) error
}

// A Job is a command that nobody waits for.
type Job struct {
	ID       string    `json:"id"`
	Args     []string  `json:"args"`
	Running  bool      `json:"running"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended,omitzero"`
	ExitCode *int      `json:"exitCode,omitempty"` // nil while it runs, and when its end was not seen
	Signal   string    `json:"signal,omitzero"`
	Error    string    `json:"error,omitzero"`
}

// Detach returns what runs commands in s that nobody waits for. A sandbox that
// cannot answers [kiterr.ErrUnsupported].
func Detach(s Sandbox) (Detacher, error) {
	return able[Detacher](s, "running a command for nobody")
}
