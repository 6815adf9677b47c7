// Package portcmd is "kitbox ports": which ports of a sandbox are published, and where.
package portcmd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// New makes "kitbox ports".
func New(e *world.Env) *cobra.Command {
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
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			ports, err := sandbox.Ports(cmd.Context(), sb)
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, ports)
			}
			w := output.Table(e.Stdout, "PORT", "ADDRESSES", "NAME", "SOURCE")
			for _, p := range ports {
				where := strings.Join(p.Addresses, ", ")
				switch {
				case where != "":
				case p.Host == 0:
					where = "chosen at the next start"
				default:
					where = fmt.Sprintf("%d (not listening)", p.Host)
				}
				fmt.Fprintf(w, "%d/%s\t%s\t%s\t%s\n", p.Container, p.Transport, where, output.Printable(p.Name), output.Printable(p.Source))
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
				fmt.Fprintf(e.Stdout, "  %s, asked for by %s\n", output.Printable(summary.HostPort(p)), output.Printable(strings.Join(p.Kits, ", ")))
			}
			return nil
		}),
	}
	option.JSONVar(cmd, &asJSON)
	cmd.AddCommand(publish(e), unpublish(e))
	return cmd
}

func publish(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "publish NAME [HOST:]PORT[/udp]",
		Short: "Publish a port, on a free port of this machine or on HOST",
		Example: `  kitbox ports publish t 3000
  kitbox ports publish t 8080:80
  kitbox ports publish t 5353/udp`,
		Args:              argument.Two("NAME", "PORT"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := parsePort(args[1], true)
			if err != nil {
				return argument.Mistake(cmd, "port %q: %v", args[1], err)
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

func unpublish(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "unpublish NAME PORT[/udp]",
		Short:             "Take a published port back, also one that a Kit asked for",
		Example:           `  kitbox ports unpublish t 3000`,
		Args:              argument.Two("NAME", "PORT"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := parsePort(args[1], false)
			if err != nil {
				return argument.Mistake(cmd, "port %q: %v", args[1], err)
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return sandbox.Unpublish(cmd.Context(), sb, o.Container, o.Transport)
		},
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
