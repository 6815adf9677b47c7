package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/kitbox-dev/kitbox/kiterr"
)

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
	l, ok := s.(HookLogger)
	if !ok {
		return nil, fmt.Errorf("hook log with %T: %w", s, kiterr.ErrUnsupported)
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
	i, ok := s.(Inspector)
	if !ok {
		return nil, fmt.Errorf("inspecting with %T: %w", s, kiterr.ErrUnsupported)
	}
	return i.Inspect(ctx)
}

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
	Digest    string `json:"digest"`
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
	Progress func(Event)
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
