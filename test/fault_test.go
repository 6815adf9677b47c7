package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// faultVariable names the file that says where a process of the test stops: who
// (cli or keeper), before or after which entry of a journal. The first process
// that comes there takes the file, which then has its number, and stops itself.
const faultVariable = "KITBOX_TEST_FAULT"

// halt prepares this process, if it is kitbox, for stopping. Only this program
// does it; kitbox itself has no such place.
func halt() {
	file := os.Getenv(faultVariable)
	if file == "" {
		return
	}
	who := "cli"
	if os.Args[0] == link.ProcessName {
		who = "keeper"
	}
	journal.Reached = func(p journal.Phase, written bool) {
		when := "before"
		if written {
			when = "after"
		}
		b, err := os.ReadFile(file)
		if err != nil || string(b) != fmt.Sprintf("%s %s %s", who, when, p) {
			return
		}
		mine := fmt.Sprintf("%s.%d", file, os.Getpid())
		if os.Rename(file, mine) != nil {
			return // somebody else was faster
		}
		if err := os.WriteFile(mine, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			panic(err)
		}
		if err := os.Rename(mine, file+".hit"); err != nil {
			panic(err)
		}
		// All threads stop here until they are killed or told to go on. Sent to
		// this thread, since another would take its time to notice.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	}
}

// faulty is a Kit whose hooks count how often they ran, on its volumes.
const faulty = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/bounded","size":"2m"}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "install":[{"command":"echo once >>/v/installs"}],
  "startup":[{"command":"echo boot >>/v/boots"}],
  "files":[{"path":"/tmp/faulty","content":"x"}]}}]}`

// rich is a Kit with something of everything that a sandbox can be made of, and the
// version that comes after it, which differs by a file: what it holds is a word.
const rich = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/bounded","size":"2m"}},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/ram","tmpfs":true}},
 {"type":"com.docker.sandbox/host-mount@1","config":{"path":"/shared"}},
 {"type":"com.docker.sandbox/port@1","config":{"container":3000}},
 {"type":"com.docker.sandbox/network-policy@1","config":{"runtime":{"allow":["a.example"]}}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "install":[{"command":"echo once >>/v/installs"}],
  "startup":[{"command":"echo boot >>/v/boots"},{"command":"exec sleep 1000000","background":true}],
  "files":[{"path":"/tmp/faulty","content":%q}]}}]}`

// A fault is a place to stop a command at.
type fault struct {
	op    string
	who   string
	phase journal.Phase
}

// ops are the operations that are stopped there, where they are not called as they are
// named.
var ops = map[string][]string{
	"rm of a stopped one":       {"rm"},
	"recreate of a stopped one": {"recreate"},
	"recreate with another":     {"recreate", "w:2"},
}

// faults are all the steps that are recorded of each operation.
var faults = []fault{
	{"create", "cli", journal.Creating}, {"create", "cli", journal.Planned}, {"create", "keeper", journal.Booting},
	{"create", "keeper", journal.InstallBegin}, {"create", "keeper", journal.InstallDone}, {"create", "keeper", journal.Running},
	{"start", "keeper", journal.Booting}, {"start", "keeper", journal.Running},
	{"stop", "keeper", journal.Stopping}, {"stop", "keeper", journal.Stopped},
	{"recreate", "keeper", journal.Stopping}, {"recreate", "keeper", journal.Stopped}, {"recreate", "cli", journal.Recreating},
	{"recreate", "cli", journal.Stopped}, {"recreate", "keeper", journal.Booting}, {"recreate", "keeper", journal.Running},
	{"recreate of a stopped one", "cli", journal.Recreating}, {"recreate of a stopped one", "cli", journal.Stopped},
	{"recreate with another", "keeper", journal.Stopped}, {"recreate with another", "cli", journal.Recreating},
	{"recreate with another", "cli", journal.Stopped},
	{"rm", "keeper", journal.Removing}, {"rm of a stopped one", "cli", journal.Removing},
}

// victims are who is killed while the writer of the entry stands still.
var victims = []string{"cli", "keeper", "guest", "all"}

// lives reports whether there is such a process at that step: a case that kills nobody
// shows nothing.
func (f fault) lives(victim string) bool {
	switch victim {
	case "keeper":
		return f.who == "keeper" || f.phase == journal.Planned
	case "guest":
		return f.op == "rm" || slices.Contains([]journal.Phase{journal.InstallBegin, journal.InstallDone, journal.Running, journal.Stopping}, f.phase)
	}
	return true
}

