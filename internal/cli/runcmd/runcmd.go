// Package runcmd is the commands that compose Kits: run, create and plan.
package runcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/creation"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/progress"
	"github.com/kitbox-dev/kitbox/internal/cli/stream"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Run makes "kitbox run".
func Run(e *world.Env) *cobra.Command {
	var (
		m       creation.Options
		s       stream.Streams
		rm      bool
		command bool
	)
	cmd := &cobra.Command{
		Use:   "run [options] KIT [PATH] [-- ARG...]",
		Short: "Make a sandbox from Kits and run the workload in it",
		Long: `Makes a sandbox from KIT and the Kits given with --kit, and runs its workload
there. KIT is a directory that holds a Kit, which is built when it has changed, an
image of the local store or a registry, or a directory in a git repository,
git+https://HOST/REPOSITORY#ref=TAG&dir=PATH. PATH is a directory of this machine that
becomes the workspace; files made there belong to you. The hooks and the
configuration of its Git repository are read-only there, since your own git runs
them. With --clone the workspace is a clone of PATH instead, with nothing that is not
committed; "kitbox workspace" gets its commits out.

Every ARG is appended to the workload's launch command. With --exec, the ARGs
are the command and the workload is not started.

What the Kits were granted is shown on stderr first, and what was refused on
the way is shown at the end; stdout carries only what the command prints. The
sandbox is stopped when the command ends, and kept unless --rm is given. With --rm
and --clone, what only the clone has is listed before it goes; when that cannot be done
the sandbox is kept.`,
		Example: `  kitbox run ./examples/hello
  kitbox run --rm ./examples/hello . -- there
  kitbox run --mask '.env*' -v ~/data:/data:ro ./examples/hello .
  kitbox run --rm --exec ./examples/hello --kit ./examples/tool -- tool`,
		RunE: func(cmd *cobra.Command, args []string) error {
			kit, path, rest, err := kitPathArgs(cmd, args)
			if err != nil {
				return err
			}
			if err := s.Check(cmd, e); err != nil {
				return err
			}
			if command && len(rest) == 0 {
				return argument.Mistake(cmd, "--exec needs a command after --")
			}
			o, err := m.Read(cmd, e.Lookup, kit, path)
			if err != nil {
				return err
			}
			// What only a clone has must not go before it was seen, and an ephemeral
			// sandbox cannot be kept.
			o.Passing = rm && o.WorkspaceMode == sandbox.WorkspaceCloned
			o.Ephemeral = rm && !o.Passing
			c := &sandbox.Cmd{Args: rest, Workload: !command}
			return runOnce(cmd.Context(), e, o, c, s, m.Quiet)
		},
	}
	m.Flags(cmd)
	s.Flags(cmd, true)
	cmd.Flags().BoolVar(&rm, "rm", false, "remove the sandbox when the command ends")
	cmd.Flags().BoolVar(&command, "exec", false, "run ARGs as the command, instead of the workload")
	return cmd
}

// meantSandbox adds to err, which says that there is no such Kit, that there is a
// sandbox of that name.
func meantSandbox(ctx context.Context, e *world.Env, o sandbox.CreateOptions, err error) error {
	if !errors.Is(err, kiterr.ErrNotFound) || len(o.Kits) == 0 || sandbox.CheckName(o.Kits[0]) != nil {
		return err
	}
	if _, oerr := e.Runtime.Open(ctx, o.Kits[0]); oerr != nil {
		return err
	}
	return fmt.Errorf("%s; but there is a sandbox %s: 'kitbox attach %s' runs it again: %w", output.WithoutFamily(err.Error()), o.Kits[0], o.Kits[0], kiterr.ErrNotFound)
}

// kitPathArgs splits KIT [PATH] [-- ARG...].
func kitPathArgs(cmd *cobra.Command, args []string) (kit, path string, rest []string, err error) {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		args, rest = args[:n], args[n:]
	}
	switch len(args) {
	case 0: // the lock names it
		return "", "", rest, nil
	case 1:
		return args[0], "", rest, nil
	case 2:
		return args[0], args[1], rest, nil
	}
	return "", "", nil, argument.Mistake(cmd, "%q is one argument too many; what the workload gets stands after --", args[2])
}

// withoutCommand reads the options and KIT [PATH] of a command that runs none; instead
// is said when one is given.
func withoutCommand(cmd *cobra.Command, e *world.Env, m *creation.Options, args []string, instead string) (sandbox.CreateOptions, error) {
	kit, path, rest, err := kitPathArgs(cmd, args)
	if err == nil && len(rest) > 0 {
		err = argument.Mistake(cmd, "%s", instead)
	}
	if err != nil {
		return sandbox.CreateOptions{}, err
	}
	return m.Read(cmd, e.Lookup, kit, path)
}

