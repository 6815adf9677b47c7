// Package cli is the kitbox command as a library: it turns arguments into calls
// of package sandbox and answers into text.
//
// It sees the world only through [Env], imports no implementation, and holds to
// three rules: stdout carries results and nothing else, --json prints one
// document, and an error is one line that names the thing and the next step.
// The wiring is in internal/app.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/kitcmd"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Env is the world as one invocation sees it. Nothing in this package reaches
// for os.Args, os.Stdout or the environment on its own.
type Env struct {
	Args   []string // without the program name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // nil: an empty environment

	Version string

	Runtime sandbox.Runtime
	Images  sandbox.ImageStore
	Builder sandbox.Builder
	Doctor  sandbox.Doctor
}

func (e *Env) getenv(name string) string {
	if e.Getenv == nil {
		return ""
	}
	return e.Getenv(name)
}

// Main runs one invocation and returns its exit status.
func Main(ctx context.Context, e *Env) int {
	root := newRoot(e)
	root.SetArgs(e.Args)
	root.SetIn(e.Stdin)
	help := &firstError{w: e.Stdout} // cobra looks at none
	root.SetOut(help)
	root.SetErr(e.Stderr)
	var unknown error
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if unknown = e.helpless(root, cmd); unknown == nil {
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
		fmt.Fprintln(e.Stderr, message(err))
	}
	return kiterr.ExitCode(err)
}

// helpless says that help is asked for a command that does not exist: cobra
// shows that of the nearest one above.
func (e *Env) helpless(root, cmd *cobra.Command) error {
	rest := cmd.Flags().Args()
	if len(e.Args) > 0 && e.Args[0] == "help" {
		cmd, rest, _ = root.Find(e.Args[1:])
	}
	if cmd == nil || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil
	}
	return unknownCommand(cmd, rest[0])
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

// message is what a user reads of err: one line for one thing. Errors that
// list several violations keep one line for each, indented under the first.
func message(err error) string {
	if errors.Is(err, context.Canceled) {
		return "kitbox: interrupted"
	}
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	for i, l := range lines {
		lines[i] = withoutFamily(strings.TrimSpace(l))
		if i > 0 {
			lines[i] = "  " + lines[i]
		}
	}
	return "kitbox: " + strings.Join(lines, "\n")
}

// families are the errors whose text may end another's, for programs that test
// for them; a person has read the sentence by then.
var families = []error{kiterr.ErrRefused, kiterr.ErrWidening, kiterr.ErrUnsupported, kiterr.ErrNotFound, kiterr.ErrExists,
	kiterr.ErrNotRunning, kiterr.ErrCannotExec, kiterr.ErrLost, kiterr.ErrUnavailable}

// withoutFamily drops the names of families from the end of a line that says
// something without them. "sandbox t: not found" does not: what stands before is
// only the name of a thing.
func withoutFamily(line string) string {
	first := ""
	for again := true; again; {
		again = false
		for _, f := range families {
			if rest, ok := strings.CutSuffix(line, ": "+f.Error()); ok {
				line, first, again = rest, ": "+f.Error(), true
			}
		}
	}
	if clause := line[strings.LastIndex(line, ": ")+1:]; len(strings.Fields(clause)) < 3 {
		return line + first
	}
	return line
}

// usageError is a mistake in the arguments; it says where the help is.
func usageError(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%s; see %q", fmt.Sprintf(format, args...), cmd.CommandPath()+" --help")
}

// group is what the arguments of a command that only holds others must be.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return nil
}

func unknownCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usageError(cmd, "there is no command %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return usageError(cmd, "there is no command %q", name)
}

// The groups of the root's help, in the order shown.
const (
	groupRun    = "run"
	groupLife   = "life"
	groupLook   = "look"
	groupAuthor = "author"
	groupImages = "images"
)

