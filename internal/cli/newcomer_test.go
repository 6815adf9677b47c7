package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// builds is a builder that writes down what it was asked.
type builds struct{ options sandbox.BuildOptions }

func (b *builds) Build(_ context.Context, o sandbox.BuildOptions) (sandbox.Image, error) {
	b.options = o
	return sandbox.Image{Digest: "sha256:0"}, nil
}

func TestABuildNetworkIsAskedForAndShown(t *testing.T) {
	for flag, want := range map[string]string{"": "", "none": "", "public": "public", "host": "host"} {
		args := []string{"./k"}
		if flag != "" {
			args = append(args, "--build-network", flag)
		}
		for _, command := range []string{"run", "create", "plan"} {
			var f fake
			status, _, errs := f.command(append([]string{command}, args...)...)
			if status != 0 || f.options.BuildNetwork != want {
				t.Errorf("%s --build-network %q: status %d, %q: %s", command, flag, status, f.options.BuildNetwork, errs)
			}
		}
		var b builds
		var out, errs bytes.Buffer
		status := Main(t.Context(), &Env{Args: append([]string{"build"}, args...), Stdout: &out, Stderr: &errs, Builder: &b})
		if status != 0 || b.options.Network != want || strings.Contains(errs.String(), "build network") != (want != "") {
			t.Errorf("build --build-network %q: status %d, %q: %s", flag, status, b.options.Network, errs.String())
		}
	}
	for _, c := range []struct {
		args []string
		want sandbox.BuildOptions // but for the console, which is there unless nothing is to be shown
		none bool
	}{
		{nil, sandbox.BuildOptions{ConsoleMode: "auto"}, false},
		{[]string{"--progress", "json", "--no-cache", "--builder", "tcp://b:1"}, sandbox.BuildOptions{ConsoleMode: "json", NoCache: true, Builder: "tcp://b:1"}, false},
		{[]string{"--progress", "quiet"}, sandbox.BuildOptions{ConsoleMode: "quiet"}, true},
		{[]string{"-q"}, sandbox.BuildOptions{ConsoleMode: "auto"}, true},
	} {
		var b builds
		var out, errs bytes.Buffer
		status := Main(t.Context(), &Env{Args: append([]string{"build", "./k"}, c.args...), Stdout: &out, Stderr: &errs, Builder: &b})
		o := b.options
		if status != 0 || o.ConsoleMode != c.want.ConsoleMode || o.NoCache != c.want.NoCache || o.Builder != c.want.Builder || (o.Console == nil) != c.none {
			t.Errorf("%q: status %d, %+v: %s", c.args, status, o, errs.String())
		}
	}
	var wrong, nothing bytes.Buffer
	if status := Main(t.Context(), &Env{Args: []string{"build", "./k", "--progress", "loud"}, Stdout: &nothing, Stderr: &wrong, Builder: &builds{}}); status != 1 || !strings.Contains(wrong.String(), `"loud" is none of`) {
		t.Errorf("status %d, %s", status, wrong.String())
	}
	var f fake
	if status, _, errs := f.command("run", "./k", "--build-network", "all"); status != 1 || !strings.Contains(errs, `"all" is none of none, public and host`) || len(f.did) > 0 {
		t.Errorf("status %d, %s", status, errs)
	}
	var b bytes.Buffer
	summary.Plan(&b, &sandbox.Plan{BuildNetwork: "host"}, "  ")
	if !strings.Contains(b.String(), "build      host: RUN steps") {
		t.Errorf("the summary does not show the consent:\n%s", b.String())
	}
}

func TestATerminalWithoutInputReadsItsEnd(t *testing.T) {
	var f fake
	reads := 0
	f.run = func(_ context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
		b := make([]byte, 10)
		for range 2 {
			if n, err := c.Stdin.Read(b); n != 1 || b[0] != 4 || err != nil {
				t.Errorf("read %d, %v, %v", n, b[:1], err)
			}
			reads++
		}
		return &sandbox.Result{}, nil
	}
	if status, _, errs := f.command("exec", "-t", "t", "--", "cat"); status != 0 || reads != 2 || f.cmd.Terminal == nil {
		t.Errorf("status %d, %d reads: %s", status, reads, errs)
	}
	for args, want := range map[string]int{"exec -it t -- cat": 125, "run -q -it ./w": 1} {
		var f fake
		status, _, errs := f.command(strings.Fields(args)...)
		if status != want || !strings.Contains(errs, "needs a terminal on stdin") || len(f.did) > 0 {
			t.Errorf("%s: status %d, did %v: %s", args, status, f.did, errs)
		}
	}
}

func TestFamiliesAreNotReadOutAfterTheNextStep(t *testing.T) {
	for text, want := range map[string]string{
		"sandbox t is stopped; start it with 'kitbox start t'": "sandbox t is stopped; start it with 'kitbox start t'",
		"sandbox t":                                       "sandbox t: refused",
		"kit w:1: its image states no command":            "kit w:1: its image states no command",
		"no Kit given declares an arg x":                  "no Kit given declares an arg x",
		"kit w: it asks for too much: unsupported":        "kit w: it asks for too much",
		"sandbox t: the name is taken already: not found": "sandbox t: the name is taken already",
		"image x:1: not found":                            "image x:1: not found",
	} {
		err := fmt.Errorf("%s: %w", text, kiterr.ErrRefused)
		f := fake{noSandbox: true, createErr: err}
		status, _, errs := f.command("create", "-q", "./w")
		if errs != "kitbox: "+want+"\n" || status != kiterr.StatusRefused {
			t.Errorf("%v: status %d, %q, want %q", err, status, errs, want)
		}
	}
}

