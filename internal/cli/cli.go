// Package cli is the kitbox command as a library: it turns arguments into calls
// of package sandbox and answers into text.
//
// It holds the root of the command tree, its help, and the exit statuses. The
// commands are in packages by family below it, and what they share beside those.
// They see the world only through [Env], import no implementation, and hold to
// three rules: stdout carries results and nothing else, --json prints one
// document, and an error is one line that names the thing and the next step.
// The wiring is in internal/app.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Env is the world as one invocation sees it.
type Env = world.Env

// Main runs one invocation and returns its exit status.
func Main(ctx context.Context, e *Env) int { return run(ctx, e, called(e.Args)) }

// run is Main with the commands in list only.
func run(ctx context.Context, e *Env, list []command) int {
	root := newRoot(e, list)
	root.SetArgs(e.Args)
	root.SetIn(e.Stdin)
	help := &firstError{w: e.Stdout} // cobra looks at none
	root.SetOut(help)
	root.SetErr(e.Stderr)
	var unknown error
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if unknown = helpless(e, root, cmd); unknown == nil {
			show(cmd, args)
		}
	})
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = unknown
	}
	if err == nil {
		err = help.err
	}
	var status kiterr.ExitStatus
	if err != nil && !errors.As(err, &status) {
		fmt.Fprintln(e.Stderr, output.Message(err))
	}
	return kiterr.ExitCode(err)
}

// helpless says that help is asked for a command that does not exist: cobra
// shows that of the nearest one above.
func helpless(e *Env, root, cmd *cobra.Command) error {
	rest := cmd.Flags().Args()
	if len(e.Args) > 0 && e.Args[0] == "help" {
		cmd, rest, _ = root.Find(e.Args[1:])
	}
	if cmd == nil || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil
	}
	return argument.Unknown(cmd, rest[0])
}

// A firstError keeps the first error of writing to w.
type firstError struct {
	w   io.Writer
	err error
}

// Write implements [io.Writer].
func (f *firstError) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if f.err == nil {
		f.err = err
	}
	return n, err
}

// newRoot is the tree of the commands in list.
func newRoot(e *Env, list []command) *cobra.Command {
	root := &cobra.Command{
		Use:   "kitbox",
		Short: "Run Kits in sandboxes that enforce what the Kits declare",
		Long: `kitbox runs Kits: container images that declare what their content needs from
the host. A sandbox is made of one workload and any number of mixins, reaches
only the hosts that they declare, and keeps only what they ask to keep.`,
		Example: `  kitbox run --rm ./examples/hello             build the Kit there and run it
  kitbox run ./examples/hello . -- there       with this directory as its workspace
  kitbox create --name t ./examples/hello --kit ./examples/tool
  kitbox exec t -- cat /time.txt
  kitbox policy log t                          what was allowed and refused`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          argument.Group,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return argument.Mistake(cmd, "%v", err) })
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Running Kits:"},
		&cobra.Group{ID: groupLife, Title: "Sandboxes:"},
		&cobra.Group{ID: groupLook, Title: "Looking at them:"},
		&cobra.Group{ID: groupAuthor, Title: "Writing Kits:"},
		&cobra.Group{ID: groupImages, Title: "Images and this machine:"},
	)
	root.CompletionOptions.DisableDefaultCmd = len(list) < len(commands) // it is not called
	root.SetHelpCommandGroupID(groupImages)
	root.SetCompletionCommandGroupID(groupImages)
	root.PersistentFlags().Bool("no-input", false, "never ask anything; fail and say what to do instead")
	for _, c := range list {
		cmd := c.make(e)
		cmd.GroupID = c.group
		root.AddCommand(cmd)
	}
	root.SetUsageTemplate(usageTemplate)
	dress(root)
	return root
}

// statusNote marks the commands whose help lists exit statuses.
const statusNote = "exit status"

// dress makes the usage lines of a tree alike: options are said to be there once
// and stand before the arguments.
func dress(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	name, rest, _ := strings.Cut(cmd.Use, " ")
	if cmd.HasAvailableLocalFlags() && !strings.Contains(rest, "[options]") {
		cmd.Use = strings.TrimSpace(name + " [options] " + rest)
	}
	if !cmd.HasParent() || !cmd.Parent().HasParent() && (name == "run" || name == "exec") {
		cmd.Annotations = map[string]string{statusNote: ""}
	}
	for _, c := range cmd.Commands() {
		dress(c)
	}
}
