package storagecmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Mount makes "kitbox mount".
func Mount(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "mount",
		Short: "List, read and remove the directories that sandboxes of a Kit share",
		Example: `  kitbox mount ls
  kitbox mount read 0123456789abcdef notes.txt
  kitbox mount rm 0123456789abcdef`,
	}, mountList(e), mountRead(e), mountRemove(e))
}

func mountList(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [KIT]",
		Short: "List the directories of one Kit, or all",
		Long: `Lists directories, with --json also where they are on this machine. KIT is a
reference or a directory; its versions share what they keep, so that a tag or a digest
changes nothing. Listing makes nothing and asks no registry.`,
		Example: `  kitbox mount ls --json | jq -r '.[].dir'
  kitbox mount ls ghcr.io/example/kit`,
		Args: argument.AtMostOne("KIT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := sandbox.HostMountsOf(e.Runtime)
			if err != nil {
				return err
			}
			mounts, err := m.HostMounts(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, mounts)
			}
			w := output.Table(e.Stdout, "HANDLE", "PATH", "KIT", "USED BY")
			for _, m := range mounts {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.Handle, output.Printable(m.Path), output.Printable(m.Identity), strings.Join(m.Sandboxes, ", "))
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func mountRead(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "read HANDLE FILE",
		Short:   "Print one file of a directory",
		Example: `  kitbox mount read 0123456789abcdef cache/index`,
		Args:    argument.Two("HANDLE", "FILE"),

		ValidArgsFunction: handles(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := sandbox.HostMountsOf(e.Runtime)
			if err != nil {
				return err
			}
			f, err := m.ReadHostMount(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(e.Stdout, f)
			return err
		},
	}
}

func mountRemove(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "rm HANDLE",
		Short:   "Delete a directory that no sandbox uses, with all that is in it",
		Example: `  kitbox mount rm 0123456789abcdef`,
		Args:    argument.One("HANDLE"),

		ValidArgsFunction: handles(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := sandbox.HostMountsOf(e.Runtime)
			if err != nil {
				return err
			}
			if err := m.RemoveHostMount(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, args[0])
			return nil
		},
	}
}

// handles completes the handle of a directory, and what it is of.
func handles(e *world.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		m, err := sandbox.HostMountsOf(e.Runtime)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		mounts, err := m.HostMounts(cmd.Context(), "")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var offered []string
		for _, m := range mounts {
			offered = append(offered, cobra.CompletionWithDesc(m.Handle, output.Printable(m.Path+" of "+m.Identity)))
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}
