package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/tree"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// fake is a runtime of scripted answers that writes down what it was asked.
type fake struct {
	did     []string
	options sandbox.CreateOptions
	cmd     sandbox.Cmd
	again   sandbox.RecreateOptions

	createErr error
	noSandbox bool
	run       func(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error)
	events    []sandbox.PolicyEvent
	infos     []sandbox.Info

	unsaved    sandbox.Unsaved
	unsavedErr error

	rules   []sandbox.NetworkGrant
	change  sandbox.RuleChange
	query   sandbox.PolicyQuery
	verdict sandbox.PolicyVerdict
}

func (f *fake) Rules(_ context.Context, name string) ([]sandbox.NetworkGrant, error) {
	f.note("rules of %q", name)
	return f.rules, nil
}

func (f *fake) ChangeRules(_ context.Context, name string, c sandbox.RuleChange) error {
	f.note("change rules of %q", name)
	f.change = c
	return nil
}

func (f *fake) Check(_ context.Context, name string, q sandbox.PolicyQuery) (sandbox.PolicyVerdict, error) {
	f.note("check %q", name)
	f.query = q
	return f.verdict, nil
}

func (f *fake) note(format string, args ...any) { f.did = append(f.did, fmt.Sprintf(format, args...)) }

var granted = &sandbox.Plan{Name: "t", Kits: []sandbox.Kit{{Ref: "./w", Kind: "workload", Digest: "sha256:0123456789abcdef"}},
	Network: []sandbox.NetworkGrant{{Phase: "runtime", Pattern: "a.example", Allow: true}, {Phase: "runtime", Pattern: "t.example"}},
	Storage: []sandbox.Storage{{Path: "/data", SizeBytes: 1 << 30}},
	Skipped: []sandbox.Skipped{{Kit: "./w", Type: "x/usb@1", Reason: "this host does not implement it"}}}

func (f *fake) Plan(_ context.Context, o sandbox.CreateOptions) (*sandbox.Plan, error) {
	f.options = o
	return granted, f.createErr
}

func (f *fake) Create(_ context.Context, o sandbox.CreateOptions) (sandbox.Sandbox, error) {
	f.options = o
	f.note("create")
	if o.Progress != nil {
		o.Progress(sandbox.Event{Step: "build", Detail: "line one"})
		o.Progress(sandbox.Event{Step: "build", Detail: "line two"})
	}
	if f.noSandbox {
		return nil, f.createErr
	}
	if o.Granted != nil {
		o.Granted(granted)
	}
	return fakeBox{f, "t"}, f.createErr
}

func (f *fake) Open(_ context.Context, name string) (sandbox.Sandbox, error) {
	if name == "missing" {
		return nil, fmt.Errorf("sandbox missing: %w: 'kitbox ls' shows what there is", kiterr.ErrNotFound)
	}
	return fakeBox{f, name}, nil
}

func (f *fake) List(context.Context) ([]sandbox.Info, error) { return f.infos, nil }

type fakeBox struct {
	f    *fake
	name string
}

func (b fakeBox) Unsaved(context.Context) (*sandbox.Unsaved, error) {
	return &b.f.unsaved, b.f.unsavedErr
}
func (b fakeBox) Bundle(context.Context, io.Writer) error { return kiterr.ErrNotFound }

