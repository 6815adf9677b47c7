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
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/compose"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/handler/builtin"
	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/hostmount"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/library"
	"github.com/kitbox-dev/kitbox/internal/oversight"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret/custody"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/internal/storage"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
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
	// namespace, logging what it decides to log and keeping what it must
	// remember in dir.
	Attach func(ctx context.Context, netns *os.File, p *plan.Plan, rules []plan.EgressRule, phase plan.Phase, log func(audit.Decision), dir string) (keeper.Boundary, error)

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
	handlers := builtin.Handlers(builtin.Host{Storage: e.storage, Rule: c.Rule, Resources: capacity(c.Unenforced), Capabilities: c.Capabilities,
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
	return link.Spawn(sb.Dir(), sb.Name, e.c.Env, held)
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
	if err := state.ValidName(name); err != nil {
		// A mistake of the caller's, which no Kit has a part in.
		return nil, errors.New(strings.TrimSuffix(err.Error(), ": "+kiterr.ErrRefused.Error()))
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

// How long one sandbox may take to say how it is. A listing as a whole takes less
// than 300 ms however many are stopped or frozen, which a person does not notice; a
// keeper that is alive answers in a hundredth of it, and one that is late on a busy
// machine is given more.
const (
	listBound   = 200 * time.Millisecond
	statusBound = 2 * time.Second
)

// List implements [sandbox.Runtime].
func (e *Engine) List(ctx context.Context) ([]sandbox.Info, error) {
	if !e.exists() {
		return nil, nil
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	machines, err := e.machines(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]*sandbox.Info, len(names))
	var wg sync.WaitGroup
	turn := make(chan struct{}, width)
	for i, name := range names {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			sb, err := e.state.Sandbox(name)
			if err != nil {
				return // removed since
			}
			info := (&box{e: e, sb: sb}).info(ctx, machines, listBound)
			infos[i] = &info
		})
	}
	wg.Wait()
	var out []sandbox.Info
	for _, i := range infos {
		if i != nil {
			out = append(out, *i)
		}
	}
	return out, ctx.Err()
}

// machines lists the driver's, by id.
func (e *Engine) machines(ctx context.Context) (map[string]driver.Machine, error) {
	ms, err := e.c.Driver.List(ctx)
	if err != nil {
		return nil, err
	}
	byID := map[string]driver.Machine{}
	for _, m := range ms {
		byID[m.ID] = m
	}
	return byID, nil
}

// width is how many sandboxes are asked at once: enough that some which do not
// answer hold nobody up, and few enough that none is late because hundreds of
// others wake up at the same moment.
const width = 24

// The documents and journals of a sandbox's directory, besides the keeper's.
const (
	planFile      = "plan.json"
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

	volatile bool // the sandbox ends with creator
}

func (b *box) Name() string        { return b.sb.Name }
func (b *box) keeper() link.Client { return link.Client{Dir: b.sb.Dir()} }

func (b *box) plan() (*plan.Plan, error) {
	p := new(plan.Plan)
	if err := b.sb.Read(planFile, plan.Version, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Status implements [sandbox.Sandbox].
func (b *box) Status(ctx context.Context) (sandbox.Info, error) {
	machines, err := b.e.machines(ctx)
	if err != nil {
		return sandbox.Info{}, err
	}
	return b.info(ctx, machines, statusBound), ctx.Err()
}

// info puts together what the directory, the driver and the keeper say. It
// takes no lock and waits for nobody longer than patience.
func (b *box) info(ctx context.Context, machines map[string]driver.Machine, patience time.Duration) sandbox.Info {
	i := sandbox.Info{Name: b.sb.Name, Kits: []sandbox.Kit{}}
	es, err := journal.Read(b.sb.Dir())
	if err != nil {
		i.State, i.Problems = sandbox.Broken, []string{err.Error()}
		return i
	}
	if len(es) > 0 {
		i.Created = es[0].Time
	} else if st, err := os.Stat(b.sb.Dir()); err == nil {
		i.Created = st.ModTime()
	}
	installed := journal.Installed(es)
	var m driver.Machine
	switch p, err := b.plan(); {
	case err == nil:
		i.ID, i.Root, i.Workspace = p.ID, p.Launch.Dir, p.Workspace
		for _, k := range p.Kits {
			i.Kits = append(i.Kits, sandbox.Kit(k))
		}
		m = machines[p.Machine.ID]
		i.Skipped, i.Unenforced = display.Left(p, m)
		i.HostPorts = display.HostPorts(p)
	case !errors.Is(err, kiterr.ErrNotFound):
		i.Problems = append(i.Problems, err.Error())
	}

	s, err := b.ask(ctx, m.PID, patience)
	switch {
	case err == nil:
		i.State, i.Phase, i.PID, i.KeeperPID, i.Commands = s.State, s.Phase, s.PID, s.Keeper, s.Commands
		i.Problems = append(i.Problems, s.Problems...)
	case !errors.Is(err, link.ErrNone):
		i.State = sandbox.Unknown
		i.Problems = append(i.Problems, "its keeper does not answer; stop ends it")
	case journal.Last(es) == journal.Removing:
		i.State = sandbox.Broken
	case !installed && b.busy():
		i.State = sandbox.Creating
	case !installed:
		i.State = sandbox.Broken
	case abandoned(es):
		i.State, i.Reason = sandbox.Broken, "the command it was made for is gone; rm removes it, and so does the next create"
	case m.Running:
		i.State, i.PID = sandbox.Orphaned, m.PID
	default:
		i.State = sandbox.Stopped
		if last := es[len(es)-1]; last.Phase == journal.Stopped {
			i.Reason = last.Note
		}
	}
	return i
}

// ask asks the keeper how the sandbox is, and it what is inside, whose first
// process is guest. One that does not answer although nothing holds it may only be
// late, and is asked once more.
func (b *box) ask(ctx context.Context, guest int, patience time.Duration) (s *link.Status, err error) {
	for range 2 {
		bound, cancel := context.WithTimeout(ctx, patience)
		// What is inside gets most of the time: its keeper has to tell of it.
		s, err = b.keeper().Probe(bound, patience*3/4)
		cancel()
		late := errors.Is(err, context.DeadlineExceeded) || err == nil && s.State == sandbox.Unknown
		if !late || held(guest) {
			return s, err
		}
		if pid, perr := b.keeper().Process(ctx); perr != nil || held(pid) {
			return s, err
		}
		patience = statusBound
	}
	return s, err
}

// held reports whether a process is stopped or frozen from outside, so that there
// is nothing to wait for.
func held(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name is in parentheses and may have some of its own.
	state := strings.TrimSpace(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t") || cgroup.System{}.Frozen(pid)
}

// busy reports whether another process is changing the sandbox.
func (b *box) busy() bool {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	l, err := durable.AcquireLock(now, b.sb.Path("lock"), durable.Exclusive)
	if err == nil {
		l.Unlock()
		return false
	}
	return errors.As(err, new(*durable.BusyError))
}

// forget deletes what is kept of a sandbox whose machine is gone: storage that
// must not stay, its range of ids, and at last its directory, which is what the
// next command would find it by. keep is whether storage made for it outlives it
// if it ever was installed.
func (e *Engine) forget(ctx context.Context, sb *state.Sandbox, p *plan.Plan, keep bool) error {
	es, err := journal.Read(sb.Dir())
	if err != nil {
		return err
	}
	id := ""
	if len(es) > 0 {
		id = es[0].Note
	}
	if p != nil {
		id = p.ID
		if err := e.storage.Settle(ctx, p, keep && journal.Installed(es)); err != nil {
			return err
		}
	}
	// Secrets of its own go with a sandbox that was. One that did not come to
	// be is about to be tried again.
	if keep && journal.Installed(es) {
		if err := e.secrets.RemoveScope(ctx, vault.Scope{Kind: vault.Sandbox, Name: sb.Name}); err != nil {
			return err
		}
	}
	if id != "" {
		if err := e.files.Clones.Remove(id); err != nil {
			return err
		}
	}
	if id != "" && !e.c.Rootless {
		if err := e.state.ReleaseIDs(ctx, id); err != nil {
			return err
		}
	}
	return sb.Remove()
}

// discard removes a sandbox without a keeper, in whatever state it is; keep is
// as for forget. The caller holds its lock.
func (b *box) discard(ctx context.Context, keep bool) error {
	// Once begun it is ended by whoever comes next: a machine that is gone
	// must not be made anew for a sandbox that was to be removed.
	switch es, err := journal.Read(b.sb.Dir()); {
	case err != nil:
		return err
	case journal.Installed(es) && journal.Last(es) != journal.Removing:
		_, volatile := journal.Volatile(es)
		if err := (journal.Writer{Dir: b.sb.Dir(), Volatile: volatile}).Append(journal.Removing, ""); err != nil {
			return err
		}
	}
	p, err := b.plan()
	switch {
	case err == nil:
		if err := b.e.c.Driver.Remove(ctx, p.Machine.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return err
		}
	case errors.Is(err, kiterr.ErrNotFound):
		p = nil // killed before anything else was made
	case errors.Is(err, kiterr.ErrUnsupported):
		return err // of another kitbox, which knows what to do
	default:
		// Cut short by a full disk or a crash. What must go is known
		// without it.
		if p, err = b.e.remains(b.sb); err != nil {
			return err
		}
		if err := b.e.c.Driver.Remove(ctx, p.Machine.ID); err != nil && !errors.Is(err, kiterr.ErrNotFound) {
			return err
		}
	}
	if _, err := os.Stat(b.sb.Dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.e.forget(ctx, b.sb, p, keep)
}

// remains is as much of a plan that cannot be read as it takes to remove what was
// made of it.
func (e *Engine) remains(sb *state.Sandbox) (*plan.Plan, error) {
	es, err := journal.Read(sb.Dir())
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Name: sb.Name}
	if len(es) > 0 {
		p.ID = es[0].Note // see make
	}
	p.Machine.ID = p.ID
	p.Volumes, err = e.storage.Of(sb.Name)
	return p, err
}

// OpenKeeper makes the keeper of the sandbox whose state directory is dir, in
// the process that is to be it.
func (e *Engine) OpenKeeper(dir string) (*keeper.Keeper, error) {
	if err := e.ready(); err != nil {
		return nil, err
	}
	names, err := e.state.List()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(names, func(n string) bool {
		sb, err := e.state.Sandbox(n)
		return err == nil && sb.Dir() == dir
	})
	if at < 0 {
		return nil, fmt.Errorf("%s is not the directory of a sandbox: %w", dir, kiterr.ErrNotFound)
	}
	sb, err := e.state.Sandbox(names[at])
	if err != nil {
		return nil, err
	}
	b := &box{e: e, sb: sb}
	p, err := b.plan()
	if err != nil {
		return nil, err
	}
	decisions := new(audit.Log) // of the boundary that was attached last
	k := keeper.New(p)
	k.Dir, k.Driver = dir, e.c.Driver
	k.Guest = keeper.NewGuest(e.c.Driver, p)
	k.Rules = func() ([]plan.EgressRule, error) { return b.rules(p) }
	k.Prepare = e.c.Prepare
	k.Attach = func(ctx context.Context, ns *os.File, phase plan.Phase) (keeper.Boundary, error) {
		rules, err := k.Rules()
		if err != nil {
			return nil, err
		}
		log, err := os.OpenFile(sb.Path(policyFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return nil, durable.Explain(sb.Path(policyFile), err)
		}
		decisions = &audit.Log{W: log}
		if st, err := log.Stat(); err == nil {
			decisions.Held = st.Size()
		}
		bd, err := e.c.Attach(ctx, ns, p, rules, phase, decisions.Write, dir)
		if err != nil {
			return nil, errors.Join(err, log.Close())
		}
		return loggedBoundary{bd, decisions, log}, nil
	}
	k.Refused = func(ctx context.Context) []sandbox.PolicyEvent {
		decisions.Flush()
		return b.refused(ctx)
	}
	k.Remove = func(ctx context.Context, keep bool) error { return e.forget(ctx, sb, p, keep) }
	return k, nil
}

// loggedBoundary is a boundary whose log is complete once it is closed.
type loggedBoundary struct {
	keeper.Boundary
	log  *audit.Log
	file *os.File
}

func (b loggedBoundary) Close() error {
	return errors.Join(b.Boundary.Close(), b.log.Close(), b.file.Close())
}