// tried reports whether that victim is killed there. Before an entry is after the one
// before it, but for what has been done since: the writer is enough there, and others
// where they have a part in that.
func (f fault) tried(when, victim string) bool {
	switch {
	case !f.lives(victim) && victim != "all":
		return false
	case testing.Short():
		return victim == f.who || victim == "all" && when == "after"
	case when == "after":
		return true
	case f.phase == journal.Booting:
		return false // nothing has been done since
	case victim == f.who:
		return true
	case victim == "all":
		return f.phase == journal.Running || f.phase == journal.Recreating || f.phase == journal.Removing
	}
	return slices.Contains([]string{"create keeper install-done guest", "create keeper install-done cli", "create keeper running guest",
		"start keeper running guest", "start keeper running cli", "stop keeper stopping guest", "stop keeper stopped cli",
		"recreate keeper stopped cli", "recreate keeper running guest", "rm keeper removing guest", "rm keeper removing cli"},
		fmt.Sprintf("%s %s %s %s", f.op, f.who, f.phase, victim))
}

// Every process of a sandbox is killed at every step of every operation. The next
// command goes on or cleans up, what is on volumes stays, and nothing is left.
func TestEveryProcessKilledAtEveryStep(t *testing.T) {
	needs.Program(t, "git", "apt-get install git")
	h := newHost(t)
	h.rich()
	simple := *h
	h.push("s:1", faulty)
	simple.options, simple.isRich = []string{"s:1"}, false
	n := 0
	for _, f := range faults {
		for _, when := range []string{"before", "after"} {
			for _, victim := range victims {
				n++
				if !f.tried(when, victim) {
					continue
				}
				// What has most to be taken back, or put together again, is tried
				// with everything, and the rest with what is made sooner.
				on := &simple
				if when == "after" && victim == "all" || f.op == "recreate with another" {
					on = h
				}
				on.fault(f, when, victim, fmt.Sprintf("f%d", n))
			}
		}
	}
}

// The same for what another driver does at the steps, with what it can.
func TestEveryProcessKilledWithTheOCIDriver(t *testing.T) {
	if _, err := exec.LookPath("crun"); err != nil {
		needs.Program(t, "runc", "apt-get install crun or runc")
	}
	h := newHost(t)
	h.push("w:1", faulty)
	h.options = []string{"--driver", "oci", "w:1"}
	h.must(append([]string{"run", "-q", "--rm", "--exec"}, append(h.options, "--", "true")...)...) // unpacks
	h.strikes(
		"create keeper booting after all", "create keeper install-done after all", "start keeper running before keeper",
		"start keeper running after guest", "stop keeper stopping after keeper", "stop keeper stopping after guest",
		"recreate cli recreating after cli", "rm keeper removing after all")
}

// strikes makes kills that are named by operation, writer and entry of a fault, when and
// victim, each of a sandbox of its own.
func (h *host) strikes(names ...string) {
	h.t.Helper()
	for i, name := range names {
		var f fault
		var when, victim string
		if _, err := fmt.Sscan(name, &f.op, &f.who, &f.phase, &when, &victim); err != nil || !slices.Contains(faults, f) || !f.lives(victim) {
			h.t.Fatalf("%s: there is no such step: %v", name, err)
		}
		h.fault(f, when, victim, fmt.Sprintf("k%d", i))
	}
}

// The same for an ordinary user, whose processes, maps and mounts are made in another way.
func TestEveryProcessOfAnOrdinaryUserKilled(t *testing.T) {
	dir := ordinaryUser(t)
	h := &host{t: t, home: filepath.Join(dir, "home", "kitbox"), options: []string{"w:1"}, user: dir}
	t.Cleanup(h.nothing)
	h.push("w:1", strings.Replace(faulty, `,"size":"2m"`, "", 1)) // no bound holds without root
	give(t, dir)
	h.must("run", "-q", "--rm", "--exec", "w:1", "--", "true") // unpacks
	h.strikes(
		"create keeper install-done after all", "create cli planned after cli", "start keeper running after keeper",
		"stop keeper stopping after all", "recreate cli recreating after cli", "rm keeper removing after guest")
}

