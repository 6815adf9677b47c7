package kitcmd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/kitcmd"
	"github.com/kitbox-dev/kitbox/kiterr"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scripts")

// TestMain makes the command a program for the scripts, hung into a tree like
// the one of package cli.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kitbox": func() { os.Exit(run()) }})
}

// hostile are files that a script cannot hold.
var hostile = map[string]string{
	"hostile-binary.yml":  "kind\xff\xfe: \x01",
	"hostile-elf.yml":     "\x7fELF\x00schemaVersion:\x00",
	"hostile-large.yml":   "kind: mixin\ndescription: " + strings.Repeat("x", 1<<20) + "\n",
	"hostile-deep.yml":    "kind: " + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + "\n",
	"hostile-deeper.yml":  strings.Repeat("- ", 10000) + "\n",
	"hostile-alias.yml":   "kind: mixin\na: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
	"hostile-escape.yml":  "kind: \"\x1b[31mred\"\nk\x1by: 1\n",
	"hostile-escape2.yml": "kind: \"\\e[31mred\\u202e\"\n\"k\\ey\": 1\n",
}

// published are the Kits of a registry.
func published(_ context.Context, ref string) ([]byte, error) {
	for known, text := range map[string]string{
		"hub.example/kits/x:1": `{"schemaVersion":"3","kind":"mixin","provides":["x@1"],"capabilities":[{"type":"com.docker.sandbox/network-policy@1","config":{"runtime":{"allow":["a.example"]}}}]}`,
		"hub.example/kits/x:2": `{"schemaVersion":"3","kind":"mixin","provides":["x@2"],"capabilities":[{"type":"com.docker.sandbox/network-policy@1","config":{"runtime":{"allow":["a.example","b.example"]}}}]}`,
		"hub.example/kits/x:3": `{"schemaVersion":"3","kind":"set","kits":[{"ref":"hub.example/a"}]}`,
	} {
		if ref == known {
			return []byte(text), nil
		}
	}
	return nil, fmt.Errorf("kit %s: %w at registry hub.example", ref, kiterr.ErrNotFound)
}

func run() int {
	root := &cobra.Command{Use: "kitbox", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(kitcmd.New(published))
	root.SetArgs(os.Args[1:])
	root.SetIn(os.Stdin)
	root.SetOut(os.Stdout)
	root.SetErr(os.Stderr)
	err := root.ExecuteContext(context.Background())
	var status kiterr.ExitStatus
	if err != nil && !errors.As(err, &status) {
		fmt.Fprintln(os.Stderr, "kitbox:", err)
	}
	return kiterr.ExitCode(err)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"status": status},
		Setup: func(e *testscript.Env) error {
			for name, text := range hostile {
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// status runs a program and demands an exact exit status: "status 2 PROGRAM…".
// Its output is then that of the last command, as with exec.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE PROGRAM...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if err != nil {
		var exit interface{ ExitCode() int }
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit status %d, want %s", code, args[0])
	}
}
