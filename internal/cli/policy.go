package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) policy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Say and show what sandboxes may reach, and what they tried to",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.policyList(), e.policyAllow(), e.policyDeny(), e.policyRemove(), e.policyCheck(), e.policyLog())
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
			return cmd.Context().Err()
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
	if ev.Credential != "" {
		times = ", with the credential " + ev.Credential + times
	}
	_, err := fmt.Fprintf(w, "%s %-7s %-7s %s: %s%s\n", clock(ev.Time, time.Now()), verdict, ev.Phase,
		printable(destination(ev)), printable(ev.Reason), printable(times))
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

func (e *Env) policyList() *cobra.Command {
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
		Args:              atMostOne("NAME"),
		ValidArgsFunction: e.names,
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
				return writeJSON(e.Stdout, rules)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "PHASE\tVERDICT\tPATTERN\tSOURCE")
			for _, r := range rules {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Phase, verdictOf(r.Allow), printable(r.String()), printable(r.Source))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func verdictOf(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

// ruling are the options of what changes rules.
type ruling struct {
	sandbox string
	phase   string
}

func (r *ruling) flags(cmd *cobra.Command, phase, about string) {
	cmd.Flags().StringVar(&r.sandbox, "sandbox", "", "only for the sandbox `NAME` (default: for all)")
	cmd.Flags().StringVar(&r.phase, "phase", phase, about)
}

// phases are those that --phase names.
func (r *ruling) phases(cmd *cobra.Command) ([]string, error) {
	switch r.phase {
	case "install", "runtime":
		return []string{r.phase}, nil
	case "both":
		return []string{"install", "runtime"}, nil
	}
	return nil, usageError(cmd, "--phase %q is neither install, runtime nor both", r.phase)
}

func (e *Env) policyAllow() *cobra.Command {
	return e.policyAdd("allow", true, "runtime", "Let sandboxes reach hosts", `Adds rules that allow what each PATTERN matches: a host, host:port, *.domain for
one label, ** for every name, an address or a range of addresses. Nothing that a
Kit or another rule denies is allowed by it. Running sandboxes get the rules at
once.

The rules are for the time after installation unless --phase says otherwise.`, `  kitbox policy allow api.example.com
  kitbox policy allow --sandbox t --phase both deb.example.com 192.0.2.0/24`)
}

func (e *Env) policyDeny() *cobra.Command {
	return e.policyAdd("deny", false, "both", "Keep sandboxes from hosts", `Adds rules that deny what each PATTERN matches, whatever Kits and other rules
allow. Connections that running sandboxes have there are cut before the command
returns. The rules are for both phases unless --phase says otherwise.`, `  kitbox policy deny telemetry.example.com
  kitbox policy deny --sandbox t '**'`)
}

func (e *Env) policyAdd(name string, allow bool, phase, short, long, example string) *cobra.Command {
	var (
		r              ruling
		methods, paths []string
	)
	cmd := &cobra.Command{
		Use:     name + " [options] PATTERN...",
		Short:   short,
		Long:    long,
		Example: example,
		Args:    atLeastOne("PATTERN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			phases, err := r.phases(cmd)
			if err != nil {
				return err
			}
			o, err := sandbox.PolicyOf(e.Runtime)
			if err != nil {
				return err
			}
			if len(paths) > 0 && len(methods) == 0 {
				return usageError(cmd, "--path needs --method: ANY if every method is meant")
			}
			var c sandbox.RuleChange
			for _, pattern := range args {
				if why := hostpattern.Fault(pattern); why != "" {
					return usageError(cmd, "%q %s", pattern, why)
				}
				for _, phase := range phases {
					c.Add = append(c.Add, sandbox.NetworkGrant{Phase: phase, Pattern: pattern, Allow: allow, Methods: methods, Paths: paths})
				}
			}
			return mistaken(cmd, o.ChangeRules(cmd.Context(), r.sandbox, c))
		},
	}
	r.flags(cmd, phase, "when the rule holds: install, runtime or both")
	cmd.Flags().StringArrayVar(&methods, "method", nil, "only HTTP requests with the method `M`, or ANY (repeatable)")
	cmd.Flags().StringArrayVar(&paths, "path", nil, "only HTTP requests for paths like `GLOB`; needs --method (repeatable)")
	return cmd
}

func (e *Env) policyRemove() *cobra.Command {
	var r ruling
	cmd := &cobra.Command{
		Use:   "rm [options] PATTERN...",
		Short: "Take back rules of allow and deny",
		Long: `Removes every rule that "kitbox policy allow" or "deny" added with one of these
patterns. What Kits declared cannot be removed; deny it instead. Connections that
nothing allows any more are cut before the command returns.`,
		Example: `  kitbox policy rm api.example.com
  kitbox policy rm --sandbox t '**'`,
		Args: atLeastOne("PATTERN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			phases, err := r.phases(cmd)
			if err != nil {
				return err
			}
			o, err := sandbox.PolicyOf(e.Runtime)
			if err != nil {
				return err
			}
			var c sandbox.RuleChange
			for _, pattern := range args {
				m := sandbox.RuleMatch{Pattern: pattern}
				if len(phases) == 1 {
					m.Phase = phases[0]
				}
				c.Remove = append(c.Remove, m)
			}
			err = o.ChangeRules(cmd.Context(), r.sandbox, c)
			if errors.Is(err, kiterr.ErrNotFound) && r.sandbox == "" {
				err = fmt.Errorf("%w; give --sandbox NAME for a rule that was made with it", err)
			}
			return err
		},
	}
	r.flags(cmd, "both", "only rules of this phase: install, runtime or both")
	return cmd
}

func (e *Env) policyCheck() *cobra.Command {
	var (
		q           sandbox.PolicyQuery
		asJSON, udp bool
	)
	cmd := &cobra.Command{
		Use:   "check [options] NAME HOST[:PORT]",
		Short: "Say what the boundary of a sandbox would decide, and by which rule",
		Long: `Asks what decides about real traffic, without sending any. The port is 443 when
none is given. The exit status is 0 for what would be allowed and 2 for what
would be refused. The addresses behind an allowed name are judged when they are
dialled: private ones need a rule that spells them.`,
		Example: `  kitbox policy check t api.example.com
  kitbox policy check t '[2001:db8::1]:22' --phase install
  kitbox policy check t api.example.com --method DELETE --path /repos/x`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError(cmd, "check takes the NAME of a sandbox and a HOST")
			}
			return nil
		},
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Phase != "install" && q.Phase != "runtime" {
				return usageError(cmd, "--phase %q is neither install nor runtime", q.Phase)
			}
			var err error
			if q.Host, q.Port, err = splitDestination(args[1]); err != nil {
				return usageError(cmd, "%v", err)
			}
			if udp {
				q.Transport = "udp"
			}
			o, err := sandbox.PolicyOf(e.Runtime)
			if err != nil {
				return err
			}
			v, err := o.Check(cmd.Context(), args[0], q)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(e.Stdout, v)
			} else {
				err = writeVerdict(e.Stdout, v)
			}
			if err == nil && !v.Allowed {
				return kiterr.ExitStatus(kiterr.StatusRefused)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&q.Phase, "phase", "runtime", "install or runtime")
	cmd.Flags().BoolVar(&udp, "udp", false, "judge a datagram")
	cmd.Flags().StringVar(&q.Method, "method", "", "judge a request with this method (GET if only --path is given)")
	cmd.Flags().StringVar(&q.Path, "path", "", "judge a request for this path, without its query (/ if only --method is given)")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeVerdict(w io.Writer, v sandbox.PolicyVerdict) error {
	verdict, by := "refused", ""
	if v.Allowed {
		verdict = "allowed"
	}
	if v.Allowed && v.Inspected && v.Method == "" {
		verdict = "allowed for particular requests"
	}
	what := net.JoinHostPort(v.Host, strconv.Itoa(int(v.Port)))
	if v.Method != "" {
		what = v.Method + " " + what + v.Path
	}
	if v.Rule != "" {
		by = fmt.Sprintf("; rule %s of %s", v.Rule, v.Source)
	}
	if len(v.Credentials) > 0 {
		by += "; requests over TLS may carry the credential " + strings.Join(v.Credentials, ", ")
	}
	_, err := fmt.Fprintf(w, "%s %s %s: %s%s\n", verdict, v.Phase, printable(what), printable(v.Reason), printable(by))
	return err
}

// ruleNumber is how a fault of a rule names it, which the operator has just typed.
var ruleNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(refused: )?egress rule \d+ of operator: `) })

// mistaken makes of the refusal of a rule that stands in the arguments what it is
// there: a mistake in them.
func mistaken(cmd *cobra.Command, err error) error {
	if err == nil || !errors.Is(err, kiterr.ErrRefused) || !ruleNumber().MatchString(err.Error()) {
		return err
	}
	return usageError(cmd, "%s", withoutFamily(ruleNumber().ReplaceAllString(err.Error(), "")))
}

// splitDestination reads HOST, HOST:PORT, an address, or [address]:PORT. Port 0
// stands for none given.
func splitDestination(s string) (host string, port uint16, err error) {
	if why := hostpattern.Fault(s); why != "" {
		return "", 0, fmt.Errorf("%q %s", s, why)
	}
	if _, err := netip.ParseAddr(s); err == nil || !strings.Contains(s, ":") {
		return s, 0, nil
	}
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1], 0, nil
	}
	host, digits, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not HOST or HOST:PORT", s)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q: the port is not between 1 and 65535", s)
	}
	return host, uint16(n), nil
}
