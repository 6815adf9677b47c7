// Package policycmd is "kitbox policy": what the operator says that sandboxes may reach,
// and what they tried to.
package policycmd

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// New makes "kitbox policy".
func New(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "policy",
		Short: "Say and show what sandboxes may reach, and what they tried to",
	}, policyList(e), policyAllow(e), policyDeny(e), policyRemove(e), policyCheck(e), policyLog(e))
}

func policyLog(e *world.Env) *cobra.Command {
	var asJSON, follow, refused bool
	cmd := &cobra.Command{
		Use:   "log [options] NAME",
		Short: "Show what was allowed and refused, and why",
		Long: `Shows the decisions of the sandbox's boundary, oldest first. With --json they are
one array; with --json and --follow they are one object a line, without end.`,
		Example: `  kitbox policy log t --refused
  kitbox policy log t --json | jq '.[] | select(.allowed | not) | .host'`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			all := output.Array{W: e.Stdout}
			log := sandbox.PolicyLog(cmd.Context(), sb, sandbox.PolicyLogOptions{Follow: follow})
			if !asJSON {
				log = summary.OnceEach(log)
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
					if err := all.Add(ev); err != nil {
						return err
					}
				default:
					if err := writeEvent(e.Stdout, ev); err != nil {
						return err
					}
				}
			}
			if err := cmd.Context().Err(); err != nil || !asJSON || follow {
				return err
			}
			return all.Close()
		}),
	}
	option.JSONVar(cmd, &asJSON)
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
	if ev.Credential != "" {
		times = ", with the credential " + ev.Credential + times
	}
	_, err := fmt.Fprintf(w, "%s %-7s %-7s %s: %s%s\n", clock(ev.Time, time.Now()), verdict, ev.Phase,
		output.Printable(summary.Destination(ev)), output.Printable(ev.Reason), output.Printable(times))
	return err
}

// clock is the time of t, with its date unless that is today's.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

func policyList(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAME]",
		Short: "List the rules of a sandbox, or of all, with who asked for each",
		Long: `Lists every rule that the sandbox NAME is judged by: those of its Kits, those of
"kitbox policy allow" and "deny" for all sandboxes and for this one. Without
NAME, lists the rules for all sandboxes. A denial wins over every allow; what no
rule allows is refused, and that last rule is listed too.`,
		Example: `  kitbox policy ls t
  kitbox policy ls --json | jq '.[] | select(.allow)'`,
		Args:              argument.AtMostOne("NAME"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := sandbox.PolicyOf(e.Runtime)
			if err != nil {
				return err
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			rules, err := o.Rules(cmd.Context(), name)
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, rules)
			}
			w := output.Table(e.Stdout, "PHASE", "VERDICT", "PATTERN", "SOURCE")
			for _, r := range rules {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Phase, verdictOf(r.Allow), output.Printable(r.String()), output.Printable(r.Source))
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func verdictOf(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}
