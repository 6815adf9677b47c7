package lifecmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Remove makes "kitbox rm".
func Remove(e *world.Env) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove a sandbox, running or not; its volumes are kept",
		Long: `Stops the sandbox and deletes it with all it wrote, except its volumes and a
workspace that is a directory of this machine: a sandbox that is created later
under the same name has the volumes again. Which they are is said on stderr, and
"kitbox volume rm" deletes them.

A cloned workspace goes too. Commits that only it has, and changes that are not
committed, are listed first: at a terminal rm asks then, and otherwise it removes
nothing and ends with status 2, unless --force is given. "kitbox workspace
bundle" gets the commits out, and "kitbox cp" what is not committed.`,
		Example: `  kitbox rm t
  kitbox rm --force t     whatever its workspace holds`,
		Args:              atLeastOneName,
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(e, cmd, args, func(sb sandbox.Sandbox) error {
				if !force {
					if err := loses(e, cmd, sb); err != nil {
						return err
					}
				}
				if err := sb.Remove(cmd.Context()); err != nil {
					return err
				}
				if quiet, _ := cmd.Flags().GetBool("quiet"); !quiet {
					tellKept(e, cmd, sb.Name())
				}
				return nil
			})
		},
	}
	quietFlag(cmd)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not look for what would be lost, and do not ask")
	return cmd
}

// tellKept names the volumes that are left under the name of a sandbox which is gone, since
// nobody looks for what takes the disk without being seen. That they cannot be listed is
// no failure of the removal.
func tellKept(e *world.Env, cmd *cobra.Command, name string) {
	k, err := sandbox.VolumesOf(e.Runtime)
	if err != nil {
		return
	}
	volumes, err := k.Volumes(cmd.Context(), name)
	if err != nil || len(volumes) == 0 {
		return
	}
	paths := make([]string, len(volumes))
	for i, v := range volumes {
		paths[i] = output.Printable(v.Path)
	}
	what := "the volume %s of %s is kept: 'kitbox volume rm %s' deletes it"
	if len(paths) > 1 {
		what = "the volumes %s of %s are kept: 'kitbox volume rm %s' deletes them"
	}
	fmt.Fprintf(e.Stderr, "kitbox: "+what+"\n", strings.Join(paths, ", "), name, name)
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
func loses(e *world.Env, cmd *cobra.Command, sb sandbox.Sandbox) error {
	u, err := sandbox.FindUnsaved(cmd.Context(), sb)
	if err != nil {
		return fmt.Errorf("%v; --force removes it whatever it holds: %w", err, kiterr.ErrRefused)
	}
	if u.Empty() {
		return nil
	}
	fmt.Fprintf(e.Stderr, "kitbox: only the workspace of %s has\n%s", sb.Name(), summary.Unsaved(u, "  "))
	refused := fmt.Errorf("sandbox %s is kept: %s, --force removes it with all that: %w", sb.Name(), rescue(sb.Name(), u), kiterr.ErrRefused)
	ok, _, err := e.Confirm(cmd, "Remove "+sb.Name()+" with all that?")
	switch {
	case err != nil:
		return err
	case ok:
		return nil
	}
	return refused
}