// created makes a sandbox, and shows unless quiet what it does, what the Kits are
// granted, and what an install hook that failed was refused.
func created(ctx context.Context, e *world.Env, o sandbox.CreateOptions, quiet bool) (sandbox.Sandbox, error) {
	p := progress.New(e, quiet)
	o.Progress = p.Event
	if !quiet {
		o.Granted = func(g *sandbox.Plan) { p.Clear(); summary.Granted(e.Stderr, g) }
	}
	sb, err := e.Runtime.Create(ctx, o)
	p.Done()
	if !quiet {
		summary.RefusedHook(e.Stderr, err)
	}
	return sb, err
}

// runOnce creates, runs and puts away.
func runOnce(ctx context.Context, e *world.Env, o sandbox.CreateOptions, c *sandbox.Cmd, s stream.Streams, quiet bool) error {
	sb, err := created(ctx, e, o, quiet)
	var hook *sandbox.HookError
	if err != nil && sb != nil && !errors.As(err, &hook) {
		// Up, and of no use: it does not stay behind.
		return errors.Join(err, putAway(ctx, e, o, sb))
	}
	if err != nil && sb == nil {
		return meantSandbox(ctx, e, o, err)
	}
	if err != nil {
		// The sandbox is up, so the command may still do its work, but its
		// author should know that what it stands on is not complete.
		fmt.Fprintln(e.Stderr, output.Message(err))
	}
	res, err := s.Run(ctx, e, sb, c)

	if !quiet {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		summary.Refused(after, e.Stderr, sb)
		cancel()
	}
	put := putAway(ctx, e, o, sb)
	if !quiet && !o.Ephemeral && !o.Passing && put == nil {
		fmt.Fprintf(e.Stderr, "kitbox: %s is kept: \"kitbox attach %s\" runs it again, \"kitbox rm %s\" removes it\n", sb.Name(), sb.Name(), sb.Name())
	}
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		if put != nil {
			fmt.Fprintln(e.Stderr, output.Message(put))
		}
		return kiterr.ExitStatus(res.ExitCode)
	}
	return put
}

// putAway removes or stops sb, which must be done although the command was
// interrupted.
func putAway(ctx context.Context, e *world.Env, o sandbox.CreateOptions, sb sandbox.Sandbox) error {
	gone := o.Ephemeral
	var unseen error
	if o.Passing {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		u, err := sandbox.FindUnsaved(bound, sb)
		cancel()
		if gone = err == nil; !gone {
			unseen = fmt.Errorf("%s is kept in spite of --rm, since what only its clone has cannot be listed: %w; 'kitbox workspace unsaved %s' tries again, and 'kitbox rm --force %s' removes it", sb.Name(), err, sb.Name(), sb.Name())
		} else if !u.Empty() {
			fmt.Fprintf(e.Stderr, "kitbox: gone with %s, since --rm was given:\n%s", sb.Name(), summary.Unsaved(u, "  "))
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if gone {
		return sb.Remove(ctx)
	}
	return errors.Join(unseen, sb.Stop(ctx, sandbox.StopOptions{IfIdle: true}))
}

// Create makes "kitbox create".
func Create(e *world.Env) *cobra.Command {
	var m creation.Options
	cmd := &cobra.Command{
		Use:   "create [options] KIT [PATH]",
		Short: "Make a sandbox and leave it running, ready for exec",
		Long: `Makes a sandbox from KIT and the Kits given with --kit, runs their install and
startup hooks, and leaves it running. The workload is not started. Prints the
name of the sandbox.`,
		Example: `  kitbox create --name t ./examples/hello --kit ./examples/tool
  kitbox exec t -- cat /time.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := withoutCommand(cmd, e, &m, args, "create starts no command; use run, or exec afterwards")
			if err != nil {
				return err
			}
			sb, err := created(cmd.Context(), e, o, m.Quiet)
			if sb != nil {
				fmt.Fprintln(e.Stdout, sb.Name())
			}
			return err
		},
	}
	m.Flags(cmd)
	return cmd
}

// Plan makes "kitbox plan".
func Plan(e *world.Env) *cobra.Command {
	var (
		m      creation.Options
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "plan [options] KIT [PATH]",
		Short: "Show what a sandbox of these Kits would be granted, and make nothing",
		Example: `  kitbox plan ./examples/hello --kit ./examples/tool
  kitbox plan --json ./examples/hello | jq .network`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := withoutCommand(cmd, e, &m, args, "plan takes no command")
			if err != nil {
				return err
			}
			p := progress.New(e, m.Quiet)
			o.Progress = p.Event
			g, err := e.Runtime.Plan(cmd.Context(), o)
			p.Done()
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, g)
			}
			summary.Plan(e.Stdout, g, "")
			return nil
		},
	}
	m.Flags(cmd)
	option.JSONVar(cmd, &asJSON)
	return cmd
}
