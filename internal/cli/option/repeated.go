package option

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Repeated adds an option that can be given several times, and collects its values in
// v, in the order given. shorthand may be empty. It is what pflag's StringArrayVarP is
// with a nil default, which prepares a writer of CSV with a buffer of 4 KiB for each
// option when it is added.
func Repeated(cmd *cobra.Command, v *[]string, name, shorthand, usage string) {
	*v = nil
	cmd.Flags().VarP((*repeated)(v), name, shorthand, usage)
}

// repeated is the values of an option so far.
type repeated []string

var (
	_ pflag.Value      = (*repeated)(nil)
	_ pflag.SliceValue = (*repeated)(nil) // completion offers the option again
)

// Set implements [pflag.Value].
func (r *repeated) Set(s string) error { return r.Append(s) }

// String implements [pflag.Value]. That of no values is empty: help shows no default.
func (r *repeated) String() string { return strings.Join(*r, ",") }

// Type implements [pflag.Value]; help shows it where a usage has no word in backquotes.
func (*repeated) Type() string { return "stringArray" }

// Append implements [pflag.SliceValue].
func (r *repeated) Append(s string) error {
	*r = append(*r, s)
	return nil
}

// Replace implements [pflag.SliceValue].
func (r *repeated) Replace(s []string) error {
	*r = slices.Clone(s)
	return nil
}

// GetSlice implements [pflag.SliceValue].
func (r *repeated) GetSlice() []string { return slices.Clone(*r) }
