package kitcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/template"
)

func create() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "new " + strings.Join(template.Kinds, "|") + " NAME",
		Short: "Start a Kit with a commented template",
		Long: `Writes a commented descriptor, and a recipe for a workload or a mixin, into a new
directory NAME. The name becomes what the Kit provides. Files that exist are
never overwritten.

A workload and a mixin can be used as they are written: "kitbox run ./NAME", or
"kitbox run KIT --kit ./NAME". A set lists Kits that are published, or named in the
store, and becomes one Kit of them: put the right references in, and "kitbox build
./NAME" and "kitbox run ./NAME" do it.`,
		Example: `  kitbox kit new mixin my-tool
  kitbox kit new workload my-agent --dir kits/agent`,
		ValidArgs: template.Kinds,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return argument.Mistake(cmd, "new takes a kind and a name, %d arguments given", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := template.Files(args[0], args[1])
			if err != nil {
				// A mistake in the arguments, not a refusal of a Kit.
				return argument.Mistake(cmd, "%s", strings.TrimSuffix(err.Error(), ": "+kiterr.ErrRefused.Error()))
			}
			if dir == "" {
				dir = args[1]
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("%s: %w", dir, reason(err))
			}
			for _, f := range files {
				if _, err := os.Lstat(filepath.Join(dir, f.Path)); err == nil {
					return fmt.Errorf("%s is there already; choose another name, or --dir: %w", filepath.Join(dir, f.Path), kiterr.ErrExists)
				}
			}
			for _, f := range files {
				p := filepath.Join(dir, f.Path)
				if err := writeNew(p, f.Data); err != nil {
					return fmt.Errorf("%s: %w", p, reason(err))
				}
				fmt.Fprintln(cmd.OutOrStdout(), p)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the directory `DIR` to write into (default: NAME)")
	return cmd
}

// writeNew writes a file that does not exist yet.
func writeNew(p string, data []byte) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return kiterr.ErrExists
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
