package cli

import (
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
