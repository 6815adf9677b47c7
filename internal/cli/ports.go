package cli

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) ports() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ports NAME",
		Short: "Show, add and take back published ports",
		Long: `Shows which ports of a sandbox are published, and where. They are reachable on
the loopback of this machine only, 127.0.0.1 and ::1, and lead to the loopback
inside. A port keeps its number here across restarts as long as it is free.

Services of this machine that the sandbox may reach, which host-port entries of
Kits ask for, are shown below; with --json they are in "kitbox status --json".`,
		Example: `  kitbox ports t
  kitbox ports publish t 3000
  curl localhost:$(kitbox ports t --json | jq '.[0].host')`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ports, err := sandbox.Ports(cmd.Context(), sb)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, ports)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "PORT\tADDRESSES\tNAME\tSOURCE")
			for _, p := range ports {
				where := strings.Join(p.Addresses, ", ")
				switch {
				case where != "":
				case p.Host == 0:
					where = "chosen at the next start"
				default:
					where = fmt.Sprintf("%d (not listening)", p.Host)
				}
				fmt.Fprintf(w, "%d/%s\t%s\t%s\t%s\n", p.Container, p.Transport, where, printable(p.Name), printable(p.Source))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			info, err := sb.Status(cmd.Context())
			if err != nil {
				return err
			}
			for i, p := range info.HostPorts {
				if i == 0 {
					fmt.Fprintln(e.Stdout, "\nIt reaches, as host.kitbox.internal and host.docker.internal:")
				}
				fmt.Fprintf(e.Stdout, "  %s, asked for by %s\n", printable(hostPortText(p)), printable(strings.Join(p.Kits, ", ")))
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.AddCommand(e.publish(), e.unpublish())
	return cmd
}

func (e *Env) publish() *cobra.Command {
	return &cobra.Command{
		Use:   "publish NAME [HOST:]PORT[/udp]",
		Short: "Publish a port, on a free port of this machine or on HOST",
		Example: `  kitbox ports publish t 3000
  kitbox ports publish t 8080:80
  kitbox ports publish t 5353/udp`,
		Args:              two("NAME", "PORT"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := parsePort(args[1], true)
			if err != nil {
				return usageError(cmd, "port %q: %v", args[1], err)
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			p, err := sandbox.Publish(cmd.Context(), sb, o)
			if err != nil {
				return err
			}
			if len(p.Addresses) == 0 {
				fmt.Fprintf(e.Stderr, "kitbox: %s is stopped; the port is published when it starts\n", args[0])
				return nil
			}
			fmt.Fprintln(e.Stdout, p.Addresses[0])
			return nil
		},
	}
}

func (e *Env) unpublish() *cobra.Command {
	return &cobra.Command{
		Use:               "unpublish NAME PORT[/udp]",
		Short:             "Take a published port back, also one that a Kit asked for",
		Example:           `  kitbox ports unpublish t 3000`,
		Args:              two("NAME", "PORT"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := parsePort(args[1], false)
			if err != nil {
				return usageError(cmd, "port %q: %v", args[1], err)
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return sandbox.Unpublish(cmd.Context(), sb, o.Container, o.Transport)
		},
	}
}

// two takes exactly two arguments.
func two(first, second string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usageError(cmd, "%s takes a %s and a %s, %d given", cmd.Name(), first, second, len(args))
		}
		return nil
	}
}

// parsePort reads [HOST:]PORT[/TRANSPORT].
func parsePort(s string, host bool) (sandbox.PublishOptions, error) {
	o := sandbox.PublishOptions{Transport: "tcp"}
	rest, transport, found := strings.Cut(s, "/")
	if found {
		if transport != "tcp" && transport != "udp" {
			return o, fmt.Errorf("%q is neither tcp nor udp", transport)
		}
		o.Transport = transport
	}
	number := func(s string) (uint16, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%q is not a port from 1 to 65535", s)
		}
		return uint16(n), nil
	}
	var err error
	if outer, inner, pinned := strings.Cut(rest, ":"); pinned && host {
		if o.Host, err = number(outer); err != nil {
			return o, err
		}
		rest = inner
	}
	o.Container, err = number(rest)
	return o, err
}
