// Package execcmd is the commands that run something in a sandbox that exists: exec,
// attach, and for what was detached job and logs.
package execcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/stream"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Exec makes "kitbox exec".
func Exec(e *world.Env) *cobra.Command {
	var (
		s     stream.Streams
		c     sandbox.Cmd
		user  string
		files []string
		alone bool
	)
	cmd := &cobra.Command{
		Use:   "exec [options] NAME [--] COMMAND [ARG...]",
		Short: "Run a command in a running sandbox",
		Long: `Runs COMMAND in the sandbox NAME and ends with its status. stdout and stderr
stay apart and are passed on byte for byte; without -i the command's input is
empty, also at a terminal of its own (-t). -t with -i needs a terminal on stdin.

Signals that exec gets go on to COMMAND and its children; ten seconds after an INT,
TERM or HUP, or at a second one, what is left of them is ended. With -d, COMMAND
runs on by itself, and exec prints an id once it has started: "kitbox logs NAME ID"
shows what it prints, and "kitbox job" the others.

The status is 125 when COMMAND was not started, whatever the reason: mistakes in
exec's own arguments are one.

A file given with --env-file has a NAME=VALUE in each line; one with a NAME alone
takes the value of this machine's variable, if it is set, and one that begins with #
is a comment. -e comes over it.`,
		Example: `  kitbox exec t -- cat /time.txt
  kitbox exec -it t -- bash
  tar c . | kitbox exec -i t -- tar x -C /tmp
  kitbox exec -u 0 t -- apt-get update
  kitbox logs -f t $(kitbox exec -d t -- make test)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || args[1] == "--" && len(args) < 3 {
				return notDone(argument.Mistake(cmd, "exec takes the NAME of a sandbox and a COMMAND"))
			}
			if strings.HasPrefix(args[1], "-") && args[1] != "--" {
				return notDone(argument.Mistake(cmd, "%s: options of exec stand before NAME, the command after --", args[1]))
			}
			return nil
		},
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			// What ran has a status, which stays as it is.
			defer func() { err = notDone(err) }()
			if err := s.Check(cmd, e); err != nil {
				return err
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			c.Args = args[1:]
			if c.Args[0] == "--" {
				c.Args = c.Args[1:]
			}
			c.User = user
			c.Env = option.Own(e.Lookup, c.Env)
			if _, err := option.Variables(cmd, c.Env); err != nil {
				return err
			}
			var env []string
			for _, f := range files {
				vars, err := envFile(e, f)
				if err != nil {
					return err
				}
				env = append(env, vars...)
			}
			c.Env = append(env, c.Env...)
			if alone {
				return detach(e, cmd, &s, sb, &c)
			}
			res, err := s.Run(cmd.Context(), e, sb, &c)
			return result(res, err)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return notDone(argument.Mistake(cmd, "%v", err)) })
	// What follows the name belongs to the command, dashes and all.
	cmd.Flags().SetInterspersed(false)
	s.Flags(cmd, false)
	cmd.Flags().StringVarP(&user, "user", "u", "", "run as `USER[:GROUP]` (default: the image's user)")
	cmd.Flags().StringVarP(&c.Dir, "workdir", "w", "", "run in `DIR` (default: the workspace)")
	option.EnvVar(cmd, &c.Env)
	option.Repeated(cmd, &files, "env-file", "", "set the variables of `FILE` (repeatable)")
	cmd.Flags().BoolVarP(&alone, "detach", "d", false, "let it run on, and print its id")
	return cmd
}

// notDone gives the error of an exec a status that no program of the sandbox was
// asked for: whoever reads the status otherwise takes a sandbox that is stopped for a
// command that failed. One that was interrupted has a status of its own, and one that
// was begun has failed.
func notDone(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, kiterr.ErrLost) || errors.As(err, new(kiterr.ExitStatus)) {
		return err
	}
	return &notDoneError{err}
}

// A notDoneError is an error of whatever family that matches only
// [kiterr.ErrCannotExec], and says what it said.
type notDoneError struct{ err error }

func (e *notDoneError) Error() string        { return e.err.Error() }
func (e *notDoneError) Is(target error) bool { return target == kiterr.ErrCannotExec }

// envFile reads variables, one a line.
func envFile(e *world.Env, file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	var env []string
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			continue
		}
		line = strings.TrimLeft(line, " \t")
		name, _, ok := strings.Cut(line, "=")
		if !option.IsVariable(name) {
			return nil, fmt.Errorf("%s, line %d: %q is no name of a variable: use letters, digits and '_', and no digit first", file, n, name)
		}
		if !ok {
			v, set := e.Lookup(name)
			if !set {
				continue
			}
			line = name + "=" + v
		}
		env = append(env, line)
	}
	return env, nil
}

// Attach makes "kitbox attach".
func Attach(e *world.Env) *cobra.Command {
	var s stream.Streams
	cmd := &cobra.Command{
		Use:   "attach [options] NAME [-- ARG...]",
		Short: "Run the workload of a sandbox that exists, starting it if need be",
		Example: `  kitbox attach t
  kitbox attach t -- --resume`,
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.Check(cmd, e); err != nil {
				return err
			}
			var rest []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, rest = args[:n], args[n:]
			}
			if err := argument.One("NAME")(cmd, args); err != nil {
				return err
			}
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := sb.Start(cmd.Context()); err != nil {
				var hook *sandbox.HookError
				if !errors.As(err, &hook) || hook.Phase != "runtime" {
					return err
				}
				// It is up, as after a creation: what is to be mended is mended
				// from inside.
				fmt.Fprintln(e.Stderr, output.Message(err))
			}
			res, err := s.Run(cmd.Context(), e, sb, &sandbox.Cmd{Args: rest, Workload: true})
			return result(res, err)
		},
	}
	s.Flags(cmd, true)
	return cmd
}

// result is a command's end as the end of this program.
func result(res *sandbox.Result, err error) error {
	if err == nil && res.ExitCode != 0 {
		return kiterr.ExitStatus(res.ExitCode)
	}
	return err
}
