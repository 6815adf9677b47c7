package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) run() *cobra.Command {
	var (
		m       making
		s       streams
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
sandbox is stopped when the command ends, and kept unless --rm is given.`,
		Example: `  kitbox run ./examples/hello
  kitbox run --rm ./examples/hello . -- there
  kitbox run --mask '.env*' -v ~/data:/data:ro ./examples/hello .
  kitbox run --rm --exec ./examples/hello --kit ./examples/tool -- tool`,
		RunE: func(cmd *cobra.Command, args []string) error {
			kit, path, rest, err := kitPathArgs(cmd, args)
			if err != nil {
				return err
			}
			if err := s.check(cmd, e); err != nil {
				return err
			}
			if command && len(rest) == 0 {
				return usageError(cmd, "--exec needs a command after --")
			}
			o, err := m.options(cmd, kit, path)
			if err != nil {
				return err
			}
			o.Ephemeral = rm
			c := &sandbox.Cmd{Args: rest, Workload: !command}
			return e.runOnce(cmd.Context(), o, c, s, m.quiet)
		},
	}
	m.flags(cmd)
	s.flags(cmd, true)
	cmd.Flags().BoolVar(&rm, "rm", false, "remove the sandbox when the command ends")
	cmd.Flags().BoolVar(&command, "exec", false, "run ARGs as the command, instead of the workload")
	return cmd
}

// meantSandbox adds to err, which says that there is no such Kit, that there is a
// sandbox of that name.
func (e *Env) meantSandbox(ctx context.Context, o sandbox.CreateOptions, err error) error {
	if !errors.Is(err, kiterr.ErrNotFound) || len(o.Kits) == 0 || !sandboxName().MatchString(o.Kits[0]) {
		return err
	}
	if _, oerr := e.Runtime.Open(ctx, o.Kits[0]); oerr != nil {
		return err
	}
	return fmt.Errorf("%s; but there is a sandbox %s: 'kitbox attach %s' runs it again: %w", withoutFamily(err.Error()), o.Kits[0], o.Kits[0], kiterr.ErrNotFound)
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
	return "", "", nil, usageError(cmd, "%q is one argument too many; what the workload gets stands after --", args[2])
}

// runOnce creates, runs and puts away.
func (e *Env) runOnce(ctx context.Context, o sandbox.CreateOptions, c *sandbox.Cmd, s streams, quiet bool) error {
	p := e.progress(quiet)
	o.Progress = p.event
	if !quiet {
		o.Granted = func(g *sandbox.Plan) { p.clear(); e.granted(g) }
	}
	sb, err := e.Runtime.Create(ctx, o)
	p.done()
	if !quiet {
		e.refusedHook(err)
	}
	var hook *sandbox.HookError
	if err != nil && sb != nil && !errors.As(err, &hook) {
		// Up, and of no use: it does not stay behind.
		return errors.Join(err, e.putAway(ctx, o, sb))
	}
	if err != nil && sb == nil {
		return e.meantSandbox(ctx, o, err)
	}
	if err != nil {
		// The sandbox is up, so the command may still do its work, but its
		// author should know that what it stands on is not complete.
		fmt.Fprintln(e.Stderr, message(err))
	}
	res, err := s.run(ctx, e, sb, c)

	if !quiet {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		e.refused(after, sb)
		cancel()
	}
	put := e.putAway(ctx, o, sb)
	if !quiet && !o.Ephemeral && put == nil {
		fmt.Fprintf(e.Stderr, "kitbox: %s is kept: \"kitbox attach %s\" runs it again, \"kitbox rm %s\" removes it\n", sb.Name(), sb.Name(), sb.Name())
	}
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		if put != nil {
			fmt.Fprintln(e.Stderr, message(put))
		}
		return kiterr.ExitStatus(res.ExitCode)
	}
	return put
}

// putAway removes or stops sb, which must be done although the command was
// interrupted.
func (e *Env) putAway(ctx context.Context, o sandbox.CreateOptions, sb sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if o.Ephemeral {
		if o.WorkspaceMode == sandbox.WorkspaceCloned {
			if u, err := sandbox.FindUnsaved(ctx, sb); err == nil && !u.Empty() {
				fmt.Fprintf(e.Stderr, "kitbox: gone with %s, since --rm was given:\n%s", sb.Name(), unsavedText(u, "  "))
			}
		}
		return sb.Remove(ctx)
	}
	return sb.Stop(ctx, sandbox.StopOptions{IfIdle: true})
}

func (e *Env) create() *cobra.Command {
	var m making
	cmd := &cobra.Command{
		Use:   "create [options] KIT [PATH]",
		Short: "Make a sandbox and leave it running, ready for exec",
		Long: `Makes a sandbox from KIT and the Kits given with --kit, runs their install and
startup hooks, and leaves it running. The workload is not started. Prints the
name of the sandbox.`,
		Example: `  kitbox create --name t ./examples/hello --kit ./examples/tool
  kitbox exec t -- cat /time.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			kit, path, rest, err := kitPathArgs(cmd, args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return usageError(cmd, "create starts no command; use run, or exec afterwards")
			}
			o, err := m.options(cmd, kit, path)
			if err != nil {
				return err
			}
			p := e.progress(m.quiet)
			o.Progress = p.event
			if !m.quiet {
				o.Granted = func(g *sandbox.Plan) { p.clear(); e.granted(g) }
			}
			sb, err := e.Runtime.Create(cmd.Context(), o)
			p.done()
			if !m.quiet {
				e.refusedHook(err)
			}
			if sb != nil {
				fmt.Fprintln(e.Stdout, sb.Name())
			}
			return err
		},
	}
	m.flags(cmd)
	return cmd
}

func (e *Env) plan() *cobra.Command {
	var (
		m      making
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "plan [options] KIT [PATH]",
		Short: "Show what a sandbox of these Kits would be granted, and make nothing",
		Example: `  kitbox plan ./examples/hello --kit ./examples/tool
  kitbox plan --json ./examples/hello | jq .network`,
		RunE: func(cmd *cobra.Command, args []string) error {
			kit, path, rest, err := kitPathArgs(cmd, args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return usageError(cmd, "plan takes no command")
			}
			o, err := m.options(cmd, kit, path)
			if err != nil {
				return err
			}
			p := e.progress(m.quiet)
			o.Progress = p.event
			g, err := e.Runtime.Plan(cmd.Context(), o)
			p.done()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, g)
			}
			writePlan(e.Stdout, g, "")
			return nil
		},
	}
	m.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}
