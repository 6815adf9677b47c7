package execcmd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/stream"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Logs makes "kitbox logs".
func Logs(e *world.Env) *cobra.Command {
	var asJSON, follow bool
	cmd := &cobra.Command{
		Use:   "logs NAME [ID]",
		Short: "Show what the hooks or a detached command of a sandbox printed",
		Long: `Shows every run of an install or startup hook, with its output and its end. With
ID, shows what a command printed that was started with "exec -d", byte for byte:
the last megabyte or more of it. What other commands print goes to their own
callers and is not kept.`,
		Example: `  kitbox logs t
  kitbox logs -f t k3x7qa`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || len(args) > 2:
				return argument.Mistake(cmd, "logs takes the NAME of a sandbox, and the ID of a job or none")
			case follow && len(args) == 1:
				return argument.Mistake(cmd, "only what a job prints can be followed; which ID?")
			case asJSON && len(args) == 2:
				return argument.Mistake(cmd, "what a job printed is no JSON; 'kitbox job ls --json' describes it")
			}
			return nil
		},
		ValidArgsFunction: jobNames(e, false),
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, rest []string) error {
			if len(rest) == 1 {
				d, err := sandbox.Detach(sb)
				if err != nil {
					return err
				}
				if err := d.JobOutput(cmd.Context(), rest[0], follow, e.Stdout); err != nil {
					return err
				}
				return cmd.Context().Err()
			}
			runs, err := sandbox.HookRuns(cmd.Context(), sb)
			if err != nil {
				return err
			}
			if asJSON {
				if runs == nil {
					runs = []sandbox.HookRun{}
				}
				return output.JSON(e.Stdout, runs)
			}
			for _, r := range runs {
				writeRun(e, r)
			}
			return nil
		}),
	}
	option.JSONVar(cmd, &asJSON)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	return cmd
}

func writeRun(e *world.Env, r sandbox.HookRun) {
	end := fmt.Sprintf("status %d", r.ExitCode)
	if r.Error != "" {
		end = output.Printable(r.Error)
	}
	fmt.Fprintf(e.Stdout, "== %s %s %d of %s: %s after %s\n", r.Time.Local().Format(time.RFC3339), summary.HookList(r.Phase), r.Index,
		output.Printable(r.Kit), end, time.Duration(r.Millis)*time.Millisecond)
	if r.Truncated {
		fmt.Fprintln(e.Stdout, "[the beginning is not kept]")
	}
	for l := range strings.Lines(r.Output) {
		fmt.Fprintln(e.Stdout, output.Printable(l))
	}
}

// detach starts c and leaves it.
func detach(e *world.Env, cmd *cobra.Command, s *stream.Streams, sb sandbox.Sandbox, c *sandbox.Cmd) error {
	if s.Asked() {
		return argument.Mistake(cmd, "-d goes with neither -i nor -t: nobody is there to type")
	}
	d, err := sandbox.Detach(sb)
	if err != nil {
		return err
	}
	id, err := d.Detach(cmd.Context(), c)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(e.Stdout, id); err != nil {
		return fmt.Errorf("job %s runs, but its id could not be written: %w: %w", id, err, kiterr.ErrLost)
	}
	return nil
}

// Job makes "kitbox job".
func Job(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "job",
		Short: "List and stop the detached commands of a sandbox",
	}, jobs(e), stopJob(e))
}

func jobs(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls NAME",
		Short: "List the commands that were started with exec -d",
		Long: `Lists the commands that were started with "exec -d", oldest first. One that runs
counts as a session: its sandbox is not stopped for want of one. It ends by itself,
with its sandbox, or by "job stop"; the last hundred that have ended are kept with
what they printed.`,
		Example:           `  kitbox job ls t --json | jq -r '.[] | select(.running) | .id'`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := detacher(e, cmd, args[0])
			if err != nil {
				return err
			}
			jobs, err := d.Jobs(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, jobs)
			}
			w := output.Table(e.Stdout, "ID", "STATE", "AGE", "COMMAND")
			for _, j := range jobs {
				state := "running"
				switch {
				case j.Error != "":
					state = "ended: " + j.Error
				case j.Signal != "":
					state = "ended by " + j.Signal
				case j.ExitCode != nil:
					state = fmt.Sprintf("ended with status %d", *j.ExitCode)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", j.ID, output.Printable(state), output.Age(time.Since(j.Started)), output.Printable(strings.Join(j.Args, " ")))
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func stopJob(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "stop NAME ID...",
		Short:   "End detached commands and their children",
		Example: `  kitbox job stop t k3x7qa`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return argument.Mistake(cmd, "stop takes the NAME of a sandbox and the ID of a job")
			}
			return nil
		},
		ValidArgsFunction: jobNames(e, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := detacher(e, cmd, args[0])
			if err != nil {
				return err
			}
			for _, id := range args[1:] {
				if err := d.StopJob(cmd.Context(), id); err != nil {
					return fmt.Errorf("sandbox %s: %w", args[0], err)
				}
				fmt.Fprintln(e.Stdout, id)
			}
			return nil
		},
	}
}

func detacher(e *world.Env, cmd *cobra.Command, name string) (sandbox.Detacher, error) {
	sb, err := e.Runtime.Open(cmd.Context(), name)
	if err != nil {
		return nil, err
	}
	return sandbox.Detach(sb)
}

// jobNames completes the name of a sandbox and then the ids of its jobs, of those
// that run or of all; none twice.
func jobNames(e *world.Env, running bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return e.Names(cmd, args, typed)
		}
		d, err := detacher(e, cmd, args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		jobs, err := d.Jobs(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var ids []string
		for _, j := range jobs {
			if (j.Running || !running) && !slices.Contains(args[1:], j.ID) {
				ids = append(ids, j.ID)
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
