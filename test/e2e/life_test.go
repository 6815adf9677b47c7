package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// kit makes a workload with the capabilities caps, a YAML list.
func kit(t *testing.T, caps string) string {
	t.Helper()
	return write(t, map[string]string{"kit.yaml": head + recipe + "capabilities:\n" + caps})
}

// hostPID is the guest's process as the host sees it.
func hostPID(t *testing.T, name string) int {
	t.Helper()
	var i struct{ PID int }
	if err := json.Unmarshal([]byte(ok(t, "status", "--json", name)), &i); err != nil {
		t.Fatal(err)
	}
	return i.PID
}

// groupFile reads a file of the first control group of pid that has it.
func groupFile(t *testing.T, pid int, names ...string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, name := range names {
			for _, dir := range []string{"/sys/fs/cgroup/" + f[1] + f[2], "/sys/fs/cgroup" + f[2]} {
				if v, err := os.ReadFile(dir + "/" + name); err == nil {
					return strings.TrimSpace(string(v))
				}
			}
		}
	}
	return ""
}

// TestResourcesHold has a sandbox without limits as its control.
func TestResourcesHold(t *testing.T) {
	needs.Root(t, "control groups are delegated to root only, as a rule")
	const caps = "  - type: com.docker.sandbox/resources@1\n    config: {cpu: 0.5, memory: 96m}\n"
	dir := kit(t, caps)
	if o := kitbox(t, "plan", dir); !strings.Contains(o.Stdout, "0.5 cores") || !strings.Contains(o.Stdout, "96 MiB of memory") {
		t.Errorf("the plan does not say it:\n%s", o.Stdout)
	}
	// An endless line is kept in memory, 200 MB of it.
	const eat = "head -c 200000000 /dev/zero | tail -n 1 | wc -c"
	create(t, "bounded", "-q", dir)
	if o := sh(t, "bounded", "", eat); strings.Contains(o.Stdout, "200000000") {
		t.Errorf("200 MB fitted into 96 MiB: %+v", o)
	}
	if out := ok(t, "exec", "bounded", "--", "echo", "still here"); out != "still here\n" {
		t.Errorf("after the memory ran out: %q", out)
	}
	if got := groupFile(t, hostPID(t, "bounded"), "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "50000") {
		t.Errorf("processor quota %q, want 50000", got)
	}
	if got := groupFile(t, hostPID(t, "bounded"), "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(96<<20) {
		t.Errorf("memory with swap %q, want %d", got, 96<<20)
	}
	// The limits come back with the sandbox.
	ok(t, "stop", "bounded")
	ok(t, "start", "bounded")
	if got := groupFile(t, hostPID(t, "bounded"), "memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(96<<20) {
		t.Errorf("memory after a restart %q", got)
	}

	create(t, "unbounded", "-q", kit(t, "  - type: com.docker.sandbox/sbx@1\n"))
	if o := sh(t, "unbounded", "", eat); strings.TrimSpace(o.Stdout) != "200000000" {
		t.Errorf("without a limit: %+v", o)
	}

	create(t, "overridden", "-q", "--memory", "64m", "--pids", "77", dir)
	pid := hostPID(t, "overridden")
	if m, n := groupFile(t, pid, "memory.limit_in_bytes", "memory.max"), groupFile(t, pid, "pids.max"); m != fmt.Sprint(64<<20) || n != "77" {
		t.Errorf("the operator's limits: memory %q, pids %q", m, n)
	}
}

