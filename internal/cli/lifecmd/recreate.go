package lifecmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/creation"
	"github.com/kitbox-dev/kitbox/internal/cli/lockfile"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/progress"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Recreate makes "kitbox recreate".
func Recreate(e *world.Env) *cobra.Command {
	var (
		kits, args, env            []string
		approve, privileged, quiet bool
		when, net                  string
		passthrough                bool
		lock                       lockfile.Choice
	)
	cmd := &cobra.Command{
		Use:   "recreate [options] NAME [KIT]",
		Short: "Give a sandbox a fresh file system, keeping its volumes",
		Long: `Composes the sandbox's Kits again, as they are now, and gives it a fresh file
system; with KIT, those Kits instead. One that was made of a lock is made of exactly
what the lock says again; --lock takes another, such as one that update renewed, and
KIT leaves the lock. Volumes, host mounts, published ports and
the workspace stay. Install hooks run once in the life of a sandbox: not again, nor
those of Kits that are new to it, which status says then; what they wrote outside
volumes is gone.

It is refused before anything changes when a volume is asked for on other terms
than the one that is kept (status 2), and when the Kits ask for more than was
granted (status 3, with what is new), unless --approve is given.`,
		Example: `  kitbox recreate t
  kitbox recreate t ./examples/hello --kit ./examples/tool --approve
  kitbox update && kitbox recreate --locked t`,
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, rest []string) error {
			if len(rest) < 1 || len(rest) > 2 {
				return argument.Mistake(cmd, "recreate takes the NAME of a sandbox and at most one KIT")
			}
			if len(kits) > 0 && len(rest) == 1 {
				return argument.Mistake(cmd, "--kit adds to a KIT; name the workload too")
			}
			if err := option.Pull(cmd, when); err != nil {
				return err
			}
			o := sandbox.RecreateOptions{AllowWidening: approve, AllowPrivileged: privileged, AllowPassthrough: passthrough, Pull: when}
			if len(rest) == 2 {
				o.Kits = append([]string{rest[1]}, kits...)
			}
			var err error
			if o.Lock, err = lock.Read(cmd); err != nil {
				return err
			}
			if o.Lock != nil {
				for i, ref := range o.Kits {
					o.Kits[i], _ = lockfile.Spelled(o.Lock, ref)
				}
			}
			if _, err = option.BuildNetwork(cmd, net); err != nil {
				return err
			}
			if cmd.Flags().Changed("build-network") {
				o.BuildNetwork = net // none is an answer, too
			}
			if o.Args, err = option.Pairs(cmd, "--arg", args); err != nil {
				return err
			}
			if o.Env, err = option.Variables(cmd, option.Own(e.Lookup, env)); err != nil {
				return err
			}
			sb, err := e.Runtime.Open(cmd.Context(), rest[0])
			if err != nil {
				return err
			}
			p := progress.New(e, quiet)
			o.Progress = p.Event
			if !quiet {
				o.Granted = func(g *sandbox.Plan) { p.Clear(); summary.Granted(e.Stderr, g) }
			}
			err = sandbox.Recreate(cmd.Context(), sb, o)
			p.Done()
			if err == nil {
				fmt.Fprintln(e.Stdout, rest[0])
			}
			return err
		},
	}
	lock.Flags(cmd)
	f := cmd.Flags()
	option.KitVar(cmd, &kits)
	option.ArgVar(cmd, &args)
	option.EnvVar(cmd, &env)
	option.PullVar(cmd, &when, "always")
	option.BuildNetworkVar(cmd, &net)
	f.Lookup("build-network").Usage += " (default: as when the\nsandbox was made; for a KIT and a lock that it was not made of: none)"
	f.Lookup("build-network").DefValue = "" // which would be said instead
	f.BoolVar(&approve, "approve", false, "approve what the sandbox was not granted before")
	f.BoolVar(&privileged, "allow-privileged", false, "consent to Kits that ask for privileged@1")
	f.BoolVar(&passthrough, "allow-passthrough", false, creation.PassthroughHelp)
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress and no summary on stderr")
	return cmd
}
