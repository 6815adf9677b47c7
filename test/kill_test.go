package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A host is one home and the program in it.
type host struct {
	t    *testing.T
	home string

	options []string // of a creation in which a fault is tried, its Kit among them
	isRich  bool     // that Kit has something of everything
	user    string   // the directory of the ordinary user who does it all; empty: root
}

func newHost(t *testing.T) *host {
	canRun(t)
	h := &host{t: t, home: filepath.Join(t.TempDir(), "home")}
	t.Cleanup(func() {
		list, _ := os.ReadDir(filepath.Join(h.home, "sandboxes"))
		for _, n := range list {
			if !strings.HasPrefix(n.Name(), ".") {
				h.run("rm", n.Name())
			}
		}
		h.nothing()
	})
	return h
}

func (h *host) push(ref, descriptor string) {
	h.t.Helper()
	err := kittest.Push(h.t.Context(), h.home, kittest.Kit{Ref: ref, Descriptor: descriptor, Base: true,
		Config: ocispec.ImageConfig{User: "agent", Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}}})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) command(args ...string) *exec.Cmd {
	if h.user != "" {
		as := append([]string{"-m", "sh", "-c", asOrdinary, "sh", h.user, faultVariable + "=" + os.Getenv(faultVariable), "kitbox"}, args...)
		return exec.Command("unshare", as...)
	}
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = "kitbox"
	c.Env = append(os.Environ(), "KITBOX_HOME="+h.home, "KITBOX_LIBEXEC="+libexec)
	return c
}

// run runs kitbox to its end, for at most a minute.
func (h *host) run(args ...string) (stdout string, err error) {
	h.t.Helper()
	c := h.command(args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
	defer late.Stop()
	if err = c.Wait(); err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), err
}

func (h *host) must(args ...string) string {
	h.t.Helper()
	out, err := h.run(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) info(name string) sandbox.Info {
	h.t.Helper()
	var i sandbox.Info
	if err := json.Unmarshal([]byte(h.must("status", name, "--json")), &i); err != nil {
		h.t.Fatal(err)
	}
	return i
}

// nothing waits until nothing of the home is alive, which a kill of ours may
// take a moment to bring about.
func (h *host) nothing() {
	h.t.Helper()
	h.eventually("everything to be gone", func() string { return strings.Join(alive(h.home), "; ") })
}

// eventually waits until f returns nothing.
func (h *host) eventually(what string, f func() string) {
	h.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := f()
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("gave up waiting for %s: %s", what, left)
		}
	}
}

