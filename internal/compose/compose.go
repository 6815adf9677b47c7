// Package compose makes a plan of Kits: it fetches them, resolves them, asks the
// handlers what this host grants, and records how it all came about. It
// implements what [sandbox.Locker] asks.
//
// It makes no sandbox and changes nothing, apart from the images and unpacked
// layers that every composition shares. What runs plans is internal/engine;
// what is a pure function of descriptors is package resolve.
package compose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/identity"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/rootfs"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/expand"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// Config is what a composer is made of. Fields without a comment that says
// otherwise are required; internal/engine says more of those that are its own.
type Config struct {
	Home  string
	Book  string // the operator's rules for every sandbox
	Files workspace.Host

	Open      func() (*store.Home, error) // opens the home
	Handlers  handler.List
	Fetcher   func() *fetch.Fetcher
	BootFiles func(hostname string) []plan.BootFile

	Authority  func(ctx context.Context) (pem []string, err error) // may be nil
	Unenforced func(plan.Limits) []string                          // may be nil
	Upstream   func() (*plan.Upstream, error)                      // may be nil
}

// A Composer makes plans on one host. Its methods can be called concurrently.
type Composer struct{ c Config }

// New returns a composer.
func New(c Config) *Composer { return &Composer{c} }

// Compose decides everything about a sandbox and makes nothing, apart from the
// images and unpacked layers that every composition shares.
func (c *Composer) Compose(ctx context.Context, o sandbox.CreateOptions, name, id string) (*Composition, error) {
	if err := Pinned(&o); err != nil {
		return nil, err
	}
	if len(o.Kits) == 0 {
		return nil, errors.New("no Kit to run")
	}
	w, err := c.c.Files.Judge(ctx, o, id)
	if err != nil {
		return nil, err
	}
	o.Workspace = w.Asked
	kits, err := c.load(ctx, o)
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
	if err := c.foresee(ctx, set.Declarations); err != nil {
		return nil, err
	}
	dirs, err := c.rootfs(ctx, o, ordered(set.Layers, kits))
	if err != nil {
		return nil, err
	}
	scene, err := newScene(name, id, w, config, dirs)
	if err != nil {
		return nil, err
	}
	scene.Identities = map[string]string{}
	for _, k := range kits {
		if scene.Identities[k.image.Ref], err = identity.Of(k.image); err != nil {
			return nil, fmt.Errorf("kit %s: %w", k.image.Ref, err)
		}
	}
	scene.AllowPrivileged, scene.AllowPassthrough = o.AllowPrivileged, o.AllowPassthrough
	if scene.Limits, err = c.operatorLimits(o.Limits); err != nil {
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
	selection, err := c.selectFrom(ctx, scene, declared)
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
	if c.c.Upstream != nil {
		if p.Egress.Upstream, err = c.c.Upstream(); err != nil {
			return nil, err
		}
	}
	for _, r := range o.Routes {
		p.Egress.Routes = append(p.Egress.Routes, plan.Route(r))
	}
	p.Machine = plan.Machine{ID: id, Driver: o.Driver, Hostname: hostname(name), Layers: dirs, Mounts: []plan.Mount{}, Limits: scene.Limits}
	p.Machine.Files = c.c.BootFiles(p.Machine.Hostname)
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
	if err := c.c.Handlers.Plan(ctx, scene, merged, p); err != nil {
		return nil, err
	}
	if err := c.introduce(ctx, p, dirs); err != nil {
		return nil, err
	}
	for i := range p.Volumes {
		p.Volumes[i].Transient = !p.Volumes[i].Tmpfs && (o.Ephemeral || o.Passing) && o.Name == ""
	}
	if err := c.c.Files.Add(p, w); err != nil {
		return nil, err
	}
	if p.Machine.Layers, err = c.swapLayers(ctx, o, p.Machine); err != nil {
		return nil, err
	}
	p.Skipped = skipped(selection)
	p.Surface = surface.Project(requests(merged)).Canonical()

	out := &Composition{Plan: p, Lock: Lock{Version: Version, Args: o.Args, Env: o.Env, Asked: askedFor(o)},
		Selection: Selection{Version: Version, Selection: selection, Descriptors: map[string]json.RawMessage{}}}
	for _, k := range ordered(set.Layers, kits) {
		l := LockedKit{Ref: k.image.Ref, Digest: k.image.Digest, Kind: k.descriptor.Kind, Layers: []digest.Digest{}}
		for _, layer := range k.image.Layers {
			l.Layers = append(l.Layers, layer.DiffID)
		}
		out.Lock.Kits = append(out.Lock.Kits, l)
	}
	for _, k := range declared {
		b, err := k.Descriptor.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("kit %s: %w", k.Ref, err)
		}
		out.Selection.Descriptors[k.Ref] = b
	}
	return out, nil
}

// newScene is what handlers may know.
func newScene(name, id string, w workspace.Given, config ocispec.ImageConfig, dirs rootfs.View) (*handler.Scene, error) {
	s := &handler.Scene{Name: name, ID: id, Workspace: w.Source, NoWorkspace: w.Mode == plan.WorkspaceNone}
	s.Image = handler.Image{User: config.User, Dir: config.WorkingDir}
	passwd, err := dirs.Text("/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := dirs.Text("/etc/group")
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
	s.Image.Executable = func(p string) error { return dirs.Executable(p, s.Image.Identity) }
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
