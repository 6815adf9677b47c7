// Package argument judges the arguments of commands: how many there are, which
// subcommand is meant, and how a mistake in them is said.
//
// What stands in options is read by internal/cli/option.
package argument

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// Mistake is a mistake in the arguments of cmd; it says where the help is.
func Mistake(cmd *cobra.Command, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if strings.HasSuffix(text, "?") {
		return fmt.Errorf("%s See %q", text, cmd.CommandPath()+" --help")
	}
	return fmt.Errorf("%s; see %q", text, cmd.CommandPath()+" --help")
}

// Group is what the arguments of a command that only holds others must be.
func Group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Unknown(cmd, args[0])
	}
	return nil
}

// Holder makes cmd one that only holds others.
func Holder(cmd *cobra.Command, others ...*cobra.Command) *cobra.Command {
	cmd.Args = Group
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(others...)
	return cmd
}

// Unknown is the mistake of a command name that cmd does not have, with those that are
// near.
func Unknown(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return Mistake(cmd, "there is no command %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return Mistake(cmd, "there is no command %q", name)
}

// One takes exactly one argument, named what in the message.
func One(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return Mistake(cmd, "%s takes one %s, %d given", cmd.Name(), what, len(args))
		}
		return nil
	}
}

// AtMostOne takes one argument or none, named what in the message.
func AtMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return Mistake(cmd, "%s takes one %s at most, %d given", cmd.Name(), what, len(args))
		}
		return nil
	}
}

// AtLeastOne takes arguments, named what in the message.
func AtLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Mistake(cmd, "%s takes at least one %s", cmd.Name(), what)
		}
		return nil
	}
}

// None takes no argument.
func None(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Mistake(cmd, "%s takes no argument, %q given", cmd.Name(), args[0])
	}
	return nil
}

// Two takes exactly two arguments, named first and second in the message.
func Two(first, second string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return Mistake(cmd, "%s takes a %s and a %s, %d given", cmd.Name(), first, second, len(args))
		}
		return nil
	}
}

// ImageName judges a name that an image is to get.
func ImageName(cmd *cobra.Command, name string) error {
	im, err := constraint.ParseImage(name)
	if err == nil && im.Digest != "" {
		err = fmt.Errorf("%s: a digest belongs to what has it and cannot be given: leave it out", name)
	}
	if err != nil {
		return Mistake(cmd, "%v", err)
	}
	return nil
}
