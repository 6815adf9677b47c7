package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) restart() *cobra.Command {
	var (
		grace  time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "restart [options] NAME...",
		Short: "Stop a sandbox and start it again",
		Long: `Ends every process of the sandbox and boots it again with everything it had. One
that is stopped is started. When that fails the error says that it is down.`,
		Example: `  kitbox restart t
  kitbox restart --json t | jq -r '.[].pid'`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(cmd, "grace", grace); err != nil {
				return err
			}
			return e.each(cmd, args, func(sb sandbox.Sandbox) error {
				o := sandbox.StopOptions{Grace: grace}
				if grace <= 0 {
					o.Grace = -1
				}
				if err := sb.Stop(cmd.Context(), o); err != nil {
					return err
				}
				if err := sb.Start(cmd.Context()); err != nil {
					return fmt.Errorf("sandbox %s is stopped and did not come up again: %w", sb.Name(), err)
				}
				return nil
			})
		},
	}
	quietFlag(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long processes get between TERM and KILL")
	return cmd
}

func (e *Env) recreate() *cobra.Command {
	var (
		kits, args, env            []string
		approve, privileged, quiet bool
		when                       string
		passthrough                bool
	)
	cmd := &cobra.Command{
		Use:   "recreate [options] NAME [KIT]",
		Short: "Give a sandbox a fresh file system, keeping its volumes",
		Long: `Composes the sandbox's Kits again, as they are now, and gives it a fresh file
system; with KIT, those Kits instead. Volumes, host mounts, published ports and
the workspace stay. Install hooks run once in the life of a sandbox: not again, nor
those of Kits that are new to it, which status says then; what they wrote outside
volumes is gone.

It is refused before anything changes when a volume is asked for on other terms
than the one that is kept (status 2), and when the Kits ask for more than was
granted (status 3, with what is new), unless --approve is given.`,
		Example: `  kitbox recreate t
  kitbox recreate t ./examples/hello --kit ./examples/tool --approve`,
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, rest []string) error {
			if len(rest) < 1 || len(rest) > 2 {
				return usageError(cmd, "recreate takes the NAME of a sandbox and at most one KIT")
			}
			if len(kits) > 0 && len(rest) == 1 {
				return usageError(cmd, "--kit adds to a KIT; name the workload too")
			}
			if err := pullPolicy(cmd, when); err != nil {
				return err
			}
			o := sandbox.RecreateOptions{AllowWidening: approve, AllowPrivileged: privileged, AllowPassthrough: passthrough, Pull: when}
			if len(rest) == 2 {
				o.Kits = append([]string{rest[1]}, kits...)
			}
			var err error
			if o.Args, err = pairs(cmd, "--arg", args); err != nil {
				return err
			}
			if o.Env, err = variables(cmd, env); err != nil {
				return err
			}
			sb, err := e.Runtime.Open(cmd.Context(), rest[0])
			if err != nil {
				return err
			}
			p := e.progress(quiet)
			o.Progress = p.event
			if !quiet {
				o.Granted = func(g *sandbox.Plan) { p.clear(); e.granted(g) }
			}
			err = sandbox.Recreate(cmd.Context(), sb, o)
			p.done()
			if err == nil {
				fmt.Fprintln(e.Stdout, rest[0])
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&kits, "kit", nil, "add another Kit to KIT (repeatable)")
	f.StringArrayVar(&args, "arg", nil, "`N=VALUE` for the arg N (repeatable)")
	f.StringArrayVar(&env, "env", nil, "`N=VALUE` for the variable N (repeatable)")
	pullFlag(cmd, &when, "always")
	f.BoolVar(&approve, "approve", false, "approve what the sandbox was not granted before")
	f.BoolVar(&privileged, "allow-privileged", false, "consent to Kits that ask for privileged@1")
	f.BoolVar(&passthrough, "allow-passthrough", false, passthroughHelp)
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress and no summary on stderr")
	return cmd
}
