package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/compose"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// nextFile holds a whole composition from the moment a recreation is decided
// until it is in place. A command that finds it goes on with it.
const nextFile = attend.NextFile

type next struct {
	Version   int             `json:"version"`
	Plan      *plan.Plan      `json:"plan"`
	Lock      json.RawMessage `json:"lock"`
	Selection json.RawMessage `json:"selection"`
}

// Recreate implements [sandbox.Recreator]. Everything is decided before anything
// changes. The writable layer is given up and the storage is not; install hooks
// have run, once, and do not run again.
func (b *box) Recreate(ctx context.Context, o sandbox.RecreateOptions) error {
	if err := b.e.privilege(); err != nil {
		return err
	}
	l, err := b.sb.Lock(ctx, "recreate")
	if err != nil {
		return err
	}
	defer l.Unlock()
	if err := b.mend(ctx); err != nil {
		return err
	}
	old, err := b.plan()
	if err != nil {
		return err
	}
	co, err := b.again(o)
	if err != nil {
		return err
	}
	c, err := b.e.composer.Compose(ctx, co, old.Name, old.ID)
	if err != nil {
		return err
	}
	if !b.e.c.Rootless {
		c.Plan.Machine.IDMap = old.Machine.IDMap
	}
	latecomers(old, c.Plan)
	// First the floor, since what it leaves out is not asked for.
	if err := b.e.admit(c.Plan, co.Approve); err != nil {
		return err
	}
	if err := approved(old, c.Plan, o.AllowWidening); err != nil {
		return err
	}
	if o.Granted != nil {
		shown, err := display.Plan(c.Plan)
		if err != nil {
			return err
		}
		// They ran once, when the sandbox was made, and nothing runs them now.
		shown.Hooks = slices.DeleteFunc(shown.Hooks, func(h sandbox.Hook) bool { return h.Phase == string(plan.Install) })
		shown.BuildNetwork, shown.Warnings = co.BuildNetwork, compose.Warnings(c.Plan, co.Env)
		for _, k := range c.Plan.Uninstalled {
			shown.Warnings = append(shown.Warnings, uninstalled(k))
		}
		o.Granted(shown)
	}
	n := next{Version: compose.Version, Plan: c.Plan}
	if n.Lock, err = marshalDocument(c.Lock); err != nil {
		return err
	}
	if n.Selection, err = marshalDocument(c.Selection); err != nil {
		return err
	}

	if err := b.askToStop(ctx, link.StopRequest{Grace: attend.Grace(sandbox.StopOptions{})}); err != nil && !errors.Is(err, link.ErrNone) {
		return err
	}
	if err := b.sb.Write(nextFile, n); err != nil {
		return err
	}
	// From here on there is no way back, only forward.
	if err := (journal.Writer{Dir: b.sb.Dir()}).Append(journal.Recreating, ""); err != nil {
		return err
	}
	if err := b.replace(ctx); err != nil {
		return err
	}
	return b.start(ctx, o.Progress)
}

// latecomers notes in candidate, which comes after old, the Kits whose install hooks
// never run in this sandbox. They run once, at create (lifecycle@1), so that of the
// others nothing is left but what they wrote on volumes; but a Kit must not seem to
// have been set up that was not.
func latecomers(old, candidate *plan.Plan) {
	candidate.Installed = old.Installed
	if candidate.Installed == nil {
		for _, k := range old.Kits {
			candidate.Installed = append(candidate.Installed, kitName(k.Ref))
		}
	}
	for _, h := range candidate.Hooks {
		if h.Phase == plan.Install && !slices.Contains(candidate.Installed, kitName(h.Kit)) && !slices.Contains(candidate.Uninstalled, h.Kit) {
			candidate.Uninstalled = append(candidate.Uninstalled, h.Kit)
		}
	}
}

// kitName is a reference to a Kit without what tells its versions apart.
func kitName(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref
}

func uninstalled(kit string) string {
	return fmt.Sprintf("kit %s came with a recreation, and its install hooks run at create alone; remove the sandbox and create it again to have them: its volumes stay", kit)
}

