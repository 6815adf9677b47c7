// Package engine runs plans: it implements package sandbox on this machine.
//
// It has internal/compose make a plan of Kits, stores the plan, and starts a
// keeper, which does the rest. The parts of the SDK that need no running sandbox
// are packages of their own: internal/library, internal/secret/custody and
// internal/oversight. There is no daemon: what is known of a
// sandbox is in its state directory, and several engines in several processes
// work on one home at once, each change under the sandbox's lock. A command that
// was killed leaves what the next one continues or cleans up; which of the two
// is decided by the phase journal.
package engine

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/attend"
	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/compose"
	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/handler/builtin"
	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/hostmount"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/library"
	"github.com/kitbox-dev/kitbox/internal/oversight"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret/custody"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/internal/storage"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/store/state"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Config is what an engine is made of. All fields without a comment that says
// otherwise are required.
type Config struct {
	Home   string
	Driver driver.Driver

	// Fetcher returns what Kits are fetched and built with.
	Fetcher func() *fetch.Fetcher

	// Base makes the platform base.
	Base func(ctx context.Context, h *store.Home, o sandbox.BaseOptions) (sandbox.Image, error)

	// Prepare begins, in a keeper's process, what the next Attach needs before
	// there is a machine, and returns at once. Nil: nothing can be.
	Prepare func()

	// Attach puts a boundary for p, with the rules given, around a network
	// namespace, logging what it decides to log, without which it presents
	// no secret, and keeping what it must remember in dir.
	Attach func(ctx context.Context, netns *os.File, p *plan.Plan, rules []plan.EgressRule, phase plan.Phase, log *audit.Log, dir string) (keeper.Boundary, error)

	// Logins names the registry logins of p that requests to host and port may
	// be given; dir is what Attach was given. Nil: there are none.
	Logins func(p *plan.Plan, dir, host string, port uint16) ([]string, error)

	// Rule judges an egress rule; nil accepts all.
	Rule func(plan.EgressRule) error

	// Domain judges a pattern of hosts that secrets would be sent to; nil
	// accepts all.
	Domain func(pattern string) error

	// Authority returns certificates that sandboxes trust: that of who signs
	// for hosts whose connections are looked into, and those of the
	// operator's own. Nil: no connection can be looked into.
	Authority func(ctx context.Context) (pem []string, err error)

	// Capabilities are all that the driver can give to root inside; nil
	// refuses privileged@1.
	Capabilities []string

	// Unenforced names each of the limits that the driver cannot hold here,
	// with the reason; nil: it holds all.
	Unenforced func(plan.Limits) []string

	// GPUs are those that the driver can pass into machines; nil: none.
	GPUs func() gpu.Found

	// Login reports whether this host has a login for an image registry
	// that the boundary can present; nil: there is none. DockerConfig is the
	// directory where it is kept.
	Login        func(ctx context.Context, registry string) error
	DockerConfig string

	// Upstream are the proxies through which sandboxes that are made now
	// reach the outside. Nil: none.
	Upstream func() (*plan.Upstream, error)

	// Registry is the name at which sandboxes reach the registry of Kits;
	// empty: there is none.
	Registry string

	// BootFiles are the files of the machine's own, such as resolv.conf.
	BootFiles func(hostname string) []plan.BootFile

	// Rootless says that this process is root of a user namespace of its
	// own: machines then share its ids instead of getting a range each.
	Rootless bool

	// Privilege makes this process one that can make machines, or fails. It
	// may replace the process by one that does the same from the beginning,
	// so it is called before anything is done. Nil does nothing.
	Privilege func() error

	// Held returns what a keeper has to keep open; nil: nothing. The caller
	// closes the file.
	Held func() (link.Held, error)

	// Env is what keepers inherit.
	Env []string
}

// An Engine implements [sandbox.Runtime]. Its methods can be called
// concurrently. Making one reads nothing and costs nothing.
type Engine struct {
	*library.Library     // the images
	*custody.Custody     // the secrets
	*oversight.Oversight // the operator's rules

	c        Config
	storage  storage.Store
	shared   hostmount.Store
	files    workspace.Host
	secrets  *vault.Vault
	composer *compose.Composer

	open  sync.Once
	home  *store.Home  // set by open
	state *state.Store // set by open
	err   error        // set by open
}

