package kitcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

const surfaceForms = `The descriptor may be as authored or as published; its arguments take their
defaults, or the values given by --arg. Optional capabilities count.`

func (lookup Lookup) surfaces() *cobra.Command {
	var asJSON, digest bool
	var args []string
	cmd := &cobra.Command{
		Use:   "surface FILE|DIR|REF",
		Short: "Show what a Kit asks of its host",
		Long: `Shows the permission surface of a Kit: all that it asks of its host, as sorted
lists, and the digest of that surface, which is not the Kit's. With --json, it is in
the canonical encoding that its digest is taken of.

` + surfaceForms,
		Example: `  kitbox kit surface ./my-kit
  kitbox kit surface --json ./my-kit --arg port=9090 | jq .ports`,
		Args: one,
		RunE: func(cmd *cobra.Command, operands []string) error {
			supplied, err := option.Pairs(cmd, "--arg", args)
			if err != nil {
				return err
			}
			s, declared, err := lookup.surfaceOf(cmd, operands[0], supplied)
			if err != nil {
				return err
			}
			if err := undeclared(cmd, supplied, declared); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case digest:
				fmt.Fprintln(out, s.Digest())
			case asJSON:
				fmt.Fprintf(out, "%s\n", s.Canonical())
			default:
				writeSurface(out, s)
			}
			return nil
		},
	}
	option.JSONVar(cmd, &asJSON)
	argFlag(cmd, &args)
	cmd.Flags().BoolVar(&digest, "digest", false, "print the digest alone")
	return cmd
}

func (lookup Lookup) comparing() *cobra.Command {
	var asJSON bool
	var args []string
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show what a Kit asks that another did not",
		Long: `Compares what two Kits, or two versions of one, ask of their host. Lines with "+"
are authority that NEW asks and OLD did not: a new host, a denial or a bound that
went, another credential or phase. Lines with "-" are authority that it gave up.
Each names the Kit that it comes from.

` + surfaceForms + `

Exit status: 0 NEW asks for nothing more, 1 a file could not be read, 2 a
descriptor is refused, 3 NEW asks for more.`,
		Example: `  kitbox kit diff old/my-kit my-kit
  kitbox kit diff --json <(git show HEAD:kit.yaml) kit.yaml | jq .widenings`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return argument.Mistake(cmd, "diff takes two files or directories, %d given", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, operands []string) error {
			supplied, err := option.Pairs(cmd, "--arg", args)
			if err != nil {
				return err
			}
			if operands[0] == "-" && operands[1] == "-" {
				return argument.Mistake(cmd, "only one of the two can be standard input")
			}
			granted, before, err := lookup.surfaceOf(cmd, operands[0], supplied)
			if err != nil {
				return err
			}
			candidate, after, err := lookup.surfaceOf(cmd, operands[1], supplied)
			if err != nil {
				return err
			}
			maps.Copy(after, before)
			if err := undeclared(cmd, supplied, after); err != nil {
				return err
			}
			c := surface.Diff(granted, candidate)
			if err := writeChanges(cmd.OutOrStdout(), c, asJSON); err != nil {
				return err
			}
			if c.Widens() {
				return kiterr.ExitStatus(kiterr.StatusWidening)
			}
			return nil
		},
	}
	option.JSONVar(cmd, &asJSON)
	argFlag(cmd, &args)
	return cmd
}