// rich prepares sandboxes with something of everything.
func (h *host) rich() {
	h.t.Helper()
	for ref, word := range map[string]string{"w:1": "x", "w:2": "y"} {
		err := kittest.Push(h.t.Context(), h.home, kittest.Kit{Ref: ref, Descriptor: fmt.Sprintf(rich, word), Base: true,
			Config: ocispec.ImageConfig{User: "agent", WorkingDir: "/home/agent/work", Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}}})
		if err != nil {
			h.t.Fatal(err)
		}
	}
	given, repo := h.t.TempDir(), h.t.TempDir()
	for _, f := range []string{filepath.Join(given, "f"), filepath.Join(repo, "tracked")} {
		if err := os.WriteFile(f, []byte("host\n"), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "tracked"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "first"}} {
		c := exec.Command("git", args...)
		c.Dir = repo
		if out, err := c.CombinedOutput(); err != nil {
			h.t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	h.options = []string{"--disk", "8m", "--memory", "256m", "-v", given + ":/given:ro", "--clone", "w:1", repo}
	h.must("run", "-q", "--rm", "--exec", "w:1", "--", "true") // unpacks
	h.isRich = true
}

// fault tries one fault as a test of its own.
func (h *host) fault(f fault, when, victim, name string) {
	h.t.Run(strings.Join([]string{f.op, f.who, when, string(f.phase), "kill " + victim}, " "), func(t *testing.T) {
		own := *h
		own.t = t
		own.faulted(f, when, victim, name)
	})
}

// faulted runs one operation into a fault and looks at what comes of it.
func (h *host) faulted(f fault, when, victim, name string) {
	h.t.Helper()
	dir := h.t.TempDir()
	if h.user != "" {
		dir = filepath.Join(h.user, "home")
	}
	file := filepath.Join(dir, "fault")
	_ = os.Remove(file + ".hit") // of another fault
	h.t.Setenv(faultVariable, file)
	h.t.Cleanup(func() {
		_, _ = h.run("rm", name)
		_, _ = h.run("volume", "rm", name)
		h.nothing()
	})
	h.make(name)
	h.must("exec", name, "--", "sh", "-c", "echo data >/v/keep; echo data >/bounded/keep; echo layer >/tmp/layer; sync")
	if h.isRich {
		h.must("exec", "-u", "0", name, "--", "sh", "-c", "echo data >/shared/keep; echo gone >/ram/gone")
	}
	op := strings.Fields(f.op)[0]
	args := []string{op, name}
	if as := ops[f.op]; as != nil {
		args = append([]string{as[0], name}, as[1:]...)
	}
	switch f.op {
	case "create":
		h.must("rm", name) // the volumes stay
		args = h.making(name)
	case "start", "rm of a stopped one", "recreate of a stopped one":
		h.must("stop", name)
	}

	if err := os.WriteFile(file, []byte(fmt.Sprintf("%s %s %s", f.who, when, f.phase)), 0o600); err != nil {
		h.t.Fatal(err)
	}
	if h.user != "" {
		if err := os.Chown(file, ordinary, ordinary); err != nil {
			h.t.Fatal(err)
		}
	}
	c := h.command(args...)
	var said strings.Builder
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- c.Wait() }()
	writer := 0
	h.eventually("the step", func() string {
		select {
		case err := <-over:
			h.t.Fatalf("the command ended before: %v: %s", err, said.String())
		default:
		}
		b, err := os.ReadFile(file + ".hit")
		if err == nil {
			writer, err = strconv.Atoi(string(b))
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	h.stands(writer)
	pids := h.victims(victim, c.Process.Pid, name)
	want := 0
	for _, v := range victims[:3] {
		if (victim == v || victim == "all") && f.lives(v) {
			want++
		}
	}
	if len(pids) != want {
		h.t.Errorf("%d processes to kill, want %d: %v", len(pids), want, pids)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			h.t.Fatal(err)
		}
	}
	if err := syscall.Kill(writer, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		h.t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(time.Minute):
		_ = c.Process.Kill()
		h.t.Fatalf("the command hangs: %s", said.String())
	}
	h.recovered(op, name, said.String())
	if f.op == "recreate with another" {
		h.another(f, when, victim, name)
	}
	h.must("stop", name)
	h.must("start", name)
	h.must("rm", name)
	h.nothing()
	h.must("volume", "rm", name)
}

// making is how a sandbox is made.
func (h *host) making(name string) []string {
	return append([]string{"create", "-q", "--name", name}, h.options...)
}

func (h *host) make(name string) {
	h.t.Helper()
	h.must(h.making(name)...)
}

// another checks which of two Kits the sandbox has after a recreation with the second:
// that one, unless the command was killed before the decision.
func (h *host) another(f fault, when, victim, name string) {
	h.t.Helper()
	want := "y\n"
	decided := !(f.who == "keeper" && f.phase == journal.Stopped || f.phase == journal.Recreating && when == "before")
	if !decided && (victim == "cli" || victim == "all") {
		want = "x\n"
	}
	if out := h.must("exec", name, "--", "sh", "-c", "cat /tmp/faulty; echo"); out != want {
		h.t.Errorf("it has the file of %q, want %q", out, want)
	}
}

// stands waits until process pid is stopped: a signal takes its time.
func (h *host) stands(pid int) {
	h.t.Helper()
	h.eventually("it to stand still", func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && strings.HasPrefix(string(b[strings.LastIndexByte(string(b), ')')+1:]), " T") {
			return ""
		}
		return fmt.Sprintf("%s %v", b, err)
	})
}

// victims returns the processes to kill.
func (h *host) victims(victim string, cli int, name string) (pids []int) {
	h.t.Helper()
	if victim == "cli" || victim == "all" {
		pids = append(pids, cli)
	}
	if victim == "keeper" || victim == "all" {
		dir := filepath.Join(h.home, "sandboxes", name)
		cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range cmdlines {
			if b, err := os.ReadFile(p); err == nil && string(b) == link.ProcessName+"\x00"+dir+"\x00" {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
				pids = append(pids, pid)
			}
		}
	}
	if victim == "guest" || victim == "all" {
		for _, g := range guests(h.home) {
			pid, _ := strconv.Atoi(strings.TrimPrefix(g, "guest "))
			pids = append(pids, pid)
		}
	}
	return pids
}

// recovered does next what a user would, and judges.
func (h *host) recovered(op, name, said string) {
	h.t.Helper()
	retry := func(args ...string) {
		h.t.Helper()
		// A keeper whose caller is gone may still be cleaning up.
		var err error
		h.eventually(strings.Join(args, " "), func() string {
			if _, err = h.run(args...); err != nil && strings.Contains(err.Error(), "stopping") {
				return err.Error()
			}
			return ""
		})
		if err != nil {
			h.t.Fatalf("next: %v\nbefore it: %s", err, said)
		}
	}
	switch op {
	case "create":
		// Either it is there and can be started, or the name is free.
		if _, err := h.run("start", name); err != nil {
			if !strings.Contains(err.Error(), "not found") && !strings.Contains(err.Error(), "create it again") {
				h.t.Fatalf("next: %v\nbefore it: %s", err, said)
			}
			h.make(name)
		}
	case "start":
		retry("start", name)
	case "stop":
		retry("stop", name)
		if i := h.info(name); i.State != sandbox.Stopped {
			h.t.Errorf("after another stop: %+v", i)
		}
		h.must("start", name)
	case "recreate":
		retry("start", name)
	case "rm":
		if _, err := h.run("rm", name); err != nil && !strings.Contains(err.Error(), "not found") {
			h.t.Fatalf("next: %v\nbefore it: %s", err, said)
		}
		h.nothing()
		h.make(name)
	}
	if i := h.info(name); i.State != sandbox.Ready || len(i.Problems) > 0 {
		h.t.Errorf("afterwards: %+v", i)
	}
	out := h.must("exec", name, "--", "sh", "-c", "cat /v/keep /bounded/keep /tmp/faulty; echo; cat /tmp/layer 2>/dev/null; grep -c once /v/installs; tail -n1 /v/boots; ip -o link show eth0 | wc -l")
	lines := strings.Fields(out)
	layer := len(lines) > 3 && lines[3] == "layer"
	switch {
	case !strings.HasPrefix(strings.Replace(out, "y", "x", 1), "data\ndata\nx\n") || !strings.HasSuffix(out, "boot\n1\n"):
		h.t.Errorf("it holds %q", out)
	case (op == "start" || op == "stop") != layer && op != "recreate":
		h.t.Errorf("the writable layer: %q", out)
	case (op == "start" || op == "stop" || op == "recreate") && lines[len(lines)-3] != "1":
		h.t.Errorf("install hooks ran again: %q", out)
	}
	if !h.isRich {
		return
	}
	// All of it is there: the service, which ended with its machine at most, the clone,
	// what the host gives, the bounded layer, and the port, and nothing of a boot ago.
	out = h.must("exec", name, "--", "sh", "-c", `until pidof sleep >/dev/null; do sleep 0.02; done; pidof sleep | wc -w
cat tracked /given/f /shared/keep; touch /given/g 2>/dev/null && echo "/given can be written"
dd if=/dev/zero of=/tmp/big bs=1M count=12 2>/dev/null && echo "the layer has no bound"; rm -f /tmp/big`)
	if out != "1\nhost\nhost\ndata\n" {
		h.t.Errorf("of the rest it has %q", out)
	}
	if ports := h.must("ports", "--json", name); strings.Count(ports, `"container": 3000`) != 1 {
		h.t.Errorf("ports: %s", ports)
	}
}

// A reboot takes all processes and what the kernel had, and nothing on disk.
func TestAfterARebootEverythingStartsAgain(t *testing.T) {
	h := newHost(t)
	h.push("w:1", faulty)
	h.must("create", "-q", "--name", "up", "w:1")
	h.must("exec", "up", "--", "sh", "-c", "echo data >/v/keep; echo data >/bounded/keep; echo layer >/tmp/layer; sync")
	h.must("create", "-q", "--name", "down", "w:1")
	h.must("stop", "down")
	i := h.info("up")
	kill(t, i.KeeperPID)
	kill(t, i.PID)
	h.eventually("the processes to end", func() string { return strings.Join(guests(h.home), " ") })
	// Numbers of processes mean others now, and sockets and groups are gone.
	runs, err := filepath.Glob(filepath.Join(h.home, "machines", "*", "run.json"))
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	b, err := os.ReadFile(runs[0])
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(boot))
	later := strings.Replace(string(b), id, "00000000"+id[8:], 1)
	later = strings.Replace(later, fmt.Sprintf(`"pid": %d`, i.PID), fmt.Sprintf(`"pid": %d`, os.Getpid()), 1)
	if later == string(b) {
		t.Fatalf("no boot in %s", b)
	}
	if err := os.WriteFile(runs[0], []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"sandboxes/*/keeper.sock", "machines/*/guest.sock"} {
		socks, _ := filepath.Glob(filepath.Join(h.home, pattern))
		for _, s := range socks {
			if err := os.Remove(s); err != nil {
				t.Error(err)
			}
		}
	}
	for _, l := range alive(h.home) {
		if strings.HasPrefix(l, "/sys/fs/cgroup/") {
			h.eventually("the group to be empty", func() string {
				if err := os.Remove(l); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err.Error()
				}
				return ""
			})
		}
	}
	for _, name := range []string{"up", "down"} {
		if s := h.info(name).State; s != sandbox.Stopped {
			t.Errorf("%s after the reboot: %s", name, s)
		}
		h.must("start", name)
		if s := h.info(name).State; s != sandbox.Ready {
			t.Errorf("%s started: %s", name, s)
		}
	}
	if out := h.must("exec", "up", "--", "sh", "-c", "cat /v/keep /bounded/keep /tmp/layer /v/installs /v/boots"); out != "data\ndata\nlayer\nonce\nboot\nboot\n" {
		t.Errorf("it holds %q", out)
	}
	for _, name := range []string{"up", "down"} {
		h.must("rm", name)
		h.must("volume", "rm", name)
	}
	h.nothing()
}

