package cli

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Whoever reads the status of exec must be able to tell a command that failed from one
// that never was: 125 is the latter, whatever kept it from being started.
func TestExecWhoseCommandWasNotStartedEndsWith125(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(bad, []byte("1A=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                     "takes the NAME",
		"t":                                    "and a COMMAND",
		"t -i -- true":                         "stand before NAME",
		"--nope t true":                        "unknown flag",
		"--env-file /no/such t true":           "no such file",
		"--env-file " + bad + " t true":        "line 1",
		"-e 1A=x t true":                       "no name of a variable",
		"-e =x t true":                         "NAME",
		"-t -i t true":                         "needs a terminal",
		"-d -i t true":                         "neither -i nor -t",
		"-d t true":                            "", // of a sandbox that cannot
		"missing true":                         "not found",
		"-d missing true":                      "not found",
		"-e A=1 --env-file /no/such -- t true": "no such file",
	} {
		var f fake
		status, out, errs := f.command(append([]string{"exec"}, strings.Fields(args)...)...)
		if status != kiterr.StatusCannotExec || out != "" || !strings.HasPrefix(errs, "kitbox: ") || !strings.Contains(errs, want) || len(f.did) > 0 {
			t.Errorf("exec %s: status %d, stdout %q, stderr %q, did %v", args, status, out, errs, f.did)
		}
	}
	// The status of what ran is its own, and help is none.
	for status, err := range map[int]error{1: kiterr.ErrLost, 130: context.Canceled, 7: nil} {
		f := fake{run: func(context.Context, *sandbox.Cmd) (*sandbox.Result, error) { return &sandbox.Result{ExitCode: 7}, err }}
		if got, _, errs := f.command("exec", "t", "true"); got != status {
			t.Errorf("%v: status %d, %s", err, got, errs)
		}
	}
	var f fake
	if status, _, _ := f.command("exec", "--help"); status != 0 {
		t.Errorf("help: status %d", status)
	}
}

// A variable that is set to nothing is set, and one that is not set is left alone.
func TestVariablesOfThisMachineArePassedOnAsTheyAre(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# comment\n\nEMPTY\nUNSET\nFULL\n A=1\r\nB==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	have := map[string]string{"EMPTY": "", "FULL": "x y", "E2": ""}
	var f fake
	var errs bytes.Buffer
	status := Main(t.Context(), &Env{Args: []string{"exec", "-e", "E2", "-e", "U2", "-e", "FULL", "--env-file", file, "t", "env"}, Stdin: strings.NewReader(""), Stdout: &errs, Stderr: &errs, Runtime: &f,
		LookupEnv: func(name string) (string, bool) { v, ok := have[name]; return v, ok }})
	if got := strings.Join(f.cmd.Env, ";"); status != 0 || got != "EMPTY=;FULL=x y;A=1;B==;E2=;FULL=x y" {
		t.Errorf("status %d, %q: %s", status, got, &errs)
	}
	var g fake
	for _, args := range [][]string{{"create", "./k"}, {"plan", "./k"}, {"run", "./k"}, {"recreate", "t"}} {
		g.options, g.again = sandbox.CreateOptions{}, sandbox.RecreateOptions{}
		status := Main(t.Context(), &Env{Args: append(args, "-e", "E2", "-e", "U2", "--env", "FULL", "-e", "A=1"), Stdin: strings.NewReader(""), Stdout: &errs, Stderr: &errs, Runtime: &g,
			LookupEnv: func(name string) (string, bool) { v, ok := have[name]; return v, ok }})
		got := g.options.Env
		if args[0] == "recreate" {
			got = g.again.Env
		}
		if want := map[string]string{"E2": "", "FULL": "x y", "A": "1"}; status != 0 || !maps.Equal(got, want) {
			t.Errorf("%q: status %d, %q: %s", args, status, got, &errs)
		}
	}
	for _, line := range []string{"1A=x", "A B=x", "A-B", "=x", "A\x00=x", "É=x"} {
		if err := os.WriteFile(file, []byte("GOOD=1\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var f fake
		if status, _, errs := f.command("exec", "--env-file", file, "t", "env"); status != kiterr.StatusCannotExec || !strings.Contains(errs, "line 2") || len(f.did) > 0 {
			t.Errorf("%q: status %d, %s", line, status, errs)
		}
	}
}
