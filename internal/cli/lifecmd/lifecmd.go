// Package lifecmd is the commands about the life of sandboxes that exist: stop, start,
// restart, recreate and rm.
package lifecmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// interrupted reports whether err is the end of ctx and nothing else.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// Stop makes "kitbox stop".
func Stop(e *world.Env) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop [options] NAME...",
		Short: "End every process of a sandbox and keep its files",
		Example: `  kitbox stop t
  kitbox stop --grace 0s t     kill at once`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := option.NotNegative(cmd, "grace", grace); err != nil {
				return err
			}
			o := sandbox.StopOptions{Grace: grace}
			if grace <= 0 {
				o.Grace = -1
			}
			return each(e, cmd, args, func(sb sandbox.Sandbox) error { return sb.Stop(cmd.Context(), o) })
		},
	}
	quietFlag(cmd)
	graceFlag(cmd, &grace)
	return cmd
}

// Start makes "kitbox start".
func Start(e *world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "start NAME...",
		Short:             "Boot a stopped sandbox with everything it had",
		Example:           `  kitbox stop t && kitbox start t`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(e, cmd, args, func(sb sandbox.Sandbox) error { return sb.Start(cmd.Context()) })
		},
	}
	quietFlag(cmd)
	return cmd
}

func atLeastOneName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return argument.Mistake(cmd, "%s takes the NAME of a sandbox", cmd.Name())
	}
	return nil
}

func quietFlag(cmd *cobra.Command) {
	cmd.Flags().BoolP("quiet", "q", false, "do not print the names")
}

func graceFlag(cmd *cobra.Command, v *time.Duration) {
	cmd.Flags().DurationVar(v, "grace", 10*time.Second, "`TIME` that processes get between TERM and KILL")
}

// each does f to every named sandbox, whatever became of the ones before, and
// prints the names that it worked for, or with --json what they are like now.
func each(e *world.Env, cmd *cobra.Command, names []string, f func(sandbox.Sandbox) error) error {
	var errs []error
	quiet, _ := cmd.Flags().GetBool("quiet")
	asJSON, _ := cmd.Flags().GetBool("json")
	infos := []sandbox.Info{}
	for _, n := range names {
		sb, err := e.Runtime.Open(cmd.Context(), n)
		if err == nil {
			err = f(sb)
		}
		if interrupted(cmd.Context(), err) {
			return err // whoever interrupts means the others, too
		}
		var info sandbox.Info
		if err == nil && asJSON {
			info, err = sb.Status(cmd.Context())
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case asJSON:
			infos = append(infos, info)
		case !quiet:
			fmt.Fprintln(e.Stdout, n)
		}
	}
	if asJSON {
		errs = append(errs, output.JSON(e.Stdout, infos))
	}
	return errors.Join(errs...)
}

// Restart makes "kitbox restart".
func Restart(e *world.Env) *cobra.Command {
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
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := option.NotNegative(cmd, "grace", grace); err != nil {
				return err
			}
			return each(e, cmd, args, func(sb sandbox.Sandbox) error {
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
	option.JSONVar(cmd, &asJSON)
	graceFlag(cmd, &grace)
	return cmd
}
