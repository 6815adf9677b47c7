package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kitbox-dev/kitbox/internal/cli/tree"
)

// paths are the words of every command below cmd.
func paths(cmd *cobra.Command, words ...string) [][]string {
	var all [][]string
	for _, c := range cmd.Commands() {
		below := append(slices.Clone(words), c.Name())
		all = append(append(all, below), paths(c, below...)...)
	}
	return all
}

func TestACommandIsFoundByTheNamesItHas(t *testing.T) {
	for _, c := range commands {
		made := c.Make(&Env{})
		if names := append([]string{made.Name()}, made.Aliases...); !slices.Equal(names, c.Names) {
			t.Errorf("the command %q is called %q", names, c.Names)
		}
		for _, name := range c.Names {
			for _, args := range [][]string{{name}, {name, "--help"}, {"--no-input", name, "x"}, {"--no-input=true", "--no-input", name}} {
				list := called(args)
				if len(list) != 1 || !slices.Equal(list[0].Names, c.Names) {
					t.Errorf("%q: %d commands", args, len(list))
				}
				if root := tree.New(&Env{Args: args}, list, false); len(root.Commands()) != 1 {
					t.Errorf("%q: the tree has %d commands", args, len(root.Commands()))
				}
			}
		}
	}
}

// Whoever knows an option of one command knows it of all: it has the same letter, and
// help says in a word what its value is.
func TestAnOptionIsSpelledAlikeEverywhere(t *testing.T) {
	letters := map[string]string{}
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			at := cmd.CommandPath() + " --" + f.Name
			if word, _ := pflag.UnquoteUsage(f); word != "" && word == f.Value.Type() || slices.Contains([]string{"float", "int", "duration", "strings"}, word) {
				t.Errorf("%s: help calls its value a %s", at, word)
			}
			if at == "kitbox secret set --env" { // whose secret is in a variable: it sets none
				return
			}
			if other, ok := letters[f.Name]; ok && other != f.Shorthand {
				t.Errorf("%s: the letter is %q, and %q elsewhere", at, f.Shorthand, other)
			}
			letters[f.Name] = f.Shorthand
		})
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(tree.New(&Env{}, commands, true))
	if letters["env"] != "e" || letters["quiet"] != "q" || len(letters) < 50 {
		t.Errorf("the options are %v", letters)
	}
}

func TestWhatIsAboutAllCommandsSeesThem(t *testing.T) {
	for _, args := range []string{"", "--help", "-h", "help", "help run", "completion bash", "__complete run", "__complete ", "creat", "frob", "runs", "--help run", "-h run", "--nope run", "-- run", "--no-input"} {
		if list := called(strings.Fields(args)); len(list) != len(commands) {
			t.Errorf("%q: %d commands", args, len(list))
		}
	}
}

func TestACommandAloneIsAsItIsAmongAll(t *testing.T) {
	both := func(args ...string) {
		t.Helper()
		var got, want [2]bytes.Buffer
		alone := run(t.Context(), &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &got[0], Stderr: &got[1], Runtime: &fake{}}, called(args))
		among := run(t.Context(), &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &want[0], Stderr: &want[1], Runtime: &fake{}}, commands)
		if alone != among || got[0].String() != want[0].String() || got[1].String() != want[1].String() {
			t.Errorf("%q: status %d, %q, %q; among all %d, %q, %q", args, alone, &got[0], &got[1], among, &want[0], &want[1])
		}
		if want[0].Len()+want[1].Len() == 0 {
			t.Errorf("%q says nothing", args)
		}
	}
	all := paths(tree.New(&Env{}, commands, true))
	if len(all) < 2*len(commands)-20 {
		t.Fatalf("%d commands", len(all))
	}
	for _, words := range all {
		both(append(slices.Clone(words), "--help")...)
		both(append([]string{"--no-input"}, append(slices.Clone(words), "-h")...)...)
		both(append(slices.Clone(words), "--no-such-option")...)
		if len(words) == 1 {
			both(words[0], "no-such-command", "--help", "x")
		}
	}
}
