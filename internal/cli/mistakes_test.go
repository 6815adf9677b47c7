package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestLimitsAndVariablesThatCannotBeAreMistakes(t *testing.T) {
	for _, command := range []string{"create", "run", "plan"} {
		for args, want := range map[string]string{
			"--memory\n1":                        "at least 16 MiB",
			"--memory\n1m":                       "at least 16 MiB",
			"--memory\n":                         `--memory ""`,
			"--disk\n":                           `--disk ""`,
			"--cpus\n0":                          "positive number",
			"--cpus\nNaN":                        "positive number",
			"--cpus\nInf":                        "positive number",
			"--pids\n0":                          "positive number",
			"--pids\n-1":                         "positive number",
			"--env\nA B=3":                       `"A B" is no name of a variable`,
			"--env\n1A=2":                        `"1A" is no name of a variable`,
			"--idle-timeout\n-1h":                "--idle-timeout",
			"--name\n" + strings.Repeat("a", 64): "63",
		} {
			var f fake
			status, _, errs := f.command(append([]string{command, "./k"}, strings.Split(args, "\n")...)...)
			if status != kiterr.StatusFailed || !strings.Contains(errs, want) || len(f.did) > 0 {
				t.Errorf("%s %q: status %d, did %v: %s", command, args, status, f.did, errs)
			}
		}
		var f fake
		if status, _, errs := f.command(command, "./k", "--memory", "16m", "--cpus", "0.5", "--pids", "9", "--env", "_a1=x y"); status != 0 {
			t.Errorf("%s: status %d: %s", command, status, errs)
		}
	}
}

func TestNoTimeIsNegative(t *testing.T) {
	for _, args := range []string{"image prune --keep-duration -1h", "stop --grace -1s t", "restart --grace -1s t", "prune --keep-duration -1h"} {
		f := fakeStore{}
		var out, errs strings.Builder
		status := Main(t.Context(), &Env{Args: strings.Fields(args), Stdout: &out, Stderr: &errs, Runtime: &f.fake, Images: &f.shelf})
		if status != kiterr.StatusFailed || !strings.Contains(errs.String(), "takes a time") || len(f.fake.did)+len(f.shelf.did) > 0 {
			t.Errorf("%s: status %d: %s", args, status, errs.String())
		}
	}
}

// fakeStore has both what runs and what is stored.
type fakeStore struct {
	fake  fake
	shelf shelf
}

func TestPatternsAndNamesThatCannotBeAreMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"policy allow https://x.example/":   `"https://x.example/" is a URL: write the host, or host:port`,
		"policy deny https://x.example/":    "is a URL",
		"policy check t https://x.example/": "is a URL",
		"policy allow --path /x a.example":  "--path needs --method",
		"build -t BAD:: ./k":                "is not a tag",
		"build --tag= ./k":                  "reference is empty",
		"tag a:1 BAD":                       "is not a repository name",
		"tag a:1 b@sha256:0":                "is not a digest",
		"volume ls a b":                     "ls takes one NAME at most",
		"volume lst":                        `there is no command "lst"; did you mean ls? See "kitbox volume --help"`,
		"mount frob":                        `there is no command "frob"; see "kitbox mount --help"`,
		"volume rm":                         `see "kitbox volume rm --help"`,
		"volume rm a b c":                   "rm takes NAME, or NAME and the PATH",
		"image rm":                          "rm takes at least one NAME",
		"image save":                        "save takes at least one REF",
		"image frob":                        `there is no command "frob"`,
	} {
		f := fakeStore{}
		var out, errs strings.Builder
		status := Main(t.Context(), &Env{Args: strings.Fields(args), Stdout: &out, Stderr: &errs, Runtime: &f.fake, Images: &f.shelf})
		if status != kiterr.StatusFailed || !strings.Contains(errs.String(), want) || out.Len() > 0 || len(f.fake.did)+len(f.shelf.did) > 0 {
			t.Errorf("%s: status %d: %s%s", args, status, errs.String(), out.String())
		}
	}
}

func TestThereIsNoHelpForWhatDoesNotExist(t *testing.T) {
	for args, want := range map[string]int{"save --help": 1, "policy frob --help": 1, "policy frob -h": 1, "help frob": 1, "help policy frob": 1,
		"--help": 0, "policy --help": 0, "policy log --help": 0, "help": 0, "help policy log": 0, "run ./k --help": 0, "stop a b --help": 0} {
		var f fake
		status, out, errs := f.command(strings.Fields(args)...)
		if status != want || (out == "") != (want == 1) || strings.Contains(errs, "there is no command") != (want == 1) {
			t.Errorf("%s: status %d, %d bytes of help: %s", args, status, len(out), errs)
		}
	}
}

func TestAnErrorNamesTheFileThatWasAskedFor(t *testing.T) {
	var s shelf
	var out, errs strings.Builder
	status := Main(t.Context(), &Env{Args: []string{"image", "save", "-o", "/nodir/x", "a:1"}, Stdout: &out, Stderr: &errs, Images: &s})
	if status != 1 || errs.String() != "kitbox: /nodir/x: no such file or directory\n" {
		t.Errorf("status %d: %s", status, errs.String())
	}
}

func TestAnInterruptedFollowerHasItsStatus(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var f fake
	if status, _, errs := f.commandIn(ctx, strings.NewReader(""), "policy", "log", "-f", "t"); status != 130 || errs != "kitbox: interrupted\n" {
		t.Errorf("status %d: %s", status, errs)
	}
}

func TestAValueThatAnOptionDoesNotTakeIsAnsweredByOneThatItTakes(t *testing.T) {
	for args, want := range map[string]string{
		"run ./k --idle-timeout 5":      `--idle-timeout "5": not a time such as 90s, 30m or 2h; see "kitbox run --help"`,
		"stop --grace soon t":           `--grace "soon": not a time such as`,
		"run ./k --pids many":           `--pids "many": not a whole number`,
		"run ./k --cpus two":            `--cpus "two": not a number such as 2 or 0.5`,
		"ls --json=perhaps":             `--json "perhaps": not true or false`,
		"run ./k --clone":               "--clone takes the PATH of a Git repository",
		"run ./k --workspace-mode host": "--workspace-mode host takes a PATH",
	} {
		var f fake
		if status, _, errs := f.command(strings.Fields(args)...); status != 1 || !strings.Contains(errs, want) || len(f.did) > 0 {
			t.Errorf("%s: status %d: %s", args, status, errs)
		}
	}
}

func TestHelpHasTheFormOfTheOthers(t *testing.T) {
	var f fake
	if status, out, _ := f.command("help", "help"); status != 0 || !strings.Contains(out, "kitbox help [COMMAND...]\n\nExamples:") || strings.Contains(out, "[flags]") {
		t.Errorf("status %d:\n%s", status, out)
	}
}
