package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// A composition is a plan and the records of how it came about.
type composition struct {
	plan      *plan.Plan
	lock      lock
	selection selectionRecord
}

// A lock pins what was composed: with it, and the store, the same sandbox can
// be made again.
type lock struct {
	Version int               `json:"version"`
	Kits    []lockedKit       `json:"kits"` // in the order of their layers
	Args    map[string]string `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	// What else was asked for at create, so that a recreation can ask again.
	Asked *asked `json:"asked,omitempty"`
}

// asked are the options of a creation that are not in its plan as they were.
type asked struct {
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

	AllowPassthrough bool `json:"allowPassthrough,omitempty"`
	DenyAll          bool `json:"denyAll,omitempty"`
	Approve          bool `json:"approve,omitempty"` // of what Kits ask under DenyAll
}

// askedFor keeps o. A directory is kept by its whole path: a recreation may be
// asked for anywhere.
func askedFor(o sandbox.CreateOptions) *asked {
	a := &asked{Routes: o.Routes, Workspace: o.Workspace, Limits: o.Limits, IdleNanos: int64(o.Idle),
		AllowPrivileged: o.AllowPrivileged, AllowPassthrough: o.AllowPassthrough, DenyAll: o.DenyAll, Approve: o.Approve, Ephemeral: o.Ephemeral, Driver: o.Driver,
		WorkspaceMode: o.WorkspaceMode, WorkspaceReadOnly: o.WorkspaceReadOnly, Masks: o.Masks, UnprotectedGit: o.UnprotectedGit, Mounts: o.Mounts}
	for _, ref := range o.Kits {
		if strings.HasPrefix(ref, ".") {
			if abs, err := filepath.Abs(ref); err == nil {
				ref = abs
			}
		}
		a.Kits = append(a.Kits, ref)
	}
	return a
}

type lockedKit struct {
	Ref    string          `json:"ref"`
	Digest digest.Digest   `json:"digest"`
	Kind   string          `json:"kind"`
	Layers []digest.Digest `json:"layers"` // diff ids
}

// A selectionRecord is what was taken and left, and the effective descriptors
// that were judged.
type selectionRecord struct {
	Version     int                        `json:"version"`
	Selection   *resolve.Selection         `json:"selection"`
	Descriptors map[string]json.RawMessage `json:"descriptors"` // by reference
}

const recordVersion = 1

// compose decides everything about a sandbox and makes nothing, apart from the
// images and unpacked layers that every composition shares.
func (e *Engine) compose(ctx context.Context, o sandbox.CreateOptions, name, id string) (*composition, error) {
	if err := pinned(&o); err != nil {
		return nil, err
	}
	if len(o.Kits) == 0 {
		return nil, errors.New("no Kit to run")
	}
	w, err := e.files.Judge(o, id)
	if err != nil {
		return nil, err
	}
	o.Workspace = w.Asked
	kits, err := e.load(ctx, o)
	if err != nil {
		return nil, err
	}
	set, err := resolve.Resolve(resolvable(kits), resolve.Options{})
	if err != nil {
		return nil, err
	}
	config, err := imageConfig(ordered(set.Layers, kits))
	if err != nil {
		return nil, err
	}
	if err := e.foresee(ctx, set.Declarations); err != nil {
		return nil, err
	}
	dirs, err := e.rootfs(ctx, o, ordered(set.Layers, kits))
	if err != nil {
		return nil, err
	}
	scene, err := newScene(name, id, w, config, dirs)
	if err != nil {
		return nil, err
	}
	scene.Identities = map[string]string{}
	for _, k := range kits {
		if scene.Identities[k.image.Ref], err = identity(k.image); err != nil {
			return nil, fmt.Errorf("kit %s: %w", k.image.Ref, err)
		}
	}
	scene.AllowPrivileged, scene.AllowPassthrough = o.AllowPrivileged, o.AllowPassthrough
	if scene.Limits, err = e.operatorLimits(o.Limits); err != nil {
		return nil, err
	}
	env := containerEnv(config, scene.Image.Identity, kits, o.Env)
	declared := set.Declarations
	for i := range declared {
		if declared[i].Descriptor, err = expand.Env(declared[i].Descriptor, env); err != nil {
			return nil, fmt.Errorf("kit %s: %w", declared[i].Ref, err)
		}
	}
	if err := holds(o.Lock, declared); err != nil {
		return nil, err
	}
	selection, err := e.selectFrom(ctx, scene, declared)
	if err != nil {
		return nil, err
	}
	merged, err := resolve.Merge(capability.MergeRuntime, selection.Effective)
	if err != nil {
		return nil, err
	}

	p := &plan.Plan{Version: plan.Version, Name: name, ID: id, Workspace: w.Source, WorkspaceMode: w.Mode, Clone: w.Clone, Hooks: []plan.Hook{}, Files: []plan.File{}}
	for _, k := range declared {
		p.Kits = append(p.Kits, plan.Kit{Ref: k.Ref, Digest: k.Digest, Kind: k.Descriptor.Kind})
	}
	p.Egress.DenyAll = o.DenyAll
	if e.c.Upstream != nil {
		if p.Egress.Upstream, err = e.c.Upstream(); err != nil {
			return nil, err
		}
	}
	for _, r := range o.Routes {
		p.Egress.Routes = append(p.Egress.Routes, plan.Route(r))
	}
	p.Machine = plan.Machine{ID: id, Driver: o.Driver, Hostname: hostname(name), Layers: dirs, Mounts: []plan.Mount{}, Limits: scene.Limits}
	p.Machine.Files = e.c.BootFiles(p.Machine.Hostname)
	p.Launch = launch(config, scene.Image, env)
	if w.Source != "" && p.Launch.Dir == "/" {
		p.Launch.Dir = workspace.DefaultDir
	}
	switch {
	case o.Idle == 0:
		p.IdleMillis = sandbox.DefaultIdle.Milliseconds()
	case o.Idle > 0:
		p.IdleMillis = max(o.Idle.Milliseconds(), 1)
	}
	if err := e.handlers.Plan(ctx, scene, merged, p); err != nil {
		return nil, err
	}
	if err := e.introduce(ctx, p, dirs); err != nil {
		return nil, err
	}
	for i := range p.Volumes {
		p.Volumes[i].Transient = !p.Volumes[i].Tmpfs && o.Ephemeral && o.Name == ""
	}
	if err := e.files.Add(p, w); err != nil {
		return nil, err
	}
	if p.Machine.Layers, err = e.swapLayers(ctx, o, p.Machine); err != nil {
		return nil, err
	}
	p.Skipped = skipped(selection)
	p.Surface = surface.Project(requests(merged)).Canonical()

	c := &composition{plan: p, lock: lock{Version: recordVersion, Args: o.Args, Env: o.Env, Asked: askedFor(o)},
		selection: selectionRecord{Version: recordVersion, Selection: selection, Descriptors: map[string]json.RawMessage{}}}
	for _, k := range ordered(set.Layers, kits) {
		l := lockedKit{Ref: k.image.Ref, Digest: k.image.Digest, Kind: k.descriptor.Kind, Layers: []digest.Digest{}}
		for _, layer := range k.image.Layers {
			l.Layers = append(l.Layers, layer.DiffID)
		}
		c.lock.Kits = append(c.lock.Kits, l)
	}
	for _, k := range declared {
		b, err := k.Descriptor.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", k.Ref, err)
		}
		c.selection.Descriptors[k.Ref] = b
	}
	return c, nil
}

// fetcher is the configured one, telling o what it does.
func (e *Engine) fetcher(o sandbox.CreateOptions) *fetch.Fetcher {
	f := e.c.Fetcher()
	f.BuildNetwork, f.Policy = o.BuildNetwork, fetch.Policy(o.Pull)
	if o.Progress != nil {
		f.Progress = &lineWriter{step: "build", tell: o.Progress}
		f.Notice = func(line string) { o.Progress(sandbox.Event{Detail: line}) }
	}
	return f
}

// A loadedKit is a Kit with its create-phase args expanded.
type loadedKit struct {
	image      *fetch.Kit
	descriptor spec.Descriptor
	exports    map[string]string // variables that its args export
}

// load fetches every Kit and expands its args. All that is wrong with the args
// of any is reported together.
func (e *Engine) load(ctx context.Context, o sandbox.CreateOptions) ([]loadedKit, error) {
	f := e.fetcher(o)
	used := map[string]bool{}
	var kits []loadedKit
	for _, ref := range o.Kits {
		if w, ok := f.Progress.(*lineWriter); ok {
			w.of = ref
		}
		image, err := fetchLocked(ctx, f, o.Lock, ref, o.Args)
		if err != nil {
			return nil, err
		}
		doc, err := spec.DecodePublished(image.Descriptor)
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, err)
		}
		k := loadedKit{image: image, exports: map[string]string{}}
		for _, name := range image.BuildArgs {
			used[name] = true
		}
		supplied := map[string]string{}
		for name, value := range o.Args {
			a, declared := doc.Args[name]
			if !declared || slices.Contains(image.BuildArgs, name) {
				continue
			}
			if a.BuildArg != "" {
				return nil, fmt.Errorf("kit %s: arg %s was settled when the Kit was built; build it from its directory with --arg %s=…: %w", ref, name, name, kiterr.ErrRefused)
			}
			used[name] = true
			supplied[name] = value
		}
		values, err := expand.ResolveArgs(doc.Args, supplied, expand.PhaseCreate)
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, explainArgs(err, doc.Args, supplied))
		}
		if k.descriptor, err = expand.Create(doc.Descriptor, values); err != nil {
			return nil, fmt.Errorf("kit %s: %w", ref, err)
		}
		for name, a := range doc.Args {
			if v, ok := values[name]; ok && a.Env != "" {
				k.exports[a.Env] = v
			}
		}
		kits = append(kits, k)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		if !used[name] {
			return nil, fmt.Errorf("no Kit given declares an arg %s: %w", name, kiterr.ErrRefused)
		}
	}
	return kits, nil
}

func resolvable(kits []loadedKit) []resolve.Kit {
	var out []resolve.Kit
	for _, k := range kits {
		out = append(out, resolve.Kit{Ref: k.image.Ref, Digest: k.image.Digest.String(), Descriptor: k.descriptor})
	}
	return out
}

// ordered returns kits in the order of order.
func ordered(order []resolve.Kit, kits []loadedKit) []loadedKit {
	var out []loadedKit
	for _, o := range order {
		for _, k := range kits {
			if k.image.Ref == o.Ref {
				out = append(out, k)
			}
		}
	}
	return out
}

// newScene is what handlers may know.
func newScene(name, id string, w workspace.Given, config ocispec.ImageConfig, dirs rootfs) (*handler.Scene, error) {
	s := &handler.Scene{Name: name, ID: id, Workspace: w.Source, NoWorkspace: w.Mode == plan.WorkspaceNone}
	s.Image = handler.Image{User: config.User, Dir: config.WorkingDir}
	passwd, err := dirs.text("/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := dirs.text("/etc/group")
	if err != nil {
		return nil, err
	}
	user := config.User
	if user == "" {
		user = "0"
	}
	// An image without accounts runs as the number it states, as under any
	// container runtime; sbx@1 asks for more.
	if s.Image.Identity, err = account.Lenient(passwd, group, user); err != nil {
		return nil, fmt.Errorf("the image's %w", err)
	}
	_, s.Image.IdentityErr = account.Resolve(passwd, group, user)
	s.Image.Executable = func(p string) error { return dirs.executable(p, s.Image.Identity) }
	return s, nil
}

// defaultPath is the PATH of an image that states none; containers have agreed
// on it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// containerEnv is the final container environment (§6.1): what every container
// has, the image's, the args' exports, and the operator's overrides, each over
// the one before.
func containerEnv(config ocispec.ImageConfig, id plan.Identity, kits []loadedKit, over map[string]string) map[string]string {
	home := id.Home
	if home == "" {
		home = "/"
	}
	env := map[string]string{"PATH": defaultPath, "HOME": home}
	for _, kv := range config.Env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	for _, k := range kits {
		maps.Copy(env, k.exports)
	}
	maps.Copy(env, over)
	return env
}

func launch(config ocispec.ImageConfig, im handler.Image, env map[string]string) plan.Launch {
	l := plan.Launch{Argv: append(slices.Clone(config.Entrypoint), config.Cmd...), Entrypoint: config.Entrypoint, User: im.Identity, Dir: "/"}
	if path.IsAbs(im.Dir) {
		l.Dir = path.Clean(im.Dir)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		l.Env = append(l.Env, name+"="+env[name])
	}
	return l
}

// foresee refuses Kits that require what nobody here handles, before their layers
// are got. What depends on what is in them is judged afterwards.
func (e *Engine) foresee(ctx context.Context, kits []resolve.Kit) error {
	if slices.ContainsFunc(kits, refersToEnvironment) {
		return nil // not expanded yet
	}
	_, err := resolve.Select(kits, resolve.SelectorFunc(func(_ resolve.Operation, _ spec.Descriptor, r capability.Request) (bool, string) {
		if e.handlers.Handles(r.Type) {
			return true, ""
		}
		var refused *capability.RefusedError
		if err := e.handlers.Accept(ctx, nil, capability.Contribution{Request: r}); errors.As(err, &refused) {
			return false, refused.Reason
		}
		return false, "nobody handles it"
	}))
	return err
}

// selectFrom asks the handlers about every entry.
func (e *Engine) selectFrom(ctx context.Context, s *handler.Scene, kits []resolve.Kit) (*resolve.Selection, error) {
	var host error // a handler could not read the host, which is no refusal
	sel, err := resolve.Select(kits, resolve.SelectorFunc(func(_ resolve.Operation, d spec.Descriptor, r capability.Request) (bool, string) {
		// Whose entry it is follows from where the entries lie: two Kits
		// may say the same, and their descriptors are still two.
		kit := ""
		for _, k := range kits {
			if len(d.Capabilities) > 0 && len(k.Descriptor.Capabilities) > 0 && &d.Capabilities[0] == &k.Descriptor.Capabilities[0] {
				kit = k.Ref
			}
		}
		err := e.handlers.Accept(ctx, s, capability.Contribution{Kit: kit, Request: r})
		if err == nil {
			return true, ""
		}
		var refused *capability.RefusedError
		if errors.As(err, &refused) {
			return false, refused.Reason
		}
		if !errors.Is(err, kiterr.ErrRefused) && host == nil {
			host = err
		}
		return false, err.Error()
	}))
	if host != nil {
		return nil, host
	}
	return sel, err
}

// skipped is what was left out, one line for each, with why.
func skipped(sel *resolve.Selection) []plan.Skipped {
	out := []plan.Skipped{}
	for _, r := range sel.Skipped {
		out = append(out, plan.Skipped{Kit: r.Kit, Path: r.Path, Type: r.Type, Reason: strings.Join(r.Messages, "; ")})
	}
	return out
}

func requests(cs []capability.Contribution) []capability.Request {
	var rs []capability.Request
	for _, c := range cs {
		rs = append(rs, c.Request)
	}
	return rs
}

// hostname makes a host name of a sandbox name, which may have dots and
// underscores that a resolver would stumble over.
func hostname(name string) string {
	h := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name), "-")
	if h == "" {
		return "sandbox"
	}
	return h
}

// lineWriter tells every line written to it as an event.
type lineWriter struct {
	step string
	of   string // what is worked on
	tell func(sandbox.Event)
	rest []byte
}

// Write implements [io.Writer].
func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		if s := strings.TrimSpace(string(line)); s != "" {
			w.tell(sandbox.Event{Step: w.step, Of: w.of, Detail: s})
		}
		w.rest = append(w.rest[:0], rest...)
	}
}

var _ io.Writer = (*lineWriter)(nil)
