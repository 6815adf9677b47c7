package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) policy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show what a sandbox may reach, and what it tried to",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.policyLog(), e.policyList())
	return cmd
}

func (e *Env) policyLog() *cobra.Command {
	var asJSON, follow, refused bool
	cmd := &cobra.Command{
		Use:   "log [options] NAME",
		Short: "Show what was allowed and refused, and why",
		Long: `Shows the decisions of the sandbox's boundary, oldest first. With --json they are
one array; with --json and --follow they are one object a line, without end.`,
		Example: `  kitbox policy log t --refused
  kitbox policy log t --json | jq '.[] | select(.allowed | not) | .host'`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all := []sandbox.PolicyEvent{}
			log := sandbox.PolicyLog(cmd.Context(), sb, sandbox.PolicyLogOptions{Follow: follow})
			if !asJSON {
				log = onceEach(log)
			}
			for ev, err := range log {
				if err != nil {
					return err
				}
				if refused && ev.Allowed {
					continue
				}
				switch {
				case asJSON && follow:
					b, err := json.Marshal(ev)
					if err != nil {
						return err
					}
					if _, err := fmt.Fprintf(e.Stdout, "%s\n", b); err != nil {
						return err
					}
				case asJSON:
					all = append(all, ev)
				default:
					if err := writeEvent(e.Stdout, ev); err != nil {
						return err
					}
				}
			}
			if asJSON && !follow {
				return writeJSON(e.Stdout, all)
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until interrupted")
	cmd.Flags().BoolVar(&refused, "refused", false, "refusals only")
	return cmd
}

func writeEvent(w io.Writer, ev sandbox.PolicyEvent) error {
	verdict := map[string]string{"allow": "allowed", "deny": "refused"}[ev.Verdict]
	if verdict == "" {
		verdict = ev.Verdict
	}
	times := ""
	if ev.Count > 1 {
		times = fmt.Sprintf(" (%d times)", ev.Count)
	}
	_, err := fmt.Fprintf(w, "%s %-7s %-7s %s: %s%s\n", ev.Time.Local().Format("15:04:05.000"), verdict, ev.Phase,
		printable(destination(ev)), printable(ev.Reason), times)
	return err
}

func (e *Env) policyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls NAME",
		Short: "List the rules of a sandbox, with who asked for each",
		Long: `Lists the rules of a sandbox. A denial wins over every allow; what no rule
allows is refused, and that last rule is listed too.`,
		Example:           `  kitbox policy ls t`,
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
			rules := in.Plan.Network
			for _, phase := range []string{"install", "runtime"} {
				rules = append(rules, sandbox.NetworkGrant{Phase: phase, Pattern: "**", Source: "default"})
			}
			if asJSON {
				return writeJSON(e.Stdout, rules)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "PHASE\tVERDICT\tPATTERN\tSOURCE")
			for _, r := range rules {
				verdict := "deny"
				if r.Allow {
					verdict = "allow"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Phase, verdict, printable(r.Pattern), printable(r.Source))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
