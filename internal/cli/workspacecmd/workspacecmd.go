// Package workspacecmd is "kitbox workspace": what only a cloned workspace has, and how
// it gets out.
package workspacecmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// New makes "kitbox workspace".
func New(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "workspace",
		Short: "Look at a cloned workspace, and get its commits out",
	}, unsaved(e), bundle(e))
}

func unsaved(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "unsaved NAME",
		Short: "List what only the cloned workspace of a sandbox has",
		Long: `Lists the commits of a cloned workspace that the repository it was cloned from
does not have, and files that are changed or new and not committed: what "rm"
would lose. The sandbox need not run. A workspace of another mode has nothing to
list.`,
		Example:           `  kitbox workspace unsaved t`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			u, err := sandbox.FindUnsaved(cmd.Context(), sb)
			if err != nil {
				return err
			}
			if asJSON {
				if u.Commits == nil {
					u.Commits = []sandbox.Commit{}
				}
				return output.JSON(e.Stdout, u)
			}
			fmt.Fprint(e.Stdout, summary.Unsaved(u, ""))
			return nil
		}),
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func bundle(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "bundle NAME",
		Short: "Write the commits of a cloned workspace to stdout, as a Git bundle",
		Long: `Writes the branches and tags of a cloned workspace, and what is checked out as
HEAD, to stdout as a Git bundle, which "git fetch" reads like a repository. The
sandbox need not run and needs no git. Nothing in a bundle can make your git run
a program, which the repository itself could.`,
		Example: `  kitbox workspace bundle t >t.bundle
  git fetch t.bundle 'refs/heads/*:refs/remotes/t/*'`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if terminal.Of(e.Stdout) != nil {
				return argument.Mistake(cmd, "a bundle is no text; send stdout to a file")
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return sandbox.Bundle(cmd.Context(), sb, e.Stdout)
		},
	}
}