// A sandbox for one command that loses both the command and its keeper is nobody's
// any more.
func TestASandboxForOneCommandThatIsKilledIsNotKept(t *testing.T) {
	for _, next := range []string{"create another", "exec", "start", "rm", "prune"} {
		t.Run(next, func(t *testing.T) {
			h := newHost(t)
			h.push("w:1", plain)
			c := h.command("run", "-q", "--rm", "--name", "once", "--exec", "w:1", "--", "sleep", "1000")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			h.eventually("its command to run", func() string {
				out, err := h.run("status", "once", "--json")
				if err != nil || !strings.Contains(out, `"commands": 1`) {
					return fmt.Sprint(out, err)
				}
				return ""
			})
			keeper := h.info("once").KeeperPID
			if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil { // or it cleans up
				t.Fatal(err)
			}
			h.stands(keeper)
			kill(t, c.Process.Pid)
			_ = c.Wait()
			kill(t, keeper)
			h.eventually("the loss to be seen", func() string {
				if i := h.info("once"); i.State != sandbox.Broken || !strings.Contains(i.Reason, "command") {
					return fmt.Sprintf("%+v", i)
				}
				return ""
			})
			switch next {
			case "create another":
				h.must("create", "-q", "--name", "another", "w:1")
				h.must("rm", "another")
			case "rm":
				h.must("rm", "once")
			case "prune":
				if out := h.must("prune", "--json"); !strings.Contains(out, `"sandboxes": 1`) {
					t.Errorf("prune: %s", out)
				}
			default:
				args := map[string][]string{"exec": {"exec", "once", "--", "true"}, "start": {"start", "once"}}[next]
				if _, err := h.run(args...); err == nil || !strings.Contains(err.Error(), "is gone") {
					t.Errorf("%s: %v", next, err)
				}
			}
			if out := h.must("ls", "--json"); strings.TrimSpace(out) != "[]" {
				t.Errorf("listed: %s", out)
			}
			h.nothing()
		})
	}
}