func TestSlipsGetTheNextStep(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, want := range map[string]string{
		"run ./hello world":    "workspace world: no such directory; make it first, or leave PATH out; arguments for the workload go after --\n",
		"policy lg":            `there is no command "lg"; did you mean log`,
		"base creat":           `there is no command "creat"; did you mean create?`,
		"creat x":              `did you mean create?`,
		"kit chek":             `did you mean check?`,
		"kit new sandbox x":    `"sandbox" is no kind of Kit`,
		"kit new mixin My/Kit": "cannot name a Kit",
	} {
		var f fake
		status, _, errs := f.command(strings.Fields(args)...)
		if status != kiterr.StatusFailed || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %q", args, status, errs)
		}
	}
}

func TestARunSaysThatItsSandboxIsKept(t *testing.T) {
	var f fake
	_, _, errs := f.command("run", "./w")
	if !strings.HasSuffix(errs, "kitbox: t is kept: \"kitbox attach t\" runs it again, \"kitbox rm t\" removes it\n") {
		t.Error(errs)
	}
	for _, args := range []string{"run --rm ./w", "run -q ./w"} {
		if _, _, errs := f.command(strings.Fields(args)...); strings.Contains(errs, "kept:") {
			t.Errorf("%s: %s", args, errs)
		}
	}
}

func TestAFailedInstallHookShowsWhatWasRefused(t *testing.T) {
	f := fake{noSandbox: true, createErr: &sandbox.HookError{Sandbox: "t", Kit: "./w", Phase: "install", ExitCode: 6,
		Refused: []sandbox.PolicyEvent{{Kind: "dns", Host: "a.example", Reason: "no rule allows a.example", Count: 2}}}}
	for _, command := range []string{"run", "create"} {
		status, _, errs := f.command(command, "./w")
		want := "kitbox: t was refused\n  dns a.example: no rule allows a.example (2 times)\n" +
			"  if ./w needs that, add to its network-policy: install: {allow: [\"a.example\"]}\nkitbox: kit ./w: install hook 0 ended with status 6\n"
		if status != 1 || !strings.HasSuffix(errs, want) {
			t.Errorf("%s: status %d, %s", command, status, errs)
		}
	}
}

func TestAQuestionForBothFamiliesIsShownOnce(t *testing.T) {
	at := time.Unix(1000, 0)
	ev := func(host string, ms int, count int) sandbox.PolicyEvent {
		return sandbox.PolicyEvent{Time: at.Add(time.Duration(ms) * time.Millisecond), Kind: "dns", Verdict: "deny", Phase: "runtime", Host: host, Reason: "no rule allows it", Count: count}
	}
	f := fake{events: []sandbox.PolicyEvent{ev("a.example", 0, 1), ev("a.example", 2, 1), ev("b.example", 3, 1), ev("a.example", 4, 1), ev("a.example", 5000, 1), ev("a.example", 5001, 3)}}
	_, out, _ := f.command("policy", "log", "--refused", "t")
	if strings.Count(out, "\n") != 5 || !strings.Contains(out, "(3 times)") {
		t.Errorf("log:\n%s", out)
	}
	if _, out, _ := f.command("policy", "log", "--json", "t"); strings.Count(out, `"host"`) != 6 {
		t.Errorf("--json leaves something out:\n%s", out)
	}
}

func TestQuietLifeCommandsPrintNothing(t *testing.T) {
	for _, command := range []string{"stop", "start", "rm"} {
		var f fake
		if status, out, errs := f.command(command, "-q", "t"); status != 0 || out != "" || errs != "" || len(f.did) != 1 {
			t.Errorf("%s -q: status %d, %q, %q, did %v", command, status, out, errs, f.did)
		}
	}
}

func TestAKitWithoutItsOptionIsPointedOut(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top)
	for _, name := range []string{"hello", "tool", "mine"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		if name != "mine" {
			if err := os.WriteFile(filepath.Join(name, "kit.yaml"), []byte("schemaVersion: \"3\"\nkind: mixin\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const hint = "kitbox: did you mean --kit ./tool? it is the workspace now\n"
	for args, want := range map[string]bool{
		"create ./hello ./tool":              true,
		"run ./hello ./tool -- x":            true,
		"plan ./hello ./tool":                true,
		"create -q ./hello ./tool":           false,
		"create ./hello ./mine":              false,
		"create ./hello":                     false,
		"create ./tool ./tool":               false,
		"create ./hello --kit ./tool ./tool": false,
	} {
		var f fake
		status, _, errs := f.command(strings.Fields(args)...)
		if status != 0 || strings.Contains(errs, hint) != want || strings.Contains(errs, "did you mean") != want {
			t.Errorf("%s: status %d, %s", args, status, errs)
		}
		if want && f.options.Workspace == "" {
			t.Errorf("%s: the workspace was taken away", args)
		}
	}
}

func TestTheVersionIsPrintedOnEitherRequest(t *testing.T) {
	var f fake
	_, want, _ := f.command("version")
	status, out, errs := f.command("--version")
	if status != 0 || out != want || out != "kitbox 1.2.3\n" || errs != "" {
		t.Errorf("status %d, %q, %q; want %q", status, out, errs, want)
	}
	if status, out, _ := f.command("exec", "t", "--version"); status == 0 && out == want {
		t.Error("--version is an option of all commands")
	}
}
