package compose

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Composition is a plan and the records of how it came about.
type Composition struct {
	Plan      *plan.Plan
	Lock      Lock
	Selection Selection
}

// A Lock pins what was composed: with it, and the store, the same sandbox can
// be made again.
type Lock struct {
	Version int               `json:"version"`
	Kits    []LockedKit       `json:"kits"` // in the order of their layers
	Args    map[string]string `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	// What else was asked for at create, so that a recreation can ask again.
	Asked *Asked `json:"asked,omitempty"`
}

// Asked are the options of a creation that are not in its plan as they were.
type Asked struct {
	Kits            []string        `json:"kits"` // directories absolute
	Routes          []sandbox.Route `json:"routes,omitempty"`
	Workspace       string          `json:"workspace,omitempty"`
	Limits          sandbox.Limits  `json:"limits,omitzero"`
	IdleNanos       int64           `json:"idleNanos,omitzero"` // as given
	AllowPrivileged bool            `json:"allowPrivileged,omitempty"`
	Driver          string          `json:"driver,omitempty"`
	Ephemeral       bool            `json:"ephemeral,omitempty"`

	WorkspaceMode     string          `json:"workspaceMode,omitempty"`
	WorkspaceReadOnly bool            `json:"workspaceReadOnly,omitempty"`
	Masks             []string        `json:"masks,omitempty"`
	UnprotectedGit    bool            `json:"unprotectedGit,omitempty"`
	Mounts            []sandbox.Mount `json:"mounts,omitempty"`

	BuildNetwork string `json:"buildNetwork,omitempty"`

	AllowPassthrough bool `json:"allowPassthrough,omitempty"`
	DenyAll          bool `json:"denyAll,omitempty"`
	Approve          bool `json:"approve,omitempty"` // of what Kits ask under DenyAll

	// Lock pins the Kits; nil: they are what their names stand for.
	Lock *sandbox.Lock `json:"lock,omitempty"` // directories absolute
}

// askedFor keeps o. A directory is kept by its whole path: a recreation may be
// asked for anywhere.
func askedFor(o sandbox.CreateOptions) *Asked {
	a := &Asked{Routes: o.Routes, Workspace: o.Workspace, Limits: o.Limits, IdleNanos: int64(o.Idle),
		AllowPrivileged: o.AllowPrivileged, AllowPassthrough: o.AllowPassthrough, DenyAll: o.DenyAll, Approve: o.Approve, Ephemeral: o.Ephemeral, Driver: o.Driver,
		WorkspaceMode: o.WorkspaceMode, WorkspaceReadOnly: o.WorkspaceReadOnly, Masks: o.Masks, UnprotectedGit: o.UnprotectedGit, Mounts: o.Mounts, BuildNetwork: o.BuildNetwork}
	for _, ref := range o.Kits {
		a.Kits = append(a.Kits, anywhere(ref))
	}
	if o.Lock != nil {
		l := *o.Lock
		l.Kits = slices.Clone(l.Kits)
		for i := range l.Kits {
			l.Kits[i].Ref = anywhere(l.Kits[i].Ref)
		}
		a.Lock = &l
	}
	return a
}

// anywhere is ref as it is written in any directory.
func anywhere(ref string) string {
	if strings.HasPrefix(ref, ".") {
		if abs, err := filepath.Abs(ref); err == nil {
			return abs
		}
	}
	return ref
}

// A LockedKit is one of them.
type LockedKit struct {
	Ref    string          `json:"ref"`
	Digest digest.Digest   `json:"digest"`
	Kind   string          `json:"kind"`
	Layers []digest.Digest `json:"layers"` // diff ids
}

// A Selection is what was taken and left, and the effective descriptors
// that were judged.
type Selection struct {
	Version     int                        `json:"version"`
	Selection   *resolve.Selection         `json:"selection"`
	Descriptors map[string]json.RawMessage `json:"descriptors"` // by reference
}

// Version is the version of these records.
const Version = 1
