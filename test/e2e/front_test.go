package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The small program that people start does by itself what a keeper does at once, and
// says what is missing when all else cannot be reached.
func TestTheSmallProgramAlone(t *testing.T) {
	create(t, "alone", probe)
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(bin, "kitbox"))
	if err != nil {
		t.Fatal(err)
	}
	small := filepath.Join(dir, "kitbox")
	if err := os.WriteFile(small, program, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), small, args...)
		for _, kv := range os.Environ() {
			if !strings.HasPrefix(kv, "KITBOX_") {
				cmd.Env = append(cmd.Env, kv)
			}
		}
		cmd.Env = append(cmd.Env, "KITBOX_HOME="+home)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return string(out), exit.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(out), 0
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"exec alone -- sh -c 'echo here;exit 7'", 7, "here\n"},
		{"exec alone -- /nothing", 125, "/nothing"},
		{"exec -t -i alone -- true", 125, "needs a terminal"},
		{"exec --nonsense alone -- true", 125, "nonsense"},
		{"exec -w -- -d alone true", 125, "kit-engine is missing"}, // an option, although it follows --
		{"stop -q --grace 0s alone", 0, ""},
		// From here on more is needed.
		{"exec alone -- true", 125, "kit-engine is missing"},
		{"stop alone", 1, "kit-engine is missing"},
		{"start alone", 1, "kit-engine is missing"},
		{"exec nobody -- true", 125, "kit-engine is missing"},
		{"version", 1, "kit-engine is missing"},
		{"", 1, "kit-engine is missing"},
	} {
		args := strings.Fields(c.args)
		if i := strings.Index(c.args, "'"); i >= 0 {
			args = append(strings.Fields(c.args[:i]), strings.Trim(c.args[i:], "'"))
		}
		out, status := run(args...)
		if status != c.status || !strings.Contains(out, c.says) || strings.Count(out, "\n") > 1 {
			t.Errorf("%q: %d %q; want %d and %q", c.args, status, out, c.status, c.says)
		}
	}
	ok(t, "start", "alone")
	if out, status := run("start", "alone"); status != 1 || !strings.Contains(out, "kit-engine is missing") {
		t.Errorf("start of one that runs: %d %q", status, out)
	}
}

// What it cannot do it leaves to the whole program, which sees the same command.
func TestTheSmallProgramBecomesTheWhole(t *testing.T) {
	create(t, "becomes", probe)
	end := func() {
		t.Helper()
		p := keeperPID(t, "becomes")
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the keeper to end", func() bool { return !there(p) })
	}
	end()
	if got := ok(t, "exec", "becomes", "--", "echo", "again"); got != "again\n" {
		t.Errorf("after its keeper was killed: %q", got)
	}
	end()
	ok(t, "stop", "--grace", "0s", "becomes")
	if o := kitbox(t, "exec", "becomes", "--", "true"); o.Code == 0 || !strings.Contains(o.Stderr, "kitbox start becomes") {
		t.Errorf("of one that is stopped: %+v", o)
	}
	ok(t, "start", "becomes")
	if got := ok(t, "exec", "becomes", "--", "echo", "up"); got != "up\n" {
		t.Errorf("after a start: %q", got)
	}
	for _, args := range [][]string{{"stop", "nobody"}, {"start", "nobody"}, {"exec", "nobody", "--", "true"}, {"exec", "../becomes", "--", "true"}} {
		if o := kitbox(t, args...); o.Code == 0 || strings.Count(o.Stderr, "\n") != 1 || strings.Contains(o.Stderr, "kit-engine") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

// A script that holds a lock or a pipe while it calls kitbox lets go of it when the
// script ends: what is started to live on holds nothing of whoever started it.
func TestNothingThatLivesOnHoldsWhatItsStarterHeld(t *testing.T) {
	held, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	with := func(args ...string) {
		t.Helper()
		cmd := command(t.Context(), "kitbox", args...)
		cmd.ExtraFiles = make([]*os.File, 40)
		for i := range cmd.ExtraFiles {
			cmd.ExtraFiles[i] = held
		}
		o := finish(t, cmd)
		if o.Code != 0 {
			t.Fatalf("%v: %d %s", args, o.Code, o.Stderr)
		}
	}
	t.Cleanup(func() { kitbox(t, "rm", "-f", "held") })
	with("create", "--name", "held", probe)
	with("exec", "-d", "held", "--", "sleep", "600")
	with("build", "./examples/hello")
	nobodyHas(t, held.Name())
	ok(t, "stop", "--grace", "0s", "held")
	with("start", "held")
	nobodyHas(t, held.Name())
}

// nobodyHas reports every process but this one that has the file open.
func nobodyHas(t *testing.T, file string) {
	t.Helper()
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil || len(fds) < 10 {
		t.Fatal(len(fds), err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != file || strings.HasPrefix(fd, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(fd)), "cmdline"))
		t.Errorf("%s is open as %s of %q", file, fd, strings.ReplaceAll(string(line), "\x00", " "))
	}
}
