// Package kitcmd is "kitbox kit": the commands for people who write Kits and
// for those who decide about them. Package cli hangs it into the command tree.
//
// It works on files, decides nothing itself, and starts nothing: the verdicts
// are those of package spec, spec/lint, spec/surface and spec/format. Results
// go to stdout, everything else to stderr; with --json stdout holds one
// document.
package kitcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/option"
)

// Lookup returns the published descriptor that a reference to an image stands
// for.
type Lookup func(ctx context.Context, ref string) ([]byte, error)

// New returns the command. Published Kits are looked up with lookup; nil leaves
// them unknown. It reads and writes through the streams that the
// tree it is hung into sets; relative paths are the process's.
func New(lookup Lookup) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kit",
		Short: "Write Kits and see what they ask",
		Long: `Commands for writing Kits and for deciding about them. They read descriptors from
files and directories: a YAML or JSON descriptor with or without a recipe beside
it, or a Dockerfile with a descriptor in its head. inspect, surface and diff take
references to published Kits too, of which they read one document.`,
		Example: `  kitbox kit new mixin my-tool          start with a commented template
  kitbox kit check ./my-tool            what is wrong, and what will surprise
  kitbox kit fmt -w ./my-tool           lay it out
  kitbox kit surface ./my-tool          what it asks of the host
  kitbox kit diff old.yaml new.yaml     what the new one asks that the old did not
  kitbox kit diff ghcr.io/me/x:1 ./x    the same with a published one`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				cmd.SuggestionsMinimumDistance = 2
				if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
					return usageError(cmd, "there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
				}
				return usageError(cmd, "there is no command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(check(), formatting(), lookup.inspect(), lookup.surfaces(), lookup.comparing(), schemas(), create())
	return cmd
}

// usageError is a mistake in the arguments; it says where the help is.
func usageError(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%s; see %q", fmt.Sprintf(format, args...), cmd.CommandPath()+" --help")
}

func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print one JSON document")
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable returns s for a terminal: a file must not be able to drive one.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '\ufffd'
		}
		return r
	}, s)
}

// argFlag adds --arg.
func argFlag(cmd *cobra.Command, v *[]string) {
	option.Repeated(cmd, v, "arg", "", "`NAME=VALUE` for the arg NAME (repeatable)")
}

func pairs(cmd *cobra.Command, list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, usageError(cmd, "--arg %q is not of the form NAME=VALUE", s)
		}
		if _, twice := m[name]; twice {
			return nil, usageError(cmd, "--arg sets %s twice", name)
		}
		m[name] = value
	}
	return m, nil
}

// formUsage explains --form.
const formUsage = "judge by the rules of `FORM`: authored (as written), published (as in an image's annotation) or effective (after expansion and selection)"