// reached waits until the sandbox's journal, or the file that a hook makes in a
// volume, says that name got as far as it should.
func (h *host) reached(file string) {
	h.t.Helper()
	h.eventually(file, func() string {
		if _, err := os.Stat(file); err != nil {
			return err.Error()
		}
		return ""
	})
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("there is no process %d to kill", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

const plain = `{"schemaVersion":"3","kind":"workload","provides":["w@1"]}`

// waits is a Kit whose install and startup hooks wait in volume /v for the word
// to go on.
const waits = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "install":[{"command":"touch /v/installing; until test -e /v/go; do sleep 0.02; done; echo once >>/v/installs"}],
  "startup":[{"command":"echo boot >>/v/boots"}]}}]}`

func (h *host) volume(name string) string {
	return filepath.Join(h.home, "volumes", name, "%2Fv", "data")
}

func TestAKeeperThatIsKilledIsReplacedByTheNextCommand(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("create", "-q", "--name", "k", "w:1")
	h.must("exec", "k", "--", "sh", "-c", "echo still here >/tmp/f; sleep 1000 </dev/null >/dev/null 2>&1 &")
	before := h.info("k")
	kill(t, before.KeeperPID)
	h.eventually("the loss to be seen", func() string {
		if s := h.info("k").State; s != sandbox.Orphaned {
			return string(s)
		}
		return ""
	})
	// What ran in it still runs, and has no way out.
	if out := h.must("exec", "k", "--", "sh", "-c", "cat /tmp/f; pidof sleep >/dev/null && echo alive; ip -o link show eth0 | wc -l"); out != "still here\nalive\n1\n" {
		t.Errorf("after: %q", out)
	}
	after := h.info("k")
	if after.State != sandbox.Ready || after.KeeperPID == before.KeeperPID || after.PID != before.PID || after.Phase != "runtime" {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	// The same by start, and by stop.
	kill(t, after.KeeperPID)
	h.must("start", "k")
	kill(t, h.info("k").KeeperPID)
	h.must("stop", "k")
	if s := h.info("k").State; s != sandbox.Stopped {
		t.Errorf("after stop: %s", s)
	}
	h.must("start", "k")
	kill(t, h.info("k").KeeperPID)
	h.must("rm", "k")
	h.nothing()
}

func TestAKeeperThatHangsHoldsNobodyUp(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("create", "-q", "--name", "hangs", "w:1")
	h.must("create", "-q", "--name", "works", "w:1")
	pid := h.info("hangs").KeeperPID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	begun := time.Now()
	var list []sandbox.Info
	if err := json.Unmarshal([]byte(h.must("ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("ls took %v", took)
	}
	if len(list) != 2 || list[0].State != sandbox.Unknown || list[1].State != sandbox.Ready {
		t.Errorf("ls: %+v", list)
	}
	h.must("exec", "works", "--", "true")
	// Who waits for it is told, and can give up before.
	for _, args := range [][]string{{"exec", "hangs", "--", "true"}, {"start", "hangs"}, {"ports", "hangs"}, {"ports", "publish", "hangs", "80"},
		{"policy", "allow", "--sandbox", "hangs", "a.example"}} {
		if _, err := h.run(args...); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("its keeper, process %d, does not answer; 'kitbox restart hangs' ends it", pid)) {
			t.Errorf("%s: %v", args[0], err)
		}
	}
	c := h.command("exec", "hangs", "--", "true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	h.eventually("the command to call the keeper", func() string {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Process.Pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
				return ""
			}
		}
		return "it has no socket"
	})
	begun = time.Now()
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if took := time.Since(begun); c.ProcessState.ExitCode() != 130 || took > 3*time.Second {
		t.Errorf("interrupted: %v after %v", c.ProcessState, took)
	}
	h.must("restart", "hangs")
	h.must("exec", "hangs", "--", "true")
	h.must("rm", "hangs")
}

func TestACreationWhoseCommandIsKilledGoesOn(t *testing.T) {
	h := newHost(t)
	h.push("w:1", waits)
	c := h.command("create", "-q", "--name", "c", "w:1")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	h.reached(filepath.Join(h.volume("c"), "installing"))
	kill(t, c.Process.Pid)
	c.Wait()
	if _, err := h.run("create", "-q", "--name", "c", "w:1"); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the name is free: %v", err)
	}
	h.go_("c")
	if out := h.must("exec", "c", "--", "cat", "/v/installs", "/v/boots"); out != "once\nboot\n" {
		t.Errorf("hooks ran: %q", out)
	}
}

// go_ lets the hooks of name go on.
func (h *host) go_(name string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.volume(name), "go"), nil, 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func TestACreationThatIsKilledEntirelyIsCleanedUpByTheNextCommand(t *testing.T) {
	for _, next := range []string{"create", "exec", "start", "rm", "stop"} {
		t.Run(next, func(t *testing.T) {
			h := newHost(t)
			h.push("w:1", waits)
			c := h.command("create", "-q", "--name", "c", "w:1")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			h.reached(filepath.Join(h.volume("c"), "installing"))
			keeper := h.info("c").KeeperPID
			kill(t, c.Process.Pid)
			c.Wait()
			kill(t, keeper)
			h.eventually("the state to be known", func() string {
				if s := h.info("c").State; s != sandbox.Broken {
					return string(s)
				}
				return ""
			})
			switch next {
			case "create":
				// What the killed one left goes first, its storage too.
				os.Remove(filepath.Join(h.volume("c"), "installing"))
				c := h.command("create", "-q", "--name", "c", "w:1")
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				late := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
				defer late.Stop()
				h.reached(filepath.Join(h.volume("c"), "installing"))
				h.go_("c")
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
				if out := h.must("exec", "c", "--", "cat", "/v/installs"); out != "once\n" {
					t.Errorf("install hooks: %q", out)
				}
				h.must("rm", "c")
			case "rm":
				h.must("rm", "c")
			case "exec":
				if _, err := h.run("exec", "c", "--", "true"); err == nil || !strings.Contains(err.Error(), "create it again") {
					t.Errorf("exec: %v", err)
				}
			default:
				if _, err := h.run(next, "c"); err == nil || !strings.Contains(err.Error(), "create it again") {
					t.Errorf("%s: %v", next, err)
				}
			}
			h.nothing()
			if _, err := os.Stat(h.volume("c")); next != "create" && err == nil {
				t.Error("the storage of a sandbox that never was is left")
			}
		})
	}
}

// TestACreateKilledAtAnyInstantLeavesNothingBehindTheNext kills the command
// after growing times, wherever that hits it.
func TestACreateKilledAtAnyInstantLeavesNothingBehindTheNext(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("run", "-q", "--rm", "w:1", "--", "-c", "true") // unpacks
	for ms := 0; ms < 120; ms += 6 {
		c := h.command("run", "-q", "--rm", "--name", "c", "--exec", "w:1", "--", "sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(ms) * time.Millisecond) // the instant under test
		c.Process.Kill()
		c.Wait()
		// Whoever comes next must be able to have the name at once or after
		// the keeper has cleaned up.
		var out string
		var err error
		h.eventually("the name to be free again", func() string {
			if out, err = h.run("run", "-q", "--rm", "--name", "c", "--exec", "w:1", "--", "echo", "next"); err != nil && strings.Contains(err.Error(), "already exists") {
				return err.Error()
			}
			return ""
		})
		if err != nil || out != "next\n" {
			t.Fatalf("killed after %d ms: then %q, %v", ms, out, err)
		}
		h.nothing()
	}
}

func TestAnInterruptedCreateLeavesNothing(t *testing.T) {
	h := newHost(t)
	h.push("w:1", waits)
	c := h.command("create", "-q", "--name", "c", "w:1")
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	h.reached(filepath.Join(h.volume("c"), "installing"))
	c.Process.Signal(os.Interrupt)
	c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 || errs.String() != "kitbox: interrupted\n" {
		t.Errorf("exit %d, stderr %q", code, errs.String())
	}
	h.nothing()
	if _, err := os.Stat(h.volume("c")); err == nil {
		t.Error("the storage of a sandbox that never was is left")
	}
}

func TestAnInterruptedExecEndsTheWholeTree(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("create", "-q", "--name", "x", "w:1")
	c := h.command("exec", "x", "--", "sh", "-c", "setsid sleep 1000 & trap '' TERM INT; echo up; sleep 1000")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if i := h.info("x"); i.State != sandbox.Busy || i.Commands != 1 {
		t.Errorf("while it runs: %+v", i)
	}
	c.Process.Signal(os.Interrupt)
	c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d", code)
	}
	h.eventually("the tree to end", func() string {
		left, _ := h.run("exec", "x", "--", "sh", "-c", "pidof sleep")
		return left
	})
	if i := h.info("x"); i.State != sandbox.Ready {
		t.Errorf("afterwards: %+v", i)
	}
}

func TestOneOfTwoCreationsOfANameWins(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	results := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := h.run("create", "-q", "--name", "one", "w:1")
			results <- err
		}()
	}
	won := 0
	for range 4 {
		select {
		case err := <-results:
			switch {
			case err == nil:
				won++
			case !strings.Contains(err.Error(), "already exists"):
				t.Error(err)
			}
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	if won != 1 {
		t.Errorf("%d of 4 creations of one name succeeded", won)
	}
	h.must("exec", "one", "--", "true")
}

func TestAFailedCommandOfARunDoesNotKeepASandboxThatGoes(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	for range 5 {
		if out := h.must("run", "-q", "--rm", "--exec", "w:1", "--", "echo", "x"); out != "x\n" {
			t.Fatalf("%q", out)
		}
		if left := alive(h.home); len(left) > 0 {
			t.Fatalf("right after: %v", left)
		}
	}
}