func (b fakeBox) Name() string { return b.name }
func (b fakeBox) Status(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Name: b.name, State: sandbox.Ready}, nil
}
func (b fakeBox) Start(context.Context) error { b.f.note("start %s", b.name); return nil }
func (b fakeBox) Stop(_ context.Context, o sandbox.StopOptions) error {
	b.f.note("stop %s %v %v", b.name, o.Grace, o.IfIdle)
	return nil
}
func (b fakeBox) Remove(context.Context) error { b.f.note("remove %s", b.name); return nil }
func (b fakeBox) Recreate(_ context.Context, o sandbox.RecreateOptions) error {
	b.f.again = o
	return nil
}
func (b fakeBox) Run(ctx context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
	b.f.cmd = *c
	b.f.note("run")
	if b.f.run != nil {
		return b.f.run(ctx, c)
	}
	return &sandbox.Result{}, nil
}
func (b fakeBox) PolicyLog(context.Context, sandbox.PolicyLogOptions) iter.Seq2[sandbox.PolicyEvent, error] {
	return func(yield func(sandbox.PolicyEvent, error) bool) {
		for _, e := range b.f.events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (f *fake) command(args ...string) (status int, stdout, stderr string) {
	return f.commandIn(context.Background(), strings.NewReader(""), args...)
}

func (f *fake) commandIn(ctx context.Context, in io.Reader, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Main(ctx, &Env{Args: args, Stdin: in, Stdout: &out, Stderr: &errs, Version: "1.2.3", Runtime: f})
	return status, out.String(), errs.String()
}

func TestUsageMistakesNameTheThingAndTheHelp(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"frobnicate", `there is no command "frobnicate"`},
		{"run", "which KIT?"},
		{"run ./k a b", `"b" is one argument too many`},
		{"run ./k --exec", "--exec needs a command"},
		{"run ./k --nope", "unknown flag: --nope"},
		{"run ./k --arg x", `--arg "x" is not of the form`},
		{"run ./k --arg x=1 --arg x=2", "--arg sets x twice"},
		{"run ./k --env =1", `--env "=1" is not of the form`},
		{"run ./k --route a", `--route "a": not of the form`},
		{"run ./k --route a=b", `"b" is neither`},
		{"run ./k --route a=1.2.3.4:0", "port 0"},
		{"run ./k --route 1.2.3.4=1.2.3.4:1", "only names can be routed"},
		{"run ./k --route a_b..c=1.2.3.4:1", "is not a host name"},
		{"create ./k -- true", "create starts no command"},
		{"exec t", "takes the NAME of a sandbox and a COMMAND"},
		{"exec t --", "takes the NAME of a sandbox and a COMMAND"},
		{"exec t -i -- true", "-i: options of exec stand before NAME"},
		{"stop", "takes the NAME"},
		{"status", "takes one NAME"},
		{"ls x", "takes no argument"},
		{"policy ls a b", "takes one NAME at most"},
		{"policy allow", "takes at least one PATTERN"},
		{"policy deny --phase later a.example", `--phase "later" is neither`},
		{"policy rm", "takes at least one PATTERN"},
		{"policy check t", "takes the NAME of a sandbox and a HOST"},
		{"policy check t a.example:0", "not between 1 and 65535"},
		{"policy check t a:b:c", "is not HOST or HOST:PORT"},
	} {
		var f fake
		status, out, errs := f.command(strings.Fields(c.args)...)
		want := kiterr.StatusFailed
		if strings.HasPrefix(c.args, "exec ") {
			want = kiterr.StatusCannotExec
		}
		if status != want || out != "" || !strings.HasPrefix(errs, "kitbox: ") || strings.Count(errs, "\n") != 1 ||
			!strings.Contains(errs, c.want) || !strings.Contains(errs, "--help") {
			t.Errorf("%s: status %d, stdout %q, stderr %q", c.args, status, out, errs)
		}
		if len(f.did) > 0 {
			t.Errorf("%s: did %v", c.args, f.did)
		}
	}
}

func TestOptionsMayStandAfterTheKit(t *testing.T) {
	dir := t.TempDir()
	var f fake
	status, out, _ := f.command("create", "--name", "t", "./hello", "--kit", "./tool", dir, "--arg", "a=1=2", "--env", "E=", "--route", "API.example=127.0.0.1:80",
		"--route", "b.example=::1", "--kit", "other:1")
	o := f.options
	if status != 0 || out != "t\n" || o.Name != "t" || strings.Join(o.Kits, " ") != "./hello ./tool other:1" || o.Args["a"] != "1=2" || o.Ephemeral {
		t.Errorf("status %d, stdout %q, options %+v", status, out, o)
	}
	if v, ok := o.Env["E"]; !ok || v != "" {
		t.Errorf("an empty override got lost: %v", o.Env)
	}
	if len(o.Routes) != 2 || o.Routes[0] != (sandbox.Route{Name: "api.example", Addr: "127.0.0.1:80"}) || o.Routes[1].Addr != "::1" {
		t.Errorf("routes %v", o.Routes)
	}
}

func TestRunPrintsOnlyWhatTheCommandPrints(t *testing.T) {
	f := fake{events: []sandbox.PolicyEvent{
		{Kind: "dns", Host: "denied.example", Verdict: "deny", Reason: "no rule allows denied.example", Count: 2},
		{Kind: "connect", Host: "a.example", Port: 443, Verdict: "allow", Allowed: true},
		{Kind: "dns", Host: "denied.example", Verdict: "deny", Reason: "no rule allows denied.example", Count: 1},
	}}
	f.run = func(_ context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
		c.Stdout.Write([]byte{0, 0xff, '\n'})
		io.WriteString(c.Stderr, "from inside\n")
		return &sandbox.Result{ExitCode: 7}, nil
	}
	status, out, errs := f.command("run", "--rm", "./w", "--exec", "--", "sh", "-c", "exit 7")
	if status != 7 || out != "\x00\xff\n" {
		t.Errorf("status %d, stdout %q", status, out)
	}
	for _, want := range []string{"kitbox: t is granted\n", "runtime: a.example; never t.example", "/data (kept) 1 GiB", "x/usb@1 of ./w: this host does not implement it",
		"from inside\n", "kitbox: t was refused\n  dns denied.example: no rule allows denied.example (3 times)\n"} {
		if !strings.Contains(errs, want) {
			t.Errorf("stderr lacks %q:\n%s", want, errs)
		}
	}
	if strings.Contains(errs, "line two") || strings.Contains(errs, "\x1b") {
		t.Errorf("stderr is no terminal:\n%s", errs)
	}
	if strings.Join(f.did, ", ") != "create, run, remove t" || !f.options.Ephemeral || f.cmd.Workload || strings.Join(f.cmd.Args, " ") != "sh -c exit 7" ||
		f.cmd.Stdin != nil || f.cmd.Terminal != nil {
		t.Errorf("did %v, cmd %+v", f.did, f.cmd)
	}

	_, out, errs = f.command("run", "-q", "--rm", "./w")
	if out != "\x00\xff\n" || errs != "from inside\n" || !f.cmd.Workload {
		t.Errorf("-q: stdout %q, stderr %q", out, errs)
	}
}

