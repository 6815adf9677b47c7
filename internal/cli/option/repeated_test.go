package option

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ours and theirs are a command with one option that can be repeated.
func ours(usage string) (*cobra.Command, *[]string) {
	cmd, v := &cobra.Command{Use: "x"}, &[]string{"before"}
	Repeated(cmd, v, "value", "v", usage)
	return cmd, v
}

func theirs(usage string) (*cobra.Command, *[]string) {
	cmd, v := &cobra.Command{Use: "x"}, &[]string{"before"}
	cmd.Flags().StringArrayVarP(v, "value", "v", nil, usage)
	return cmd, v
}

func TestARepeatedOptionIsOneOfPflags(t *testing.T) {
	for _, args := range []string{"", "-v a", "--value a -v b,c --value=", "-va --value=\"x -v , --value a=b", "-v"} {
		a, got := ours("a `KIT` (repeatable)")
		b, want := theirs("a `KIT` (repeatable)")
		gotErr, wantErr := a.ParseFlags(strings.Fields(args)), b.ParseFlags(strings.Fields(args))
		if (*got == nil) != (*want == nil) || !slices.Equal(*got, *want) || a.Flags().Changed("value") != b.Flags().Changed("value") {
			t.Errorf("%q: %q, want %q", args, *got, *want)
		}
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("%q: %v, want %v", args, gotErr, wantErr)
		}
	}
	for _, usage := range []string{"a `KIT`", "one without a word for its value", ""} {
		a, _ := ours(usage)
		b, _ := theirs(usage)
		if got, want := a.Flags().FlagUsages(), b.Flags().FlagUsages(); got != want {
			t.Errorf("help %q, want %q", got, want)
		}
	}
}

func TestARepeatedOptionIsASlice(t *testing.T) {
	cmd, v := ours("")
	s, ok := cmd.Flags().Lookup("value").Value.(pflag.SliceValue)
	if !ok {
		t.Fatal("completion does not offer it again")
	}
	given := []string{"a", "b"}
	if err := s.Replace(given); err != nil {
		t.Fatal(err)
	}
	given[0] = "x"
	if err := s.Append("c"); err != nil || !slices.Equal(*v, []string{"a", "b", "c"}) {
		t.Errorf("%q, %v", *v, err)
	}
	s.GetSlice()[0] = "x"
	if got := s.GetSlice(); !slices.Equal(got, *v) || got[0] != "a" {
		t.Errorf("%q", got)
	}
}

func TestARepeatedOptionCostsNoBuffer(t *testing.T) {
	size := func(add func()) uint64 {
		const times = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			add()
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / times
	}
	got, want := size(func() { ours("") }), size(func() { theirs("") })
	if got+4096 > want {
		t.Errorf("%d bytes, and %d with a buffer", got, want)
	}
}
