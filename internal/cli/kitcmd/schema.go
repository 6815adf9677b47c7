package kitcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/schema"
)

func schemas() *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "schema [TYPE]",
		Short: "Print the JSON Schema of a descriptor or of one capability",
		Long: `Prints the JSON Schema of a whole descriptor, which an editor can check and
complete with, or that of the config of one capability type. A type may be
written without its namespace.`,
		Example: `  kitbox kit schema > kit.schema.json
  kitbox kit schema network-policy@2
  kitbox kit schema --list`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return argument.Mistake(cmd, "schema takes one type, %d given", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var out []string
			for _, t := range types() {
				out = append(out, shortType(t))
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			if list {
				for _, t := range types() {
					fmt.Fprintln(out, t)
				}
				return nil
			}
			text, ok := schema.Kit(), true
			if len(args) > 0 {
				if text, ok = schema.Capability(args[0]); !ok {
					text, ok = schema.Capability(capability.Namespace + "/" + args[0])
				}
			}
			if ok {
				_, err := out.Write(append(text, newline(text)...))
				return err
			}
			return fmt.Errorf("%s is not a well-known capability type; see %q: %w", output.Printable(args[0]), cmd.CommandPath()+" --list", kiterr.ErrNotFound)
		},
	}
	cmd.Flags().BoolVarP(&list, "list", "l", false, "list the well-known capability types")
	return cmd
}

// newline returns what text lacks of a final line feed.
func newline(text []byte) string {
	if strings.HasSuffix(string(text), "\n") {
		return ""
	}
	return "\n"
}

func types() []string {
	var out []string
	for _, d := range wellknown.Definitions() {
		out = append(out, d.Types...)
	}
	slices.Sort(out)
	return out
}