func TestRunKeepsTheSandboxUnlessTold(t *testing.T) {
	var f fake
	if status, _, errs := f.command("run", "./w", "--", "x", "-y"); status != 0 {
		t.Error(errs)
	}
	if strings.Join(f.did, ", ") != "create, run, stop t 0s true" || strings.Join(f.cmd.Args, " ") != "x -y" || !f.cmd.Workload {
		t.Errorf("did %v, cmd %+v", f.did, f.cmd)
	}
}

func TestAnInterruptedRunIsPutAwayAllTheSame(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := fake{run: func(ctx context.Context, _ *sandbox.Cmd) (*sandbox.Result, error) {
		cancel()
		<-ctx.Done() // not at once: a signal is the command's first
		return nil, ctx.Err()
	}}
	status, _, errs := f.commandIn(ctx, nil, "run", "-q", "--rm", "./w")
	if status != 130 || errs != "kitbox: interrupted\n" || strings.Join(f.did, ", ") != "create, run, remove t" {
		t.Errorf("status %d, stderr %q, did %v", status, errs, f.did)
	}
}

func TestAFailedStartupHookIsReportedAndTheCommandRuns(t *testing.T) {
	f := fake{createErr: &sandbox.HookError{Kit: "./w", Phase: "runtime", Index: 2, ExitCode: 32, Output: "one\nread-only file system\n"}}
	status, _, errs := f.command("run", "-q", "./w")
	if status != 0 || errs != "kitbox: kit ./w: startup hook 2 ended with status 32: read-only file system\n" || len(f.did) != 3 {
		t.Errorf("status %d, stderr %q, did %v", status, errs, f.did)
	}
	status, out, _ := f.command("create", "-q", "./w")
	if status != 1 || out != "t\n" {
		t.Errorf("create: status %d, stdout %q", status, out)
	}
}

func TestARefusalIsStatusTwoAndPrintsNoResult(t *testing.T) {
	f := fake{noSandbox: true, createErr: fmt.Errorf("kit a: two\nkit b: %w", kiterr.ErrRefused)}
	status, out, errs := f.command("create", "-q", "./w")
	if status != kiterr.StatusRefused || out != "" || errs != "kitbox: kit a: two\n  kit b: refused\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, out, errs)
	}
}

func TestExecPassesStreamsAndOptionsOn(t *testing.T) {
	f := fake{run: func(_ context.Context, c *sandbox.Cmd) (*sandbox.Result, error) {
		if c.Stdin == nil {
			return &sandbox.Result{}, nil
		}
		_, err := io.Copy(c.Stdout, c.Stdin)
		return &sandbox.Result{}, err
	}}
	status, out, errs := f.commandIn(context.Background(), strings.NewReader("bytes\x00"), "exec", "-i", "-u", "7:8", "-w", "/x", "-e", "A=1", "t", "--", "cat", "-", "--flag")
	if status != 0 || out != "bytes\x00" || errs != "" {
		t.Errorf("status %d, stdout %q, stderr %q", status, out, errs)
	}
	if c := f.cmd; strings.Join(c.Args, " ") != "cat - --flag" || c.User != "7:8" || c.Dir != "/x" || c.Env[0] != "A=1" {
		t.Errorf("cmd %+v", c)
	}
	f.command("exec", "t", "ls", "-l", "--", "x")
	if got := strings.Join(f.cmd.Args, " "); got != "ls -l -- x" || f.cmd.Stdin != nil {
		t.Errorf("without --: %q", got)
	}
	if status, _, errs := f.command("exec", "missing", "--", "true"); status != 125 || !strings.Contains(errs, "sandbox missing: not found") {
		t.Errorf("status %d, %q", status, errs)
	}
}

