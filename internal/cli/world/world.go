// Package world is what one invocation of the command sees of the outside: its
// arguments, its streams, its variables, and the services that do the work.
//
// Commands are made from an [Env] and reach for nothing else. It is filled in
// internal/app.
package world

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Env is the world as one invocation sees it. No command reaches for
// os.Args, os.Stdout or the environment on its own.
type Env struct {
	Args   []string // without the program name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// LookupEnv returns a variable of the environment, and whether it is set.
	// Nil: an empty environment.
	LookupEnv func(string) (string, bool)

	Version string

	Runtime sandbox.Runtime
	Images  sandbox.ImageStore
	Builder sandbox.Builder
	Doctor  sandbox.Doctor
}

// Variable is the value of an environment variable; empty when it is not set.
func (e *Env) Variable(name string) string {
	v, _ := e.Lookup(name)
	return v
}

// Lookup is the value of an environment variable, and whether it is set: to nothing,
// perhaps.
func (e *Env) Lookup(name string) (string, bool) {
	if e.LookupEnv == nil {
		return "", false
	}
	return e.LookupEnv(name)
}

// OnSandbox is the work of a command whose first argument is the name of a sandbox: f,
// with that sandbox and the arguments after its name.
func (e *Env) OnSandbox(f func(cmd *cobra.Command, sb sandbox.Sandbox, rest []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		sb, err := e.Runtime.Open(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return f(cmd, sb, args[1:])
	}
}

// Names completes the name of an existing sandbox: the first argument, or each of those
// of a command that takes several, none twice.
func (e *Env) Names(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && !strings.Contains(cmd.Use, "NAME...") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	infos, err := e.Runtime.List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ns []string
	for _, i := range infos {
		if !slices.Contains(args, i.Name) {
			ns = append(ns, i.Name)
		}
	}
	return ns, cobra.ShellCompDirectiveNoFileComp
}

// Asking returns the terminal on which something may be asked; nil: none.
func (e *Env) Asking(cmd *cobra.Command) *os.File {
	if no, err := cmd.Flags().GetBool("no-input"); err == nil && no {
		return nil
	}
	return terminal.Of(e.Stdin)
}

// Confirm asks question and reports whether the answer is yes. asked is false where
// nothing may be asked, or nobody would see the question. The error is that of an
// interruption.
func (e *Env) Confirm(cmd *cobra.Command, question string) (yes, asked bool, err error) {
	in := e.Asking(cmd)
	if in == nil || terminal.Of(e.Stderr) == nil {
		return false, false, nil
	}
	fmt.Fprintf(e.Stderr, "%s [y/N] ", question)
	yes, err = terminal.Yes(cmd.Context(), in)
	if err != nil {
		fmt.Fprintln(e.Stderr)
	}
	return yes, true, err
}
