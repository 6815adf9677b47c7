// Package lookcmd is the commands that look at sandboxes and change nothing: ls, status,
// inspect and events.
package lookcmd

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// List makes "kitbox ls".
func List(e *world.Env) *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the sandboxes",
		Example: `  kitbox ls
  kitbox ls --json | jq -r '.[] | select(.state == "stopped") | .name'`,
		Args: argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := e.Runtime.List(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if infos == nil {
					infos = []sandbox.Info{}
				}
				return output.JSON(e.Stdout, infos)
			}
			if quiet {
				for _, i := range infos {
					fmt.Fprintln(e.Stdout, i.Name)
				}
				return nil
			}
			w := output.Table(e.Stdout, "NAME", "STATE", "AGE", "KITS")
			for _, i := range infos {
				var kits []string
				for _, k := range i.Kits {
					kits = append(kits, output.Printable(k.Ref))
				}
				state := string(i.State)
				if strings.HasPrefix(i.Reason, "idle") {
					state += " (idle)"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Name, state, output.Age(time.Since(i.Created)), strings.Join(kits, ", "))
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return cmd
}

// Status makes "kitbox status".
func Status(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the state of one sandbox",
		Long: `Shows the state of one sandbox, and when it is stopped if nobody uses it. Asking
neither starts it nor keeps it running.

States: creating, starting, ready, busy (a command is in flight), stopped,
orphaned (it runs without its keeper and has no way out; the next command mends
that), broken (its creation was interrupted; remove it), unknown (its keeper
does not answer).`,
		Example:           `  kitbox status t --json | jq -r .state`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			i, err := sb.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, i)
			}
			writeInfo(e.Stdout, i)
			return nil
		}),
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func writeInfo(w io.Writer, i sandbox.Info) {
	line := func(label, text string) { fmt.Fprintf(w, "%-10s %s\n", label, output.Printable(text)) }
	line("name", i.Name)
	line("id", i.ID)
	state := string(i.State)
	if i.Commands > 0 {
		state += fmt.Sprintf(" (%d in flight)", i.Commands)
	}
	if i.Reason != "" {
		state += ", " + i.Reason
	}
	line("state", state)
	if i.Phase != "" {
		line("phase", i.Phase)
	}
	for _, k := range i.Kits {
		line("kit", fmt.Sprintf("%s (%s) %s", k.Ref, k.Kind, output.Digest(k.Digest)))
	}
	if i.Workspace != "" {
		line("workspace", i.Workspace+" at "+i.Root)
	}
	for _, p := range i.HostPorts {
		line("host port", summary.HostPort(p))
	}
	for _, u := range i.GPUs {
		line("gpu", summary.GPU(u))
	}
	if text := idle(i, time.Now()); text != "" {
		line("idle", text)
	}
	line("created", i.Created.Local().Format(time.RFC3339))
	if i.PID > 0 {
		line("pid", fmt.Sprintf("%d, keeper %d", i.PID, i.KeeperPID))
	}
	for _, s := range i.Skipped {
		line("skipped", summary.Skipped(s))
	}
	for _, u := range i.Unenforced {
		line("no limit", u)
	}
	for _, p := range i.Problems {
		if u, ok := strings.CutPrefix(p, "limit does not hold: "); ok && slices.Contains(i.Unenforced, u) {
			continue // said above
		}
		line("problem", p)
	}
}

// idle tells when a sandbox is stopped for want of a session, of one that runs.
func idle(i sandbox.Info, now time.Time) string {
	limit := (time.Duration(i.IdleMs) * time.Millisecond).String()
	switch {
	case i.KeeperPID == 0:
		return "" // nobody sees to it
	case i.IdleMs == 0:
		return "never stopped for want of a session"
	case i.StopsAt.IsZero():
		return "stopped " + limit + " after its last session"
	}
	return fmt.Sprintf("for %s, stops in %s at %s unless a session comes", now.Sub(i.IdleSince).Round(time.Second), max(0, i.StopsAt.Sub(now)).Round(time.Second),
		i.StopsAt.Local().Format(time.RFC3339))
}

// Inspect makes "kitbox inspect".
func Inspect(e *world.Env) *cobra.Command {
	return option.AlwaysJSON(&cobra.Command{
		Use:               "inspect NAME",
		Short:             "Print everything recorded of a sandbox, as JSON",
		Example:           `  kitbox inspect t | jq .plan.detail.machine.mounts`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			in, err := sandbox.Inspect(cmd.Context(), sb)
			if err != nil {
				return err
			}
			return output.JSON(e.Stdout, in)
		}),
	})
}
