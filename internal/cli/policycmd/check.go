package policycmd

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func policyCheck(e *world.Env) *cobra.Command {
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
				return argument.Mistake(cmd, "check takes the NAME of a sandbox and a HOST")
			}
			return nil
		},
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Phase != "install" && q.Phase != "runtime" {
				return argument.Mistake(cmd, "--phase %q is neither install nor runtime", q.Phase)
			}
			var err error
			if q.Host, q.Port, err = splitDestination(args[1]); err != nil {
				return argument.Mistake(cmd, "%v", err)
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
				err = output.JSON(e.Stdout, v)
			} else {
				err = writeVerdict(e.Stdout, v)
			}
			if err == nil && !v.Allowed {
				return kiterr.ExitStatus(kiterr.StatusRefused)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&q.Phase, "phase", "runtime", "the `PHASE` it is in: install or runtime")
	cmd.Flags().BoolVar(&udp, "udp", false, "judge a datagram")
	cmd.Flags().StringVar(&q.Method, "method", "", "judge a request with this `METHOD` (GET if only --path is given)")
	cmd.Flags().StringVar(&q.Path, "path", "", "judge a request for this `PATH`, without its query (/ if only --method is given)")
	option.JSONVar(cmd, &asJSON)
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
	_, err := fmt.Fprintf(w, "%s %s %s: %s%s\n", verdict, v.Phase, output.Printable(what), output.Printable(v.Reason), output.Printable(by))
	return err
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
