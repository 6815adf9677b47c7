// Package option holds the options that several commands have alike, and reads the
// values that they take.
//
// Each XVar function adds an option; the function without Var judges its value. A
// value that cannot be is a mistake as package argument says them.
package option

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
)

// BuildNetworkVar adds --build-network.
func BuildNetworkVar(cmd *cobra.Command, v *string) {
	cmd.Flags().StringVar(v, "build-network", "none", "the `NET` that RUN steps reach while a Kit is built: none, public, or\nhost, which is all that this machine reaches")
}

// KeepVar adds --keep-duration, preset to an hour.
func KeepVar(cmd *cobra.Command, v *time.Duration) {
	cmd.Flags().DurationVar(v, "keep-duration", time.Hour, "spare what was used within this `TIME`; no build or pull may\ntake longer")
}

// KitVar adds --kit.
func KitVar(cmd *cobra.Command, v *[]string) {
	Repeated(cmd, v, "kit", "", "add another `KIT`: a directory or an image (repeatable)")
}

// ArgVar adds --arg, whose values [Pairs] reads.
func ArgVar(cmd *cobra.Command, v *[]string) {
	Repeated(cmd, v, "arg", "", "`NAME=VALUE` for the arg NAME of the Kits that declare it (repeatable)")
}

// EnvVar adds --env, whose values [Variables] reads.
func EnvVar(cmd *cobra.Command, v *[]string) {
	Repeated(cmd, v, "env", "e", "set a variable, `NAME=VALUE`, or NAME to its value here (repeatable)")
}

// PullVar adds --pull with a preset.
func PullVar(cmd *cobra.Command, v *string, preset string) {
	cmd.Flags().StringVar(v, "pull", preset, "`WHEN` registries are asked: always, missing or never")
	Values(cmd, "pull", "always", "missing", "never")
}

// Values has completion offer values for the option name of cmd, which has it.
func Values(cmd *cobra.Command, name string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // a slip of the program's: there is no such option, or it has values already
	}
}

// Pull judges the value of --pull.
func Pull(cmd *cobra.Command, v string) error {
	switch v {
	case "always", "missing", "never":
		return nil
	}
	return argument.Mistake(cmd, "--pull %q is none of always, missing and never", v)
}

// BuildNetwork judges the value of --build-network; empty stands for none.
func BuildNetwork(cmd *cobra.Command, v string) (string, error) {
	switch v {
	case "none":
		return "", nil
	case "public", "host":
		return v, nil
	}
	return "", argument.Mistake(cmd, "--build-network %q is none of none, public and host", v)
}

// Bytes reads a size as Kits spell it, such as 512m: powers of 1024, at least 1.
func Bytes(s string) (int64, error) {
	digits := strings.TrimRight(strings.ToLower(s), "abgikmt")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("not a size such as 512m or 2g")
	}
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(s)[len(digits):], "b"), "i")
	shift := map[string]int{"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
	by, ok := shift[unit]
	if !ok || n > math.MaxInt64>>by {
		return 0, fmt.Errorf("not a size such as 512m or 2g")
	}
	return n << by, nil
}

// NotNegative refuses a time below zero.
func NotNegative(cmd *cobra.Command, flag string, d time.Duration) error {
	if d < 0 {
		return argument.Mistake(cmd, "--%s takes a time such as 20m, or 0; %s is in the past", flag, d)
	}
	return nil
}

// Pairs reads the values of flag, each NAME=VALUE and no NAME twice.
func Pairs(cmd *cobra.Command, flag string, list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, argument.Mistake(cmd, "%s %q is not of the form NAME=VALUE", flag, s)
		}
		if _, twice := m[name]; twice {
			return nil, argument.Mistake(cmd, "%s sets %s twice", flag, name)
		}
		m[name] = value
	}
	return m, nil
}

// Own gives the variables of list that are named without a value those of this program,
// which lookup tells, and leaves out what it does not have. One that is set to nothing
// is had.
func Own(lookup func(string) (string, bool), list []string) (out []string) {
	for _, kv := range list {
		if !strings.Contains(kv, "=") && IsVariable(kv) {
			v, set := lookup(kv)
			if !set {
				continue
			}
			kv += "=" + v
		}
		out = append(out, kv)
	}
	return out
}

// Variables are the pairs of --env, all with a value: see [Own].
func Variables(cmd *cobra.Command, list []string) (map[string]string, error) {
	m, err := Pairs(cmd, "--env", list)
	for name := range m {
		if !variable().MatchString(name) {
			return nil, argument.Mistake(cmd, "--env: %q is no name of a variable: use letters, digits and '_', and no digit first", name)
		}
	}
	return m, err
}

// IsVariable reports whether name can be that of a variable.
func IsVariable(name string) bool { return variable().MatchString(name) }

var variable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`) })

// AlwaysJSON takes --json of a command that prints nothing else, so that a program can
// ask every command in the same way.
func AlwaysJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("json", true, "print one JSON document, as always")
	return cmd
}

// JSONVar adds --json.
func JSONVar(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print one JSON document")
}

// Exclusive lets only one of the named options of cmd be given. cobra knows of it too,
// so that completion offers no second one, but would say it in words of its own.
func Exclusive(cmd *cobra.Command, names ...string) {
	cmd.MarkFlagsMutuallyExclusive(names...)
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		var given []string
		for _, n := range names {
			if cmd.Flags().Changed(n) {
				given = append(given, "--"+n)
			}
		}
		if len(given) > 1 {
			return argument.Mistake(cmd, "%s exclude each other", strings.Join(given, " and "))
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

// QuietVar adds --quiet, which means what usage says.
func QuietVar(cmd *cobra.Command, v *bool, usage string) {
	cmd.Flags().BoolVarP(v, "quiet", "q", false, usage)
}
