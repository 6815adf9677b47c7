package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
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
	for _, args := range []string{"image prune --grace -1h", "stop --grace -1s t", "restart --grace -1s t", "prune --age -1h"} {
		f := fakeStore{}
		var out, errs strings.Builder
		status := Main(t.Context(), &Env{Args: strings.Fields(args), Stdout: &out, Stderr: &errs, Runtime: &f.fake, Images: &f.shelf})
		if status != kiterr.StatusFailed || !strings.Contains(errs.String(), "takes a time") && !strings.Contains(errs.String(), "prune:") || len(f.fake.did)+len(f.shelf.did) > 0 {
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

func TestARefusedRuleOfTheOperatorsIsAMistake(t *testing.T) {
	root := newRoot(&Env{})
	err := fmt.Errorf("%w: egress rule 1 of operator: pattern \"x:0\": \"0\" is not a port between 1 and 65535", kiterr.ErrRefused)
	if got := mistaken(root, err); kiterr.ExitCode(got) != kiterr.StatusFailed || !strings.HasPrefix(got.Error(), `pattern "x:0": `) {
		t.Error(got)
	}
	if other := fmt.Errorf("sandbox t: %w", kiterr.ErrRefused); mistaken(root, other) != other || mistaken(root, nil) != nil {
		t.Error("another refusal is not one of these")
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
	if status != 1 || errs.String() != "kitbox: open /nodir/x: no such file or directory\n" {
		t.Errorf("status %d: %s", status, errs.String())
	}
	if err := writeLock("/nodir/y", &sandbox.Lock{}); err == nil || err.Error() != "open /nodir/y: no such file or directory" {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := saveTo(t.Context(), &s, nil, dir); err == nil || strings.Contains(err.Error(), "-") && !strings.Contains(dir, "-") {
		t.Error(err)
	}
}

func TestWhatIsUnsavedIsRescuedByWhatCarriesIt(t *testing.T) {
	commits, files := []sandbox.Commit{{ID: "1"}}, []string{"f"}
	if s := rescue("t", &sandbox.Unsaved{Files: files}); strings.Contains(s, "bundle") || !strings.Contains(s, "kitbox cp t:FILE") {
		t.Error(s)
	}
	if s := rescue("t", &sandbox.Unsaved{Commits: commits}); !strings.Contains(s, "bundle t") || strings.Contains(s, "cp") {
		t.Error(s)
	}
	if s := rescue("t", &sandbox.Unsaved{Commits: commits, Files: files}); !strings.Contains(s, "bundle t") || !strings.Contains(s, "cp t:") {
		t.Error(s)
	}
}

func TestADecisionOfAnotherDayHasItsDate(t *testing.T) {
	now := time.Date(2030, 5, 6, 7, 8, 9, 0, time.Local)
	if s := clock(now.Add(-time.Hour), now); s != "06:08:09.000" {
		t.Error(s)
	}
	for _, then := range []time.Time{now.AddDate(0, 0, -1), now.AddDate(-1, 0, 0)} {
		if s := clock(then, now); !strings.HasPrefix(s, then.Format("2006-01-02 ")) {
			t.Error(s)
		}
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

func TestWhatIsLeftOutIsNamedAFewTimes(t *testing.T) {
	var errs strings.Builder
	l := leftOut{e: &Env{Stderr: &errs}}
	for range 150 {
		l.add("x")
	}
	l.total()
	if strings.Count(errs.String(), "\n") != firstLeft+1 || !strings.Contains(errs.String(), "145 more") {
		t.Error(errs.String())
	}
}
