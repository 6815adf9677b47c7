package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestExecPassesBytesThrough moves a hundred megabytes each way at once.
func TestExecPassesBytesThrough(t *testing.T) {
	create(t, "pipe", "-q", probe)
	content := make([]byte, 100<<20)
	if _, err := rand.NewChaCha8([32]byte{2}).Read(content); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, in := range map[string]io.Reader{"copied": bytes.NewReader(content), "passed": nil} {
		cmd := command(ctx, "kitbox", "exec", "-i", "pipe", "--", "cat")
		cmd.Stdin = in
		if in == nil { // a pipe of ours, which the command can be given itself
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin = r
			go func() {
				_, _ = w.Write(content)
				w.Close()
			}()
			defer r.Close()
		}
		out, err := cmd.Output()
		if err != nil || !bytes.Equal(out, content) {
			t.Errorf("%s: %d bytes came back, %v", name, len(out), err)
		}
	}
	if o := kitbox(t, "exec", "pipe", "--", "sh", "-c", "printf out; printf err >&2; exit 7"); o.Stdout != "out" || o.Stderr != "err" || o.Code != 7 {
		t.Errorf("%+v", o)
	}
	if o := kitbox(t, "exec", "nobody", "--", "true"); o.Code != 125 || !strings.Contains(o.Stderr, "sandbox nobody: not found") {
		t.Errorf("no such sandbox: %+v", o)
	}
	if o := kitbox(t, "exec", "pipe", "--", "/no/such"); o.Code != 125 {
		t.Errorf("what cannot be started: %+v", o)
	}
	if o := kitbox(t, "exec", "pipe", "--", "sh", "-c", "kill -KILL $$"); o.Code != 137 {
		t.Errorf("ended by a signal: %+v", o)
	}
	if o := kitboxIn(t, []byte("x"), "exec", "pipe", "--", "sh", "-c", "wc -c; test -t 0 || test -t 1 || echo no terminal"); o.Stdout != "0\nno terminal\n" {
		t.Errorf("without -i: %+v", o)
	}
}