func TestResourcesThatCannotBeAreRefused(t *testing.T) {
	for config, says := range map[string]string{
		"{cpu: 100000}":    "--cpus",
		"{memory: 999t}":   "--memory",
		"{gpu: \"all\"}":   "GPU",
		"{memory: \"1k\"}": "at least",
	} {
		entry := "  - type: com.docker.sandbox/resources@1\n    config: " + config + "\n"
		o := kitbox(t, "create", "-q", "--name", "greedy", kit(t, entry))
		if o.Code != 2 || !strings.Contains(o.Stderr, says) || !strings.Contains(o.Stderr, "com.docker.sandbox/resources@1") {
			t.Errorf("%s: %+v", config, o)
		}
		if kitbox(t, "status", "greedy").Code == 0 {
			t.Errorf("%s: the sandbox is left", config)
		}
		if o := kitbox(t, "plan", kit(t, entry+"    optional: true\n")); o.Code != 0 || !strings.Contains(o.Stdout, "skipped") || !strings.Contains(o.Stdout, says) {
			t.Errorf("optional %s: %+v", config, o)
		}
	}
}

// stateOf waits for a state within a bound and returns the reason with it.
func stateOf(t *testing.T, name, want string) string {
	t.Helper()
	var i struct{ State, Reason string }
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := json.Unmarshal([]byte(ok(t, "status", "--json", name)), &i); err != nil {
			t.Fatal(err)
		}
		if i.State == want {
			return i.Reason
		}
	}
	t.Fatalf("%s is %s, want %s", name, i.State, want)
	return ""
}

// TestIdleSandboxesStop has as its control a sandbox that may run for ever, and
// one whose Kit is long-running.
func TestIdleSandboxesStop(t *testing.T) {
	plain := kit(t, "  - type: com.docker.sandbox/sbx@1\n")
	long := kit(t, "  - type: com.docker.sandbox/long-running@1\n")
	create(t, "patient", "-q", "--idle-timeout", "0", plain)
	create(t, "server", "-q", "--idle-timeout", "1s", long)
	create(t, "idler", "-q", "--idle-timeout", "1s", plain) // a bare create: no session ever
	if r := stateOf(t, "idler", "stopped"); !strings.HasPrefix(r, "idle") {
		t.Errorf("reason %q", r)
	}
	if out := ok(t, "ls"); !strings.Contains(out, "stopped (idle)") {
		t.Errorf("ls does not say it:\n%s", out)
	}
	ok(t, "start", "idler")
	ok(t, "exec", "idler", "--", "true")
	stateOf(t, "idler", "stopped")
	for _, name := range []string{"patient", "server"} {
		if r := stateOf(t, name, "ready"); r != "" {
			t.Errorf("%s: %q", name, r)
		}
	}
	if out := ok(t, "plan", long); !strings.Contains(out, "long-running") {
		t.Errorf("the plan does not say it:\n%s", out)
	}
	ok(t, "stop", "server")
	if r := stateOf(t, "server", "stopped"); !strings.Contains(r, "request") {
		t.Errorf("reason of an explicit stop: %q", r)
	}

	// A workload that runs independently of sessions is not stopped when the
	// command that made it ends; any other is.
	t.Cleanup(func() { kitbox(t, "rm", "once", "served-on") })
	ok(t, "run", "-q", "--name", "served-on", "--exec", long, "--", "true")
	stateOf(t, "served-on", "ready")
	ok(t, "run", "-q", "--name", "once", "--exec", plain, "--", "true")
	stateOf(t, "once", "stopped")

	t.Cleanup(func() { kitbox(t, "rm", "brief") })
	for i := range 20 {
		if out := ok(t, "run", "-q", "--name", "brief", "--idle-timeout", "1ms", "--exec", plain, "--", "echo", "ran"); out != "ran\n" {
			t.Fatalf("run %d said %q", i, out)
		}
		if out := ok(t, "attach", "brief", "--", "again"); out != "again\n" {
			t.Fatalf("attach %d said %q", i, out)
		}
		ok(t, "rm", "brief")
	}
}