// Those that are removed have no idle stop, but the end of their keeper.
func TestOneShotsInALoopLeaveNothing(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	for i := range 20 {
		if out := h.must("run", "-q", "--rm", "--exec", "w:1", "--", "echo", strconv.Itoa(i)); out != strconv.Itoa(i)+"\n" {
			t.Errorf("said %q", out)
		}
		// The same name again at once.
		h.must("run", "-q", "--rm", "--name", "same", "--exec", "w:1", "--", "true")
	}
	h.nothing()
}

func TestManyConcurrentCreationsAndRemovalsLeaveNothing(t *testing.T) {
	h := newHost(t)
	h.push("w:1", faulty)
	h.must("run", "-q", "--rm", "--exec", "w:1", "--", "true")
	total, width := 200, 12
	if testing.Short() {
		total = 40
	}
	next := make(chan int)
	errs := make(chan error)
	for range width {
		go func() {
			var first error
			for i := range next {
				name := fmt.Sprintf("many%d", i)
				_, err := h.run("create", "-q", "--name", name, "w:1")
				if err == nil && i%3 == 0 {
					_, err = h.run("exec", name, "--", "true")
				}
				_, rerr := h.run("rm", name)
				_, verr := h.run("volume", "rm", name)
				first = errors.Join(first, err, rerr, verr)
			}
			errs <- first
		}()
	}
	for i := range total {
		next <- i
	}
	close(next)
	for range width {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	h.nothing()
	if left, err := filepath.Glob(filepath.Join(h.home, "volumes", "[^.]*")); err != nil || len(left) > 0 {
		t.Errorf("volumes are left: %v %v", left, err)
	}
	for _, file := range []string{".ids.json", ".ids-volatile.json"} {
		b, err := os.ReadFile(filepath.Join(h.home, "sandboxes", file))
		if !errors.Is(err, fs.ErrNotExist) && (err != nil || !strings.Contains(string(b), `"base": {}`)) {
			t.Errorf("ranges of ids are left: %s %v", b, err)
		}
	}
}

// When the keeper dies under a command, nobody can tell who else uses the
// sandbox: the end of the command is no reason to stop it.
func TestTheEndOfACommandWithoutAKeeperStopsNothing(t *testing.T) {
	h := newHost(t)
	const with = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[{"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}}%s]}`
	h.push("w:1", fmt.Sprintf(with, `,{"type":"com.docker.sandbox/long-running@1"}`))
	h.push("w:2", fmt.Sprintf(with, ""))
	for _, ref := range []string{"w:1", "w:2"} {
		c := h.command("run", "-q", "--name", "r", "--exec", ref, "--", "sh", "-c", "until test -e /v/go; do sleep 0.02; done")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		h.eventually("its command to run", func() string {
			out, err := h.run("status", "r", "--json")
			if err != nil || !strings.Contains(out, `"commands": 1`) {
				return fmt.Sprint(out, err)
			}
			return ""
		})
		before := h.info("r")
		kill(t, before.KeeperPID)
		h.go_("r")
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		if after := h.info("r"); after.State != sandbox.Ready || after.PID != before.PID || after.KeeperPID == before.KeeperPID {
			t.Errorf("%s: before %+v\nafter %+v", ref, before, after)
		}
		h.must("rm", "r")
		h.must("volume", "rm", "r")
	}
}
