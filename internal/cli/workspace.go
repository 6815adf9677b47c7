package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) workspace() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workspace",
		Short: "Look at a cloned workspace, and get its commits out",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.unsaved(), e.bundle())
	return cmd
}

func (e *Env) unsaved() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "unsaved NAME",
		Short: "List what only the cloned workspace of a sandbox has",
		Long: `Lists the commits of a cloned workspace that the repository it was cloned from
does not have, and files that are changed or new and not committed: what "rm"
would lose. The sandbox need not run. A workspace of another mode has nothing to
list.`,
		Example:           `  kitbox workspace unsaved t`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			u, err := sandbox.FindUnsaved(cmd.Context(), sb)
			if err != nil {
				return err
			}
			if asJSON {
				if u.Commits == nil {
					u.Commits = []sandbox.Commit{}
				}
				return writeJSON(e.Stdout, u)
			}
			fmt.Fprint(e.Stdout, unsavedText(u, ""))
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) bundle() *cobra.Command {
	return &cobra.Command{
		Use:   "bundle NAME",
		Short: "Write the commits of a cloned workspace to stdout, as a Git bundle",
		Long: `Writes the branches and tags of a cloned workspace, and what is checked out as
HEAD, to stdout as a Git bundle, which "git fetch" reads like a repository. The
sandbox need not run and needs no git. Nothing in a bundle can make your git run
a program, which the repository itself could.`,
		Example: `  kitbox workspace bundle t >t.bundle
  git fetch t.bundle 'refs/heads/*:refs/remotes/t/*'`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if terminal(e.Stdout) != nil {
				return usageError(cmd, "a bundle is no text; send stdout to a file")
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return sandbox.Bundle(cmd.Context(), sb, e.Stdout)
		},
	}
}

// unsavedText is u, one thing a line.
func unsavedText(u *sandbox.Unsaved, prefix string) string {
	var b strings.Builder
	for _, c := range u.Commits {
		fmt.Fprintf(&b, "%scommit %.12s %s\n", prefix, c.ID, printable(c.Subject))
	}
	if u.More {
		fmt.Fprintf(&b, "%sand more commits\n", prefix)
	}
	for _, f := range u.Files {
		fmt.Fprintf(&b, "%sfile %s\n", prefix, printable(f))
	}
	return b.String()
}

// rescue says how what only the sandbox has gets out. A bundle has commits only.
func rescue(name string, u *sandbox.Unsaved) string {
	var how []string
	if len(u.Commits) > 0 {
		how = append(how, fmt.Sprintf("'kitbox workspace bundle %s' gets the commits out", name))
	}
	if len(u.Files) > 0 {
		how = append(how, fmt.Sprintf("'kitbox cp %s:FILE .' copies a file that is not committed", name))
	}
	return strings.Join(how, ", ")
}

// loses asks before what only sb has goes with it. Without somebody to ask it is a
// refusal.
func (e *Env) loses(cmd *cobra.Command, sb sandbox.Sandbox) error {
	u, err := sandbox.FindUnsaved(cmd.Context(), sb)
	if err != nil {
		return fmt.Errorf("%v; --force removes it whatever it holds: %w", err, kiterr.ErrRefused)
	}
	if u.Empty() {
		return nil
	}
	fmt.Fprintf(e.Stderr, "kitbox: only the workspace of %s has\n%s", sb.Name(), unsavedText(u, "  "))
	refused := fmt.Errorf("sandbox %s is kept: %s, --force removes it with all that: %w", sb.Name(), rescue(sb.Name(), u), kiterr.ErrRefused)
	if no, _ := cmd.Flags().GetBool("no-input"); no || terminal(e.Stdin) == nil || terminal(e.Stderr) == nil {
		return refused
	}
	fmt.Fprintf(e.Stderr, "Remove %s with all that? [y/N] ", sb.Name())
	ok, err := yes(cmd.Context(), e.Stdin)
	switch {
	case err != nil:
		fmt.Fprintln(e.Stderr)
		return err
	case ok:
		return nil
	}
	return refused
}
