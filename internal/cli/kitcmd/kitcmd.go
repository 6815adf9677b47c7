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

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
)

// Lookup returns the published descriptor that a reference to an image stands
// for.
type Lookup func(ctx context.Context, ref string) ([]byte, error)

// New returns the command. Published Kits are looked up with lookup; nil leaves
// them unknown. It reads and writes through the streams that the
// tree it is hung into sets; relative paths are the process's.
func New(lookup Lookup) *cobra.Command {
	return argument.Holder(&cobra.Command{
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
	}, check(), formatting(), lookup.inspect(), lookup.surfaces(), lookup.comparing(), schemas(), create())
}

// argFlag adds --arg.
func argFlag(cmd *cobra.Command, v *[]string) {
	option.Repeated(cmd, v, "arg", "", "`NAME=VALUE` for the arg NAME (repeatable)")
}

// formUsage explains --form.
const formUsage = "judge by the rules of `FORM`: authored (as written), published (as in an image's annotation) or effective (after expansion and selection)"