func TestSeveralNamesAreDoneWhateverBecomesOfOne(t *testing.T) {
	var f fake
	status, out, errs := f.command("stop", "--grace", "0s", "a", "missing", "b")
	if status != 1 || out != "a\nb\n" || strings.Count(errs, "\n") != 1 || strings.Join(f.did, ", ") != "stop a -1ns false, stop b -1ns false" {
		t.Errorf("status %d, stdout %q, stderr %q, did %v", status, out, errs, f.did)
	}
}

func TestJSONIsOneDocument(t *testing.T) {
	f := fake{events: []sandbox.PolicyEvent{{Kind: "dns", Host: "<a>"}, {Kind: "dns", Host: "b", Allowed: true}}}
	for _, args := range []string{"ls --json", "status t --json", "plan ./w --json", "policy log t --json", "policy log --refused t --json"} {
		status, out, errs := f.command(strings.Fields(args)...)
		var v any
		d := json.NewDecoder(strings.NewReader(out))
		if err := d.Decode(&v); err != nil || status != 0 || strings.Contains(errs, "kitbox: t") {
			t.Errorf("%s: status %d, %v, %q", args, status, err, errs)
		}
		if err := d.Decode(&v); !errors.Is(err, io.EOF) {
			t.Errorf("%s: more than one document", args)
		}
	}
	if _, out, _ := f.command("ls", "--json"); out != "[]\n" {
		t.Errorf("an empty list is %q", out)
	}
	if _, out, _ := f.command("policy", "log", "t", "--json", "--follow"); strings.Count(out, "\n") != 2 {
		t.Errorf("followed: %q", out)
	}
}

func TestForeignTextCannotDriveATerminal(t *testing.T) {
	f := fake{infos: []sandbox.Info{{Name: "t", State: sandbox.Ready, Created: time.Now(), Kits: []sandbox.Kit{{Ref: "a\x1b[2Jb\u009bc"}}}},
		events: []sandbox.PolicyEvent{{Kind: "dns", Host: "x\x1b]0;y", Verdict: "deny", Reason: "z\r\n"}}}
	for _, args := range []string{"ls", "policy log t"} {
		_, out, _ := f.command(strings.Fields(args)...)
		if strings.ContainsAny(out, "\x1b\r\u009b") || strings.Count(out, "\n") > 2 {
			t.Errorf("%s: %q", args, out)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var f fake
	root := tree.New(&Env{Runtime: &f}, commands, true)
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		status, out, errs := f.command(c.Name(), "--help")
		if status != 0 || errs != "" || strings.Contains(out, "Exit status:") != slices.Contains([]string{"run", "exec", "build"}, c.Name()) || strings.Contains(out, "[flags]") {
			t.Errorf("%s --help: status %d, stderr %q", c.Name(), status, errs)
		}
		if !c.HasSubCommands() && c.Name() != "version" && !strings.Contains(out, "Examples:") {
			t.Errorf("%s --help has no example", c.Name())
		}
		for l := range strings.Lines(out) {
			if len([]rune(l)) > 110 {
				t.Errorf("%s --help: a line of %d characters: %s", c.Name(), len(l), l)
			}
		}
	}
	var reads func(c *cobra.Command)
	reads = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			reads(sub)
		}
		if slices.Contains([]string{"ls", "status", "inspect", "images", "ports", "events", "plan", "doctor", "log", "unsaved", "version", "prune", "check", "surface", "diff", "logs"}, c.Name()) && c.Runnable() && c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", c.CommandPath())
		}
	}
	reads(root)
	status, out, _ := f.command("version")
	if status != 0 || out != "kitbox 1.2.3\n" {
		t.Errorf("version: %q", out)
	}
}

// A sandbox that came up without what it was to have is not left running by a
// command that reports failure.
func TestARunThatCannotGoOnPutsItsSandboxAway(t *testing.T) {
	for args, want := range map[string]string{
		"run --rm ./k": "create, remove t",
		"run ./k":      "create, stop t 0s true",
	} {
		f := fake{createErr: errors.New("kit ./k: file /x: no such directory")}
		status, out, errs := f.command(strings.Fields(args)...)
		if status != kiterr.StatusFailed || out != "" || !strings.Contains(errs, "file /x") || strings.Join(f.did, ", ") != want {
			t.Errorf("%s: status %d, did %v, stdout %q, stderr %q", args, status, f.did, out, errs)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAStdoutThatTakesNothingIsAFailure(t *testing.T) {
	for _, args := range []string{"--help", "run --help", "version", "ls", "ls --json", "help run", "completion bash"} {
		var errs bytes.Buffer
		status := Main(t.Context(), &Env{Args: strings.Fields(args), Stdin: strings.NewReader(""), Stdout: full{}, Stderr: &errs, Version: "1", Runtime: &fake{}})
		if status != kiterr.StatusFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s: status %d, %q", args, status, errs.String())
		}
	}
}
