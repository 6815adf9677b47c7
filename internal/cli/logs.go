package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) logs() *cobra.Command {
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
				return usageError(cmd, "logs takes the NAME of a sandbox, and the ID of a job or none")
			case follow && len(args) == 1:
				return usageError(cmd, "only what a job prints can be followed; which ID?")
			case asJSON && len(args) == 2:
				return usageError(cmd, "what a job printed is no JSON; 'kitbox job ls --json' describes it")
			}
			return nil
		},
		ValidArgsFunction: e.jobNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				d, err := sandbox.Detach(sb)
				if err != nil {
					return err
				}
				if err := d.JobOutput(cmd.Context(), args[1], follow, e.Stdout); err != nil {
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
				return writeJSON(e.Stdout, runs)
			}
			for _, r := range runs {
				e.writeRun(r)
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	return cmd
}

func (e *Env) writeRun(r sandbox.HookRun) {
	list := "install"
	if r.Phase == "runtime" {
		list = "startup"
	}
	end := fmt.Sprintf("status %d", r.ExitCode)
	if r.Error != "" {
		end = printable(r.Error)
	}
	fmt.Fprintf(e.Stdout, "== %s %s %d of %s: %s after %s\n", r.Time.Local().Format(time.RFC3339), list, r.Index,
		printable(r.Kit), end, time.Duration(r.Millis)*time.Millisecond)
	if r.Truncated {
		fmt.Fprintln(e.Stdout, "[the beginning is not kept]")
	}
	for l := range strings.Lines(r.Output) {
		fmt.Fprintln(e.Stdout, printable(l))
	}
}

// detach starts c and leaves it.
func (e *Env) detach(cmd *cobra.Command, s *streams, sb sandbox.Sandbox, c *sandbox.Cmd) error {
	if s.tty || s.interactive {
		return usageError(cmd, "-d goes with neither -i nor -t: nobody is there to type")
	}
	d, err := sandbox.Detach(sb)
	if err != nil {
		return err
	}
	id, err := d.Detach(cmd.Context(), c)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(e.Stdout, id)
	return err
}

func (e *Env) job() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "List and stop the detached commands of a sandbox",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.jobs(), e.stopJob())
	return cmd
}

func (e *Env) jobs() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls NAME",
		Short: "List the commands that were started with exec -d",
		Long: `Lists the commands that were started with "exec -d", oldest first. One that runs
counts as a session: its sandbox is not stopped for want of one. It ends by itself,
with its sandbox, or by "job stop"; the last hundred that have ended are kept with
what they printed.`,
		Example:           `  kitbox job ls t --json | jq -r '.[] | select(.running) | .id'`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.detacher(cmd, args[0])
			if err != nil {
				return err
			}
			jobs, err := d.Jobs(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, jobs)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "ID\tSTATE\tAGE\tCOMMAND")
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
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", j.ID, printable(state), age(time.Since(j.Started)), printable(strings.Join(j.Args, " ")))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) stopJob() *cobra.Command {
	return &cobra.Command{
		Use:     "stop NAME ID...",
		Short:   "End detached commands and their children",
		Example: `  kitbox job stop t k3x7qa`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError(cmd, "stop takes the NAME of a sandbox and the ID of a job")
			}
			return nil
		},
		ValidArgsFunction: e.jobNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.detacher(cmd, args[0])
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

func (e *Env) detacher(cmd *cobra.Command, name string) (sandbox.Detacher, error) {
	sb, err := e.Runtime.Open(cmd.Context(), name)
	if err != nil {
		return nil, err
	}
	return sandbox.Detach(sb)
}

// jobNames completes the name of a sandbox and then the ids of its jobs.
func (e *Env) jobNames(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return e.names(cmd, args, typed)
	}
	d, err := e.detacher(cmd, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	jobs, err := d.Jobs(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []string
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
