package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) stop() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop [options] NAME...",
		Short: "End every process of a sandbox and keep its files",
		Example: `  kitbox stop t
  kitbox stop --grace 0s t     kill at once`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(cmd, "grace", grace); err != nil {
				return err
			}
			o := sandbox.StopOptions{Grace: grace}
			if grace <= 0 {
				o.Grace = -1
			}
			return e.each(cmd, args, func(sb sandbox.Sandbox) error { return sb.Stop(cmd.Context(), o) })
		},
	}
	quietFlag(cmd)
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long processes get between TERM and KILL")
	return cmd
}

func (e *Env) start() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "start NAME...",
		Short:             "Boot a stopped sandbox with everything it had",
		Example:           `  kitbox stop t && kitbox start t`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.each(cmd, args, func(sb sandbox.Sandbox) error { return sb.Start(cmd.Context()) })
		},
	}
	quietFlag(cmd)
	return cmd
}

func (e *Env) remove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove a sandbox, running or not; its volumes are kept",
		Long: `Stops the sandbox and deletes it with all it wrote, except its volumes and a
workspace that is a directory of this machine: a sandbox that is created later
under the same name has the volumes again.

A cloned workspace goes too. Commits that only it has, and changes that are not
committed, are listed first: at a terminal rm asks then, and otherwise it removes
nothing and ends with status 2, unless --force is given. "kitbox workspace
bundle" gets the commits out, and "kitbox cp" what is not committed.`,
		Example: `  kitbox rm t
  kitbox rm --force t     whatever its workspace holds`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.each(cmd, args, func(sb sandbox.Sandbox) error {
				if !force {
					if err := e.loses(cmd, sb); err != nil {
						return err
					}
				}
				return sb.Remove(cmd.Context())
			})
		},
	}
	quietFlag(cmd)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not look for what would be lost, and do not ask")
	return cmd
}

func atLeastOneName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError(cmd, "%s takes the NAME of a sandbox", cmd.Name())
	}
	return nil
}

func quietFlag(cmd *cobra.Command) {
	cmd.Flags().BoolP("quiet", "q", false, "do not print the names")
}

// each does f to every named sandbox, whatever became of the ones before, and
// prints the names that it worked for, or with --json what they are like now.
func (e *Env) each(cmd *cobra.Command, names []string, f func(sandbox.Sandbox) error) error {
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
		errs = append(errs, writeJSON(e.Stdout, infos))
	}
	return errors.Join(errs...)
}
