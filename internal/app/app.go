// Package app puts the programs together: it is the only place that sees the
// command line, the engine, the driver and the boundary at once.
//
// There is no logic here that could be tested without all of them; what there
// is to decide is decided in the packages that are joined.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/cli"
	"github.com/kitbox-dev/kitbox/internal/driver/machinedir"
	"github.com/kitbox-dev/kitbox/internal/driver/mux"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/driver/oci"
	"github.com/kitbox-dev/kitbox/internal/engine"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/job"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/kitset"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/internal/secret/custody"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/upstream"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// Version is set when kitbox is built, and so is Revision, which may be empty.
var (
	Version  = "dev"
	Revision = ""
)

// Main is the kitbox program; args are its arguments with its name. The name
// tells a keeper from a command.
func Main(args []string) int {
	if err := rootless.Arrive(); err != nil {
		fmt.Fprintf(os.Stderr, "kitbox: %v\n", err)
		return kiterr.StatusFailed
	}
	if len(args) > 0 && args[0] == link.ProcessName {
		e, err := newEngine()
		return keeper.Main(args, func(dir string) (*keeper.Keeper, error) {
			if err != nil {
				return nil, err
			}
			return e.OpenKeeper(dir)
		})
	}
	if len(args) > 0 && args[0] == job.ProcessName {
		e, err := newEngine()
		return job.Main(args, []int{rootless.LifeFD()}, func(ctx context.Context, s job.Spec, out io.Writer, started func()) (*sandbox.Result, error) {
			if err != nil {
				return nil, err
			}
			return e.RunJob(ctx, s, out, started)
		})
	}
	if len(args) == 3 && args[1] == examine {
		return examineMain(args[2])
	}
	// A command ends before collecting would pay.
	debug.SetGCPercent(400)
	// SIGHUP too: a terminal that is closed ends what was started in it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	env := &cli.Env{Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv, Version: Version}
	e, err := newEngine()
	if err != nil {
		none := unavailable{err}
		env.Runtime, env.Images, env.Builder = none, none, none
	} else {
		env.Runtime, env.Images, env.Builder = e, e, e
	}
	env.Doctor = doctor{libexec: programs.Dirs()}
	return cli.Main(ctx, env)
}

// Runtime is the engine as kitbox itself uses it, for programs that measure it.
func Runtime() (sandbox.Runtime, error) { return newEngine() }

// newEngine joins the engine with what it needs. It reads nothing but the
// environment.
func newEngine() (*engine.Engine, error) {
	home, err := store.DefaultDir(os.Getenv)
	if err != nil {
		return nil, err
	}
	bin := programs.Dirs()
	guest := programs.Find(bin, "kit-guest")
	sets := kitset.Assembler{Builder: annotation.Builder{Name: "kitbox", Version: Version, Revision: Revision}, SourceDateEpoch: os.Getenv("SOURCE_DATE_EPOCH")}
	docker := dockerConfig(os.Getenv)
	machines, byRuntime := filepath.Join(home, "machines"), filepath.Join(home, "machines-oci")
	boundaries := attacher{home, filepath.Join(home, "ca"), os.Getenv(rootsVariable), vault.Open(custody.Dir(home)), new(staging)}
	return engine.New(engine.Config{
		Home: home,
		Driver: mux.Driver{
			{Name: "namespace", Dir: machines, Driver: &namespace.Driver{Dir: machines, GuestPath: guest}},
			{Name: "oci", Dir: byRuntime, Driver: &oci.Driver{Dir: byRuntime, GuestPath: guest}},
		},
		Fetcher: func() *fetch.Fetcher {
			return &fetch.Fetcher{Home: home, Builder: programs.Find(bin, "kit-builder"), Sets: sets.Assemble}
		},
		Prepare: boundaries.prepare,
		Attach:  boundaries.attach,
		Logins:  shownLogins,
		Rule:    egress.CheckRule,
		Domain: func(pattern string) error {
			_, err := egress.ParseMatcher(pattern)
			return err
		},
		Authority: func(ctx context.Context) ([]string, error) {
			return certificates(ctx, filepath.Join(home, "ca"), os.Getenv(rootsVariable))
		},
		Base:         base,
		Capabilities: inside.AllCapabilities(),
		Registry:     egress.RegistryAlias,
		Upstream: func() (*plan.Upstream, error) {
			s, err := upstream.FromEnv(os.Getenv)
			return s.Public(), err
		},
		Login:        func(ctx context.Context, registry string) error { return presentable(ctx, docker, registry) },
		DockerConfig: docker,
		Unenforced: func(l plan.Limits) []string {
			// Every driver here has its machines in directories and groups.
			_, not := machinedir.Limits(l)
			return not
		},
		GPUs:      func() gpu.Found { return gpus(home) },
		BootFiles: bootFiles,
		Rootless:  inNamespace(),
		Privilege: func() error { return enter(home, guest) },
		Held:      held,
		Env:       append(link.Environment(os.Environ()), "KITBOX_HOME="+home),
	}), nil
}

func bootFiles(hostname string) []plan.BootFile {
	return []plan.BootFile{
		{Path: "/etc/hostname", Content: hostname + "\n"},
		{Path: "/etc/hosts", Content: control.Hosts(hostname)},
		{Path: "/etc/resolv.conf", Content: control.ResolvConf()},
	}
}

// unavailable stands in for an engine that cannot be: every command that needs
// one says why, and those that need none work.
type unavailable struct{ err error }

func (u unavailable) fail() error {
	if u.err == nil {
		return errors.New("unavailable")
	}
	return fmt.Errorf("kitbox cannot work here: %w", u.err)
}
