package policycmd

import (
	"errors"
	"fmt"
	"net/netip"
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
	return nil, argument.Mistake(cmd, "--phase %q is neither install, runtime nor both", r.phase)
}

// open returns the phases that --phase names, and who keeps the rules.
func (r *ruling) open(cmd *cobra.Command, e *world.Env) ([]string, sandbox.Overseer, error) {
	phases, err := r.phases(cmd)
	if err != nil {
		return nil, nil, err
	}
	o, err := sandbox.PolicyOf(e.Runtime)
	return phases, o, err
}

func policyAllow(e *world.Env) *cobra.Command {
	return policyAdd(e, "allow", true, "runtime", "Let sandboxes reach hosts", `Adds rules that allow what each PATTERN matches: a host, host:port, *.domain for
one label, ** for every name, an address or a range of addresses. Nothing that a
Kit or another rule denies is allowed by it. Running sandboxes get the rules at
once.

The rules are for the time after installation unless --phase says otherwise.`, `  kitbox policy allow api.example.com
  kitbox policy allow --sandbox t --phase both deb.example.com 192.0.2.0/24`)
}

func policyDeny(e *world.Env) *cobra.Command {
	return policyAdd(e, "deny", false, "both", "Keep sandboxes from hosts", `Adds rules that deny what each PATTERN matches, whatever Kits and other rules
allow. Connections that running sandboxes have there are cut before the command
returns. The rules are for both phases unless --phase says otherwise.`, `  kitbox policy deny telemetry.example.com
  kitbox policy deny --sandbox t '**'`)
}

func policyAdd(e *world.Env, name string, allow bool, phase, short, long, example string) *cobra.Command {
	var (
		r              ruling
		methods, paths []string
	)
	cmd := &cobra.Command{
		Use:     name + " [options] PATTERN...",
		Short:   short,
		Long:    long,
		Example: example,
		Args:    argument.AtLeastOne("PATTERN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			phases, o, err := r.open(cmd, e)
			if err != nil {
				return err
			}
			if len(paths) > 0 && len(methods) == 0 {
				return argument.Mistake(cmd, "--path needs --method: ANY if every method is meant")
			}
			var c sandbox.RuleChange
			for _, pattern := range args {
				if hasPath(pattern) {
					return argument.Mistake(cmd, "%q holds a path: write the host alone; paths go with --path, beside --method", pattern)
				}
				if why := hostpattern.Fault(pattern); why != "" {
					return argument.Mistake(cmd, "%q %s", pattern, why)
				}
				for _, phase := range phases {
					c.Add = append(c.Add, sandbox.NetworkGrant{Phase: phase, Pattern: pattern, Allow: allow, Methods: methods, Paths: paths})
				}
			}
			if err := o.ChangeRules(cmd.Context(), r.sandbox, c); err != nil {
				return mistaken(cmd, err)
			}
			for _, pattern := range args {
				if allow && isLoopback(pattern) {
					fmt.Fprintf(e.Stderr, "kitbox: %s is the sandbox itself to what runs inside, and not this machine; a port of this machine is asked for by Kits with host-port@1, or is where --route NAME=127.0.0.1:PORT leads an allowed name\n", output.Printable(pattern))
				}
			}
			return nil
		},
	}
	r.flags(cmd, phase, "the `PHASE` in which the rule holds: install, runtime or both")
	option.Repeated(cmd, &methods, "method", "", "only HTTP requests with this `METHOD`, or ANY (repeatable)")
	option.Repeated(cmd, &paths, "path", "", "only HTTP requests for paths like `GLOB`; needs --method (repeatable)")
	return cmd
}

func policyRemove(e *world.Env) *cobra.Command {
	var r ruling
	cmd := &cobra.Command{
		Use:   "rm [options] PATTERN...",
		Short: "Take back rules of allow and deny",
		Long: `Removes every rule that "kitbox policy allow" or "deny" added with one of these
patterns. What Kits declared cannot be removed; deny it instead. Connections that
nothing allows any more are cut before the command returns.`,
		Example: `  kitbox policy rm api.example.com
  kitbox policy rm --sandbox t '**'`,
		Args: argument.AtLeastOne("PATTERN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			phases, o, err := r.open(cmd, e)
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
	r.flags(cmd, "both", "only rules of this `PHASE`: install, runtime or both")
	return cmd
}

// hasPath reports whether pattern is a host with a path, and not a range of addresses.
func hasPath(pattern string) bool {
	host, _, slash := strings.Cut(pattern, "/")
	if !slash || strings.Contains(pattern, "://") {
		return false
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil
}

// isLoopback reports whether what pattern matches is the machine that asks for it.
func isLoopback(pattern string) bool {
	host := strings.ToLower(strings.Trim(hostpattern.WithoutPort(pattern), "[]"))
	if name := strings.TrimSuffix(host, "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	host, _, _ = strings.Cut(host, "/")
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// mistaken makes of the refusal of a rule that stands in the arguments what it is
// there: a mistake in them.
func mistaken(cmd *cobra.Command, err error) error {
	var r *sandbox.RuleError
	if !errors.As(err, &r) {
		return err
	}
	return argument.Mistake(cmd, "%s", strings.Join(r.Faults, "; "))
}