func newRoot(e *Env) *cobra.Command {
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
		Args:          group,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, "%v", err) })
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Running Kits:"},
		&cobra.Group{ID: groupLife, Title: "Sandboxes:"},
		&cobra.Group{ID: groupLook, Title: "Looking at them:"},
		&cobra.Group{ID: groupAuthor, Title: "Writing Kits:"},
		&cobra.Group{ID: groupImages, Title: "Images and this machine:"},
	)
	root.SetHelpCommandGroupID(groupImages)
	root.SetCompletionCommandGroupID(groupImages)
	root.PersistentFlags().Bool("no-input", false, "never ask anything; fail and say what to do instead")
	if hot := e.hot(); hot != nil {
		hot.GroupID = groupRun
		root.AddCommand(hot)
		root.SetUsageTemplate(usageTemplate)
		dress(root)
		return root
	}
	for _, c := range []struct {
		group string
		cmd   *cobra.Command
	}{
		{groupRun, e.run()}, {groupRun, e.create()}, {groupRun, e.exec()}, {groupRun, e.attach()}, {groupRun, e.job()}, {groupRun, e.copy()}, {groupRun, e.plan()}, {groupRun, e.lock()}, {groupRun, e.update()},
		{groupLife, e.stop()}, {groupLife, e.start()}, {groupLife, e.restart()}, {groupLife, e.recreate()}, {groupLife, e.remove()},
		{groupLook, e.list()}, {groupLook, e.status()}, {groupLook, e.logs()}, {groupLook, e.inspect()}, {groupLook, e.ports()}, {groupLook, e.events()}, {groupLook, e.policy()},
		{groupAuthor, kitcmd.New(e.descriptor)}, {groupAuthor, e.build()},
		{groupLife, e.volume()}, {groupLife, e.mount()}, {groupLife, e.secret()}, {groupLife, e.workspace()},
		{groupImages, e.images()}, {groupImages, e.pull()}, {groupImages, e.push()}, {groupImages, e.tag()}, {groupImages, e.image()}, {groupImages, e.prune()},
		{groupImages, e.base()}, {groupImages, e.doctor()}, {groupImages, e.version()},
	} {
		c.cmd.GroupID = c.group
		root.AddCommand(c.cmd)
	}
	root.SetUsageTemplate(usageTemplate)
	dress(root)
	return root
}

// hot is the command that is called when it is one of those that programs call
// again and again; nil for all others. Making all commands takes longer than some
// of them.
func (e *Env) hot() *cobra.Command {
	if len(e.Args) == 0 {
		return nil
	}
	switch e.Args[0] {
	case "exec":
		return e.exec()
	case "run":
		return e.run()
	}
	return nil
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

// usageTemplate is laid out like a manual page: what, how, options, examples,
// and exit statuses where a script would look for them.
const usageTemplate = `Usage:
  {{if .Runnable}}{{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}{{if .Runnable}}
  {{end}}{{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Options:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Options of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .Annotations}}

Exit status:
  0 success, 1 failure, 2 refused (by the format, a policy, or a capability
  that this host does not grant), 3 approval needed, 125 a command could not be
  started, 130 interrupted; run and exec pass on the status of the command.{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more about a command.{{end}}
`

// descriptor is that of a published Kit.
func (e *Env) descriptor(ctx context.Context, ref string) ([]byte, error) {
	g, err := sandbox.Preflight(ctx, e.Images, ref)
	return g.Descriptor, err
}

// names completes the name of an existing sandbox.
func (e *Env) names(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "rm" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	infos, err := e.Runtime.List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ns []string
	for _, i := range infos {
		ns = append(ns, i.Name)
	}
	return ns, cobra.ShellCompDirectiveNoFileComp
}

// one takes exactly one argument, named what in the message.
func one(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError(cmd, "%s takes one %s, %d given", cmd.Name(), what, len(args))
		}
		return nil
	}
}

// atMostOne takes one argument or none, named what in the message.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageError(cmd, "%s takes one %s at most, %d given", cmd.Name(), what, len(args))
		}
		return nil
	}
}

// atLeastOne takes arguments, named what in the message.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError(cmd, "%s takes at least one %s", cmd.Name(), what)
		}
		return nil
	}
}

func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(cmd, "%s takes no argument, %q given", cmd.Name(), args[0])
	}
	return nil
}

// fileOf returns the file behind a stream, nil when it is something else.
func fileOf(stream any) *os.File {
	f, _ := stream.(*os.File)
	return f
}