// New returns an engine.
func New(c Config) *Engine {
	e := &Engine{c: c, storage: storage.Store{Dir: c.Home + "/volumes"}, shared: hostmount.Store{Dir: c.Home + "/mounts"}, files: workspace.Host{Home: c.Home, Rootless: c.Rootless, Clones: workspace.Clones{Dir: c.Home + "/clones"}}, secrets: vault.Open(custody.Dir(c.Home))}
	e.Library = library.New(library.Config{Exists: e.exists, Open: e.opened, Privilege: e.privilege, Fetcher: c.Fetcher, Base: c.Base})
	e.Oversight = oversight.New(oversight.Config{Book: e.globalRules(), Ready: e.ready, Open: e.overseen, List: e.names, Told: keeperBound})
	e.Custody = custody.New(e.secrets, e.ready)
	stored := func(service, identity, name string) (credential.Binding, error) {
		return custody.Stored(e.secrets, service, identity, name)
	}
	handlers := builtin.Handlers(builtin.Host{Storage: e.storage, Rule: c.Rule, Resources: capacity(c.Unenforced, c.GPUs), Capabilities: c.Capabilities,
		HostMount: e.shared.Place, Secret: stored, Domain: c.Domain, Registry: c.Registry, Login: c.Login, DockerConfig: c.DockerConfig})
	e.composer = compose.New(compose.Config{Home: c.Home, Book: e.globalRules(), Files: e.files, Open: e.opened, Handlers: handlers,
		Fetcher: c.Fetcher, BootFiles: c.BootFiles, Authority: c.Authority, Unenforced: c.Unenforced, Upstream: c.Upstream})
	return e
}

// ready opens the home on first use, so that a command that needs none works
// without a place to write.
func (e *Engine) ready() error {
	e.open.Do(func() {
		if e.home, e.err = store.Open(e.c.Home); e.err == nil {
			e.state, e.err = e.home.Sandboxes()
		}
	})
	return e.err
}

// opened is the home, opened.
func (e *Engine) opened() (*store.Home, error) {
	err := e.ready()
	return e.home, err
}

// privilege is asked for by everything that touches machines.
func (e *Engine) privilege() error {
	if e.c.Privilege == nil {
		return nil
	}
	return e.c.Privilege()
}

// spawn starts a keeper for sb.
func (e *Engine) spawn(sb *state.Sandbox) (*link.Process, error) {
	var held link.Held
	if e.c.Held != nil {
		var err error
		if held, err = e.c.Held(); err != nil {
			return nil, err
		}
		if held.File != nil {
			defer held.File.Close()
		}
	}
	return link.Spawn(link.Self, sb.Dir(), sb.Name, e.c.Env, held)
}

// exists reports whether there is anything that could be listed or opened. A
// command that only looks must not make a home.
func (e *Engine) exists() bool {
	_, err := os.Stat(e.c.Home)
	return err == nil
}

// Open implements [sandbox.Runtime].
func (e *Engine) Open(_ context.Context, name string) (sandbox.Sandbox, error) {
	return e.openName(name)
}

func (e *Engine) openName(name string) (*box, error) {
	if err := sandbox.CheckName(name); err != nil {
		return nil, err
	}
	if !e.exists() {
		return nil, fmt.Errorf("sandbox %s: %w: 'kitbox ls' shows what there is", name, kiterr.ErrNotFound)
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	sb, err := e.state.Sandbox(name)
	if err != nil {
		return nil, err
	}
	return &box{e: e, sb: sb}, nil
}

// The documents and journals of a sandbox's directory, besides the keeper's.
const (
	planFile      = attend.PlanFile
	lockFile      = "lock.json"
	selectionFile = "selection.json"
	policyFile    = "policy.jsonl"
	rulesFile     = "rules.json" // the operator's, for this sandbox
)

// A box is one sandbox of an engine.
type box struct {
	e  *Engine
	sb *state.Sandbox

	mu      sync.Mutex
	creator *link.Process // guarded by mu; set in the process that made the sandbox, until it is used
	started bool          // guarded by mu; by this handle, and not stopped by it

	volatile bool // the sandbox ends with creator
}

func (b *box) Name() string        { return b.sb.Name }
func (b *box) keeper() link.Client { return b.attended().Keeper() }

// attended is what can be done with the sandbox by its keeper alone.
func (b *box) attended() attend.Sandbox { return attend.Sandbox{State: b.sb} }

func (b *box) plan() (*plan.Plan, error) {
	p := new(plan.Plan)
	if err := b.sb.Read(planFile, plan.Version, p); err != nil {
		return nil, err
	}
	return p, nil
}