// again is what the sandbox was made with, and o over it.
func (b *box) again(o sandbox.RecreateOptions) (sandbox.CreateOptions, error) {
	var l compose.Lock
	if err := b.sb.Read(lockFile, compose.Version, &l); err != nil {
		return sandbox.CreateOptions{}, err
	}
	if l.Asked == nil {
		return sandbox.CreateOptions{}, fmt.Errorf("sandbox %s was made by an older kitbox, which did not record how; remove it and create it again: %w", b.sb.Name, kiterr.ErrUnsupported)
	}
	if l.Asked.Ephemeral {
		return sandbox.CreateOptions{}, fmt.Errorf("sandbox %s ends with the command that made it and cannot be recreated: %w", b.sb.Name, kiterr.ErrUnsupported)
	}
	co := sandbox.CreateOptions{Name: b.sb.Name, Kits: l.Asked.Kits, Args: l.Args, Env: l.Env, Routes: l.Asked.Routes,
		Workspace: l.Asked.Workspace, Driver: l.Asked.Driver, Limits: l.Asked.Limits, Idle: time.Duration(l.Asked.IdleNanos),
		WorkspaceMode: l.Asked.WorkspaceMode, WorkspaceReadOnly: l.Asked.WorkspaceReadOnly, Masks: l.Asked.Masks,
		UnprotectedGit: l.Asked.UnprotectedGit, Mounts: l.Asked.Mounts,
		DenyAll: l.Asked.DenyAll, Approve: l.Asked.Approve || o.AllowWidening,
		AllowPrivileged: l.Asked.AllowPrivileged || o.AllowPrivileged, AllowPassthrough: l.Asked.AllowPassthrough || o.AllowPassthrough, Progress: o.Progress, Pull: cmp.Or(o.Pull, string(fetch.Always))}
	network := l.Asked.BuildNetwork
	if o.Lock != nil || len(o.Kits) > 0 {
		network = ""
	}
	if co.BuildNetwork = cmp.Or(o.BuildNetwork, network); co.BuildNetwork == "none" {
		co.BuildNetwork = ""
	}
	switch {
	case o.Lock != nil:
		co.Kits, co.Args, co.Lock = o.Kits, nil, o.Lock
	case len(o.Kits) > 0:
		// Other Kits have other args, and are not those of the lock.
		co.Kits, co.Args = o.Kits, nil
	case l.Asked.Lock != nil:
		co.Kits, co.Lock = nil, l.Asked.Lock
	}
	co.Args, co.Env = over(co.Args, o.Args), over(co.Env, o.Env)
	return co, compose.Pinned(&co)
}

func over(a, b map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// approved compares what was granted with what would be.
func approved(old, candidate *plan.Plan, allow bool) error {
	var granted, wanted surface.Surface
	if err := json.Unmarshal(old.Surface, &granted); err != nil {
		return fmt.Errorf("what sandbox %s was granted: %w", old.Name, err)
	}
	if err := json.Unmarshal(candidate.Surface, &wanted); err != nil {
		return fmt.Errorf("what sandbox %s would be granted: %w", old.Name, err)
	}
	changes := surface.Diff(granted, wanted)
	if allow || !changes.Widens() {
		return nil
	}
	w := &sandbox.WideningError{Name: old.Name}
	for _, c := range changes.Widenings {
		w.Changes = append(w.Changes, sandbox.Change{Category: c.Category, Detail: c.Detail})
	}
	return w
}

// replace carries out what nextFile says: away with the machine, in with the
// other plan. Doing it again after a kill at any point comes to the same. The
// caller holds the lock and knows that no keeper lives.
func (b *box) replace(ctx context.Context) error {
	var n next
	if err := b.sb.Read(nextFile, compose.Version, &n); err != nil {
		return err
	}
	if n.Plan == nil {
		return fmt.Errorf("%s holds no plan", b.sb.Path(nextFile))
	}
	if err := b.e.c.Driver.Remove(ctx, n.Plan.Machine.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		return fmt.Errorf("sandbox %s: removing its writable layer: %w", b.sb.Name, err)
	}
	if err := b.e.storage.Prepare(ctx, n.Plan); err != nil {
		return err
	}
	if err := b.e.shared.Prepare(n.Plan); err != nil {
		return err
	}
	if err := b.e.files.Clones.Prepare(ctx, n.Plan); err != nil {
		return err
	}
	for _, d := range []struct {
		file string
		v    any
	}{{lockFile, n.Lock}, {selectionFile, n.Selection}, {planFile, n.Plan}} {
		if err := b.sb.Write(d.file, d.v); err != nil {
			return err
		}
	}
	if err := (journal.Writer{Dir: b.sb.Dir()}).Append(journal.Stopped, "recreated"); err != nil {
		return err
	}
	if err := os.Remove(b.sb.Path(nextFile)); err != nil {
		return durable.Explain(b.sb.Path(nextFile), err)
	}
	return durable.SyncDir(b.sb.Dir())
}