// surfaceOf returns the surface of one Kit and the arguments that it declares.
// Of the values supplied it takes those that it declares.
func (lookup Lookup) surfaceOf(cmd *cobra.Command, arg string, supplied map[string]string) (surface.Surface, map[string]bool, error) {
	d, name, err := lookup.load(cmd, arg, capability.Authored)
	if err != nil {
		return surface.Surface{}, nil, err
	}
	declared := map[string]bool{}
	mine := map[string]string{}
	for key := range d.Args {
		declared[key] = true
		if v, ok := supplied[key]; ok {
			mine[key] = v
		}
	}
	e, err := effective(d.Descriptor, mine)
	if err != nil {
		return surface.Surface{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	if d.Kind == spec.KindSet {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: only what the set itself asks; what the Kits it lists ask is known once it is published\n", output.Printable(name))
		e.Kind, e.Kits = spec.KindMixin, nil // its own part is one more contribution (§9.5)
	}
	ds := spec.New(e, spec.Options{File: name, Form: capability.Effective, Unselected: true}).Validate()
	// What an environment would fill in is not known here, and shows as it is.
	ds = slices.DeleteFunc(ds, func(d spec.Diagnostic) bool { return d.Statement == "SPEC-v3 §7.1.1/validate-expanded-declarations" })
	if err := refuse(cmd, ds); err != nil {
		return surface.Surface{}, nil, err
	}
	var cs []capability.Contribution
	for _, r := range e.Requests() {
		kit := name
		if r.Source != nil && r.Source.Kit != "" {
			kit = r.Source.Kit
		}
		cs = append(cs, capability.Contribution{Kit: kit, Request: r})
	}
	return surface.ProjectKits(cs), declared, nil
}

// effective expands the arguments of d.
func effective(d spec.Descriptor, supplied map[string]string) (spec.Descriptor, error) {
	values, err := expand.ResolveArgs(d.Args, supplied, expand.PhaseAny)
	if err != nil {
		if errors.Is(err, expand.ErrRequired) {
			err = fmt.Errorf("%w; give it with --arg", err)
		}
		return d, err
	}
	if d, err = expand.Build(d, values); err != nil {
		return d, err
	}
	return expand.Create(d, values)
}

func undeclared(cmd *cobra.Command, supplied map[string]string, declared map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(supplied)) {
		if !declared[name] {
			return argument.Mistake(cmd, "--arg %s: the Kit declares no such argument", name)
		}
	}
	return nil
}

// lists are those of the surface in words, what weighs most first.
var lists = []struct{ name, words, connections string }{
	{capability.ListPrivileged, "privileged", ""},
	{capability.ListNetworkInstallAllow, "reach while installing", ""},
	{capability.ListNetworkInstallHTTPAllow, "request while installing", capability.ListNetworkInstallAllow},
	{capability.ListNetworkInstallDeny, "never reach while installing", ""},
	{capability.ListNetworkInstallHTTPDeny, "never request while installing", capability.ListNetworkInstallDeny},
	{capability.ListNetworkRuntimeAllow, "reach", ""},
	{capability.ListNetworkRuntimeHTTPAllow, "request", capability.ListNetworkRuntimeAllow},
	{capability.ListNetworkRuntimeDeny, "never reach", ""},
	{capability.ListNetworkRuntimeHTTPDeny, "never request", capability.ListNetworkRuntimeDeny},
	{capability.ListCredentialsInstall, "use the credential while installing", ""},
	{capability.ListCredentialsRuntime, "use the credential", ""},
	{capability.ListDockerAuth, "log in to", ""},
	{capability.ListSSHAgentInstall, "ssh agent while installing:", ""},
	{capability.ListSSHAgentRuntime, "ssh agent:", ""},
	{capability.ListHostMountPaths, "share with the host", ""},
	{capability.ListSkillsPaths, "read the user's skills at", ""},
	{capability.ListSkillsWritePaths, "write the user's skills at", ""},
	{capability.ListHostPorts, "reach on this machine", ""},
	{capability.ListUSBDevices, "use the USB device", ""},
	{capability.ListStoragePaths, "keep", ""},
	{capability.ListPorts, "publish", ""},
	{capability.ListServices, "service", ""},
}

// inWords returns a surface in the order of lists. The request lines that only
// repeat that a host may be reached at all are left out.
func inWords(values map[string][]string) []string {
	var out []string
	for _, l := range lists {
		for _, v := range values[l.name] {
			host := strings.TrimSuffix(strings.TrimPrefix(v, "ANY "), "/**")
			if l.connections != "" && v == "ANY "+host+"/**" && slices.Contains(values[l.connections], host) {
				continue
			}
			if l.name == capability.ListPrivileged {
				v = ""
			}
			out = append(out, strings.TrimSpace(l.words+" "+v))
		}
	}
	return out
}

func writeSurface(w io.Writer, s surface.Surface) {
	var raw map[string]any
	if json.Unmarshal(s.Canonical(), &raw) != nil || len(raw) == 0 {
		fmt.Fprintln(w, "asks for nothing")
		return
	}
	values := map[string][]string{}
	for list, v := range raw {
		if many, ok := v.([]any); ok {
			for _, x := range many {
				values[list] = append(values[list], fmt.Sprint(x))
			}
		} else {
			values[list] = []string{fmt.Sprint(v)}
		}
	}
	for _, l := range inWords(values) {
		fmt.Fprintln(w, output.Printable(l))
	}
	fmt.Fprintln(w, "surface digest", s.Digest())
}

func writeChanges(w io.Writer, c surface.Changes, asJSON bool) error {
	if asJSON {
		if c.Widenings == nil {
			c.Widenings = []surface.Change{}
		}
		if c.Narrowings == nil {
			c.Narrowings = []surface.Change{}
		}
		return output.JSON(w, c)
	}
	for _, list := range []struct {
		sign    string
		changes []surface.Change
	}{{"+", c.Widenings}, {"-", c.Narrowings}} {
		for _, ch := range list.changes {
			line := list.sign + " " + ch.Category
			if ch.Detail != "" {
				line += " " + ch.Detail
			}
			if len(ch.Kits) > 0 {
				line += "  (" + strings.Join(ch.Kits, ", ") + ")"
			}
			fmt.Fprintln(w, output.Printable(line))
		}
	}
	return nil
}
