package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print one JSON document")
}

// alwaysJSON takes --json of a command that prints nothing else, so that a program
// can ask every command in the same way.
func alwaysJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("json", true, "print one JSON document, as always")
	return cmd
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (e *Env) list() *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the sandboxes",
		Example: `  kitbox ls
  kitbox ls --json | jq -r '.[] | select(.state == "stopped") | .name'`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := e.Runtime.List(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if infos == nil {
					infos = []sandbox.Info{}
				}
				return writeJSON(e.Stdout, infos)
			}
			if quiet {
				for _, i := range infos {
					fmt.Fprintln(e.Stdout, i.Name)
				}
				return nil
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tAGE\tKITS")
			for _, i := range infos {
				var kits []string
				for _, k := range i.Kits {
					kits = append(kits, printable(k.Ref))
				}
				state := string(i.State)
				if strings.HasPrefix(i.Reason, "idle") {
					state += " (idle)"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Name, state, age(time.Since(i.Created)), strings.Join(kits, ", "))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return cmd
}

func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (e *Env) status() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the state of one sandbox",
		Long: `Shows the state of one sandbox. Asking neither starts it nor keeps it running.

States: creating, starting, ready, busy (a command is in flight), stopped,
orphaned (it runs without its keeper and has no way out; the next command mends
that), broken (its creation was interrupted; remove it), unknown (its keeper
does not answer).`,
		Example:           `  kitbox status t --json | jq -r .state`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			i, err := sb.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, i)
			}
			writeInfo(e.Stdout, i)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeInfo(w io.Writer, i sandbox.Info) {
	line := func(label, text string) { fmt.Fprintf(w, "%-10s %s\n", label, printable(text)) }
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
		line("kit", fmt.Sprintf("%s (%s) %s", k.Ref, k.Kind, shortDigest(k.Digest)))
	}
	if i.Workspace != "" {
		line("workspace", i.Workspace+" at "+i.Root)
	}
	for _, p := range i.HostPorts {
		line("host port", hostPortText(p))
	}
	line("created", i.Created.Local().Format(time.RFC3339))
	if i.PID > 0 {
		line("pid", fmt.Sprintf("%d, keeper %d", i.PID, i.KeeperPID))
	}
	for _, s := range i.Skipped {
		line("skipped", skippedText(s))
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

func (e *Env) inspect() *cobra.Command {
	return alwaysJSON(&cobra.Command{
		Use:               "inspect NAME",
		Short:             "Print everything recorded of a sandbox, as JSON",
		Example:           `  kitbox inspect t | jq .plan.detail.machine.mounts`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			in, err := sandbox.Inspect(cmd.Context(), sb)
			if err != nil {
				return err
			}
			return writeJSON(e.Stdout, in)
		},
	})
}