func TestExecTakesVariablesFromFiles(t *testing.T) {
	create(t, "vars", "-q", probe)
	f := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(f, []byte("# comment\nA=1\n\nB=two words = x\nKITBOX_HOME\nSANDBOX_NAME=other\nC=\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := kitbox(t, "exec", "--env-file", f, "-e", "A=2", "vars", "--", "sh", "-c", `echo "$A|$B|$KITBOX_HOME|$SANDBOX_NAME|${C-unset}|"`)
	if o.Stdout != "2|two words = x|"+home+"|vars||\n" {
		t.Errorf("%+v", o)
	}
	if err := os.WriteFile(f, []byte("A=1\nnot a name\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KITBOX_TEST_GIVEN", "here")
	if out := ok(t, "exec", "-e", "KITBOX_TEST_GIVEN", "-e", "KITBOX_TEST_NONE", "vars", "--", "sh", "-c", "echo $KITBOX_TEST_GIVEN ${KITBOX_TEST_NONE-unset}"); out != "here unset\n" {
		t.Errorf("variables named without a value: %q", out)
	}
	t.Setenv("KITBOX_TEST_EMPTY", "")
	if out := ok(t, "exec", "-e", "KITBOX_TEST_EMPTY", "vars", "--", "sh", "-c", "echo ${KITBOX_TEST_EMPTY-unset}."); out != ".\n" {
		t.Errorf("a variable that is set to nothing: %q", out)
	}
	if o := kitbox(t, "exec", "--env-file", f, "vars", "--", "true"); o.Code != 125 || !strings.Contains(o.Stderr, "line 2") {
		t.Errorf("%+v", o)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	create(t, "signals", "-q", probe)
	run := func(script string, sigs ...syscall.Signal) (string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := command(ctx, "kitbox", "exec", "signals", "--", "sh", "-c", script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 6)
		if _, err := io.ReadFull(out, line); err != nil {
			t.Fatal(err)
		}
		for i, s := range sigs {
			if i > 0 {
				time.Sleep(300 * time.Millisecond) // two at once are one
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		return string(rest), cmd.ProcessState.ExitCode()
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP} {
		out, code := run("trap 'echo got; exit 9' TERM USR1 HUP; echo ready; while :; do sleep 0.1; done", s)
		if out != "got\n" || code != 9 {
			t.Errorf("%v: %q, status %d", s, out, code)
		}
	}
	if out, code := run("echo ready; exec sleep 1000", syscall.SIGTERM); out != "" || code != 143 {
		t.Errorf("one that does not care: %q, status %d", out, code)
	}
	if _, code := run("trap '' TERM; echo ready; while :; do sleep 0.1; done", syscall.SIGTERM, syscall.SIGTERM); code != 130 {
		t.Errorf("the second: status %d", code)
	}
	waitFor(t, "commands to end", func() bool {
		var i struct{ Commands int }
		return json.Unmarshal([]byte(ok(t, "status", "--json", "signals")), &i) == nil && i.Commands == 0
	})
}

func TestADetachedCommandRunsOn(t *testing.T) {
	create(t, "jobs", "-q", probe)
	start := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(ok(t, append([]string{"exec", "-d", "-e", "A=b", "jobs", "--"}, args...)...))
	}
	type job struct {
		ID       string
		Running  bool
		ExitCode *int
		Signal   string
	}
	look := func(id string) (j job) {
		t.Helper()
		var js []job
		if err := json.Unmarshal([]byte(ok(t, "job", "ls", "--json", "jobs")), &js); err != nil {
			t.Fatal(err)
		}
		for _, j := range js {
			if j.ID == id {
				return j
			}
		}
		t.Fatalf("there is no job %s in %+v", id, js)
		return j
	}
	quick := start("sh", "-c", "echo out $A; echo err >&2; exit 3")
	waitFor(t, "it to end", func() bool { return !look(quick).Running })
	if j := look(quick); j.ExitCode == nil || *j.ExitCode != 3 {
		t.Errorf("%+v", j)
	}
	if out := ok(t, "logs", "jobs", quick); out != "out b\nerr\n" {
		t.Errorf("it printed %q", out)
	}
	// It goes on when the command that started it and even the keeper are gone.
	long := start("sh", "-c", "echo begun; until test -e /tmp/go; do sleep 0.05; done; echo went on")
	if err := keeperPID(t, "jobs").Kill(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the sandbox to have a keeper again", func() bool { return sh(t, "jobs", "", "true").Code == 0 })
	if !look(long).Running {
		t.Error("it ended with its keeper")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow := command(ctx, "kitbox", "logs", "-f", "jobs", long)
	var followed bytes.Buffer
	follow.Stdout = &followed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	ok(t, "exec", "jobs", "--", "touch", "/tmp/go")
	if err := follow.Wait(); err != nil || followed.String() != "begun\nwent on\n" {
		t.Errorf("followed %q, %v", followed.String(), err)
	}
	// Output is bounded, and its end is kept.
	much := start("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo end")
	waitFor(t, "it to end", func() bool { return !look(much).Running })
	if out := ok(t, "logs", "jobs", much); len(out) > 2<<20 || len(out) < 1<<20 || !strings.HasSuffix(out, "xend\n") {
		t.Errorf("%d bytes are kept, the last %q", len(out), out[max(0, len(out)-5):])
	}
	stopped := start("sh", "-c", "sleep 1000 & sleep 1000")
	ok(t, "job", "stop", "jobs", stopped)
	waitFor(t, "its processes to end", func() bool { return sh(t, "jobs", "", "pgrep sleep || ps ax | grep -q '[s]leep 1000'").Code != 0 })
	if o := kitbox(t, "exec", "-d", "jobs", "--", "/no/such"); o.Code != 125 || o.Stdout != "" {
		t.Errorf("%+v", o)
	}
	if o := kitbox(t, "exec", "-d", "-i", "jobs", "--", "cat"); o.Code != 125 || !strings.Contains(o.Stderr, "-d goes with neither") {
		t.Errorf("with input: %+v", o)
	}
	for _, c := range [][]string{{"logs", "jobs", "../../x"}, {"logs", "jobs", "zzzzzz"}} {
		if o := kitbox(t, c...); o.Code != 1 {
			t.Errorf("%v: %+v", c, o)
		}
	}
	last := start("sleep", "1000")
	ok(t, "stop", "jobs")
	waitFor(t, "it to end with its sandbox", func() bool { return !look(last).Running })
}

func TestEventsAreFollowed(t *testing.T) {
	create(t, "followed", "-q", probe)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := command(ctx, "kitbox", "events", "--follow", "--json", "followed")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(out)
	until := func(want string) {
		t.Helper()
		for {
			var v struct{ Kind, Text string }
			if err := dec.Decode(&v); err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if v.Text == want {
				return
			}
		}
	}
	until("running")
	ok(t, "stop", "followed")
	until("stopped")
	ok(t, "rm", "followed")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestCompletionKnowsTheSandboxes asks as a shell does.
func TestCompletionKnowsTheSandboxes(t *testing.T) {
	create(t, "completed", "-q", probe)
	for _, args := range [][]string{{"exec", ""}, {"stop", ""}, {"cp", ""}, {"logs", ""}, {"job", "ls", ""}, {"workspace", "bundle", ""}} {
		out := ok(t, append([]string{"__complete"}, args...)...)
		if !strings.Contains(out, "completed") {
			t.Errorf("%v completes to %q", args, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := ok(t, "completion", shell)
		if p, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(p, "-n")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", shell, err, out)
			}
		}
	}
}

// A command whose sandbox goes away under it was started: that is no status 125.
func TestACommandWhoseSandboxIsRemovedHasFailed(t *testing.T) {
	create(t, "removed", "-q", probe)
	cmd := command(t.Context(), "kitbox", "exec", "removed", "--", "sh", "-c", "touch /tmp/begun; exec sleep 1000")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the command to run", func() bool { return sh(t, "removed", "", "test -e /tmp/begun").Code == 0 })
	ok(t, "rm", "removed")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(stderr.String(), "kitbox: sandbox removed: it ended while the command ran") {
		t.Errorf("status %d, %q", code, stderr.String())
	}
}
