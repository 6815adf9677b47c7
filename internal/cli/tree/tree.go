// Package tree is the root of a tree of commands: its help, its options, how its
// errors are shown, and its exit statuses. It knows none of the commands, so that a
// small program can have some of them.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The groups of the root's help, in the order shown.
const (
	GroupRun    = "run"
	GroupLife   = "life"
	GroupLook   = "look"
	GroupAuthor = "author"
	GroupImages = "images"
)

// A Command is one of the root's before it is made. Its names stand here, too, so that
// it can be found without making any.
type Command struct {
	Names []string // the name, then aliases
	Group string
	Make  func(*world.Env) *cobra.Command
}

// Main runs one invocation with the commands in list and returns its exit status.
// whole is whether they are all that there are: then there is completion, too.
func Main(ctx context.Context, e *world.Env, list []Command, whole bool) int {
	root := New(e, list, whole)
	ownHelp(root)
	if len(e.Args) > 0 && strings.HasPrefix(e.Args[0], cobra.ShellCompRequestCmd) {
		describe(root)
	}
	root.SetArgs(e.Args)
	root.SetIn(world.Input(ctx, e.Stdin))
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

// ownHelp gives the command help, which is cobra's, the form of the others.
func ownHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Use = "help [COMMAND...]"
			c.Short = "Show the help of a command"
			c.Long = "Shows the help of a command, as --help behind it does; without one, what commands\nthere are."
			c.Example = "  kitbox help run\n  kitbox help policy log"
			c.DisableFlagsInUseLine = true
		}
	}
}

// helpless says that help is asked for a command that does not exist: cobra
// shows that of the nearest one above.
func helpless(e *world.Env, root, cmd *cobra.Command) error {
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

// New is the tree of the commands in list; whole as for [Main].
func New(e *world.Env, list []Command, whole bool) *cobra.Command {
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
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return argument.Mistake(cmd, "%s", unfit(err)) })
	root.AddGroup(
		&cobra.Group{ID: GroupRun, Title: "Running Kits:"},
		&cobra.Group{ID: GroupLife, Title: "Sandboxes:"},
		&cobra.Group{ID: GroupLook, Title: "Looking at them:"},
		&cobra.Group{ID: GroupAuthor, Title: "Writing Kits:"},
		&cobra.Group{ID: GroupImages, Title: "Images and this machine:"},
	)
	root.Version = e.Version
	root.SetVersionTemplate("kitbox {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version, as the command version does")
	root.CompletionOptions.DisableDefaultCmd = !whole
	root.SetHelpCommandGroupID(GroupImages)
	root.SetCompletionCommandGroupID(GroupImages)
	root.PersistentFlags().Bool("no-input", false, "never ask anything; fail and say what to do instead")
	for _, c := range list {
		cmd := c.Make(e)
		cmd.GroupID = c.Group
		root.AddCommand(cmd)
	}
	root.SetUsageTemplate(usageTemplate)
	dress(root)
	return root
}

// unfit says what is wrong with the options of a command. Of a value that an option does
// not take, the library says what its parser did not like, and not what it likes.
func unfit(err error) string {
	var e *pflag.InvalidValueError
	if !errors.As(err, &e) {
		return err.Error()
	}
	what := ""
	switch f := e.GetFlag(); f.Value.Type() {
	case "duration":
		what = "a time such as 90s, 30m or 2h"
	case "int", "int64":
		what = "a whole number"
	case "float64":
		what = "a number such as 2 or 0.5"
	case "bool":
		what = "true or false"
	default:
		return err.Error()
	}
	return fmt.Sprintf("--%s %q: not %s", e.GetFlag().Name, e.GetValue(), what)
}

// describe makes the usages of the options of a tree what completion shows beside
// them, which is one line without marks. Help needs them as they are.
func describe(cmd *cobra.Command) {
	plain := func(f *pflag.Flag) {
		_, f.Usage = pflag.UnquoteUsage(f)
		f.Usage = strings.ReplaceAll(f.Usage, "\n", " ")
	}
	cmd.Flags().VisitAll(plain)
	cmd.PersistentFlags().VisitAll(plain)
	for _, c := range cmd.Commands() {
		describe(c)
	}
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