// TestPrivilegedNeedsConsentAndStaysInside has the same Kit without the request
// as its control.
func TestPrivilegedNeedsConsentAndStaysInside(t *testing.T) {
	const entry = "  - type: com.docker.sandbox/privileged@1\n    description: mounts things\n"
	asks := kit(t, entry)
	o := kitbox(t, "create", "-q", "--name", "mighty", asks)
	if o.Code != 2 || !strings.Contains(o.Stderr, "--allow-privileged") || !strings.Contains(o.Stderr, "com.docker.sandbox/privileged@1") {
		t.Errorf("without consent: %+v", o)
	}
	if o := kitbox(t, "plan", kit(t, entry+"    optional: true\n")); o.Code != 0 || strings.Contains(o.Stdout, "PRIVILEGED") || !strings.Contains(o.Stdout, "skipped") {
		t.Errorf("optional without consent: %+v", o)
	}
	if out := ok(t, "plan", "--allow-privileged", asks); !strings.Contains(out, "PRIVILEGED") {
		t.Errorf("the plan does not say it:\n%s", out)
	}
	create(t, "mighty", "-q", "--allow-privileged", asks)
	create(t, "ordinary", "-q", "--allow-privileged", kit(t, "  - type: com.docker.sandbox/sbx@1\n"))
	const mount = "mount -t tmpfs none /mnt && echo mounted"
	if o := sh(t, "mighty", "0", mount); o.Stdout != "mounted\n" {
		t.Errorf("privileged: %+v", o)
	}
	if o := sh(t, "ordinary", "0", mount); o.Code == 0 {
		t.Errorf("consent alone made a sandbox privileged: %+v", o)
	}
	addr, hits := serve(t, "host")
	for _, try := range []string{
		"mknod /dev/sda b 8 0",
		"dmesg",
		"echo x > /proc/sysrq-trigger",
		"mount /dev/vda /mnt",
		"curl -sS --max-time 3 http://" + addr + "/",
	} {
		if o := sh(t, "mighty", "0", try); o.Code == 0 {
			t.Errorf("privileged root could %s: %+v", try, o)
		}
	}
	if hits.Load() != 0 {
		t.Error("the boundary let a privileged sandbox through")
	}
}

// A power cut can leave what a sandbox wrote and nothing that says whose it is.
func TestPruneRemovesAMachineWhoseSandboxForgotIt(t *testing.T) {
	create(t, "torn", probe)
	create(t, "whole", probe)
	machine := func(name string) string {
		t.Helper()
		var i struct{ ID string }
		if err := json.Unmarshal([]byte(ok(t, "status", "--json", name)), &i); err != nil || i.ID == "" {
			t.Fatal(i, err)
		}
		return filepath.Join(home, "machines", i.ID)
	}
	torn, whole := machine("torn"), machine("whole")
	ok(t, "stop", "--grace", "0s", "torn")
	ok(t, "stop", "--grace", "0s", "whole")
	dir := filepath.Join(home, "sandboxes", "torn")
	for _, f := range []string{"journal.jsonl", "plan.json"} {
		if err := os.Truncate(filepath.Join(dir, f), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(torn, "machine.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ids := filepath.Join(home, "sandboxes", ".ids.json")
	if b, err := os.ReadFile(ids); err != nil || !strings.Contains(string(b), filepath.Base(torn)) {
		t.Fatalf("%s, %v", b, err)
	}
	// What is left of a creation is left alone as long as it may be going on.
	ok(t, "prune")
	if _, err := os.Stat(torn); err != nil {
		t.Fatalf("the machine of a sandbox whose name is there: %v", err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, past, past); err != nil {
		t.Fatal(err)
	}
	ok(t, "prune")
	for _, p := range []string{dir, torn} {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if b, err := os.ReadFile(ids); err != nil || strings.Contains(string(b), filepath.Base(torn)) || !strings.Contains(string(b), filepath.Base(whole)) {
		t.Errorf("ids: %s, %v", b, err)
	}
	if _, err := os.Stat(whole); err != nil {
		t.Error(err)
	}
	ok(t, "start", "whole")
}
